//! Worlds in which several things go wrong at once.

use crate::{Action, Budget, Class, World};

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
                budget: Budget {
                    writes: 1,
                    others: 1,
                    probes: 3,
                    reads: 2,
                    crashes: 1,
                    promotions: 1,
                    opens: 1,
                    ..none
                },
                promotable: vec![1],
                crashing: vec![1],
                probed: vec![(0, 0), (0, 1)],
                ..World::default()
            },
        ),
        world(
            "promotion + moving name",
            World {
                budget: Budget { writes: 1, others: 1, probes: 3, reads: 2, promotions: 1, moves: 1, opens: 1, ..none },
                promotable: vec![1],
                targets: vec![0, 2],
                probed: vec![(0, 0), (0, 2)],
                ..three()
            },
        ),
        world(
            "two processes + exported token",
            World {
                processes: 2,
                budget: Budget { writes: 1, others: 1, probes: 3, reads: 2, exports: 1, ..none },
                probed: vec![(0, 0), (0, 1), (1, 0), (1, 1)],
                ..World::default()
            },
        ),
        world(
            "cancel + two writes",
            World { budget: Budget { writes: 2, probes: 2, reads: 2, drops: 1, ..none }, tasks: 2, ..World::default() },
        ),
        world(
            "clones used by two tasks",
            World {
                budget: Budget { writes: 1, others: 1, probes: 2, reads: 2, ..none },
                tasks: 2,
                parking: true,
                prefix: vec![Action::ProbeSent(0, 1), Action::ProbeAnswered(0, 0), Action::ProbeHeard(0, 0)],
                ..World::default()
            },
        ),
        world(
            "bounded reads + crash + promotion",
            World {
                budget: Budget { others: 2, probes: 3, reads: 1, crashes: 1, promotions: 1, opens: 1, ..none },
                classes: vec![Class::Bounded],
                promotable: vec![1],
                targets: vec![1, 2],
                ..three()
            },
        ),
    ]
}
