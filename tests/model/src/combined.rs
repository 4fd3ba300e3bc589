//! Worlds in which several things go wrong at once.

use crate::{
    Action::{Other, Promote, Replay},
    Budget, Class, World,
    steps::{WRITE, answered_probe, steps},
};

/// A world and what it combines.
#[derive(Clone, Debug)]
pub struct Combination {
    /// What it combines.
    pub name: &'static str,
    /// The world.
    pub world: World,
}

/// All of them.
#[must_use]
pub fn all() -> Vec<Combination> {
    let none = Budget::default();
    let three = || World { servers: 3, names: &[0, 1, 2], ..World::default() };
    let world = |name, world| Combination { name, world };
    vec![
        world(
            "crash + promotion",
            World {
                prefix: steps(&[&WRITE, &[Replay(1)], &answered_probe(0), &answered_probe(1)]),
                budget: Budget { others: 1, probes: 2, reads: 2, crashes: 1, promotions: 1, opens: 1, ..none },
                promotable: vec![1],
                crashing: vec![1],
                probed: vec![(0, 0), (0, 1)],
                ..World::default()
            },
        ),
        world(
            "promotion + moving name",
            World {
                prefix: steps(&[&answered_probe(0), &answered_probe(2)]),
                budget: Budget { writes: 1, others: 1, probes: 2, reads: 1, promotions: 1, moves: 1, opens: 1, ..none },
                promotable: vec![1],
                targets: vec![0, 2],
                probed: vec![(0, 0), (0, 2)],
                ..three()
            },
        ),
        world(
            "promotion + probe connections lost",
            World {
                prefix: steps(&[&answered_probe(0), &answered_probe(1), &answered_probe(2)]),
                budget: Budget { others: 1, probes: 2, reads: 2, promotions: 1, failures: 1, ..none },
                promotable: vec![1],
                ..three()
            },
        ),
        world(
            "two promotions",
            World {
                prefix: steps(&[&WRITE, &answered_probe(0), &answered_probe(1), &[Promote(1), Other(1)]]),
                budget: Budget { others: 1, probes: 3, reads: 1, promotions: 1, ..none },
                promotable: vec![2],
                ..three()
            },
        ),
        world(
            "two processes + exported token",
            World {
                processes: 2,
                prefix: answered_probe(1).to_vec(),
                budget: Budget { writes: 1, others: 1, probes: 3, reads: 2, exports: 1, ..none },
                probed: vec![(0, 0), (1, 0), (1, 1)],
                ..World::default()
            },
        ),
        world(
            "cancel + two writes",
            World { budget: Budget { writes: 2, probes: 2, reads: 1, drops: 1, ..none }, tasks: 2, ..World::default() },
        ),
        world(
            "cancel + crash of the primary + promotion",
            World {
                prefix: answered_probe(1).to_vec(),
                budget: Budget {
                    writes: 1,
                    probes: 2,
                    reads: 1,
                    drops: 1,
                    crashes: 1,
                    promotions: 1,
                    opens: 1,
                    ..none
                },
                crashing: vec![0],
                probed: vec![(0, 0), (0, 1)],
                ..World::default()
            },
        ),
        world(
            "clones used by two tasks",
            World {
                prefix: answered_probe(1).to_vec(),
                budget: Budget { writes: 1, others: 1, probes: 2, reads: 2, ..none },
                tasks: 2,
                parking: true,
                ..World::default()
            },
        ),
        world(
            "clones on two replicas",
            World {
                prefix: steps(&[&answered_probe(1), &answered_probe(2)]),
                budget: Budget { others: 1, probes: 2, reads: 3, ..none },
                tasks: 2,
                parking: true,
                targets: vec![1, 2],
                probed: vec![(0, 1), (0, 2)],
                ..three()
            },
        ),
        world(
            "bounded reads + crash + promotion",
            World {
                prefix: steps(&[&[Other(0)], &answered_probe(0)]),
                budget: Budget { others: 1, probes: 3, reads: 1, crashes: 1, promotions: 1, opens: 1, ..none },
                classes: vec![Class::Bounded],
                promotable: vec![1],
                crashing: vec![1],
                targets: vec![1],
                probed: vec![(0, 0), (0, 1)],
                ..World::default()
            },
        ),
        world(
            "an old primary that goes on",
            World {
                prefix: steps(&[&answered_probe(0), &answered_probe(1), &[Promote(1)]]),
                budget: Budget { writes: 1, others: 2, probes: 2, reads: 2, opens: 1, moves: 1, ..none },
                unfenced: true,
                targets: vec![0, 1],
                probed: vec![(0, 0), (0, 1)],
                ..World::default()
            },
        ),
    ]
}
