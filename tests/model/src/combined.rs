//! Worlds in which several things go wrong at once.

use crate::{
    Action::{Follow, Move, Open, Other, Promote, Replay},
    Budget, Class, World,
    steps::{WRITE, answered_probe, answered_probe_by, steps, whole_read},
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
    [failovers(), floors(), sessions()].concat()
}

fn two(name: &'static str, world: World) -> Combination {
    Combination { name, world }
}

fn three(name: &'static str, world: World) -> Combination {
    Combination { name, world: World { servers: 3, names: &[0, 1, 2], ..world } }
}

fn failovers() -> Vec<Combination> {
    let none = Budget::default();
    vec![
        two(
            "crash + promotion",
            World {
                prefix: steps(&[&WRITE, &[Replay(1)], &answered_probe(0), &answered_probe(1)]),
                budget: Budget { probes: 2, reads: 2, crashes: 1, promotions: 1, opens: 1, ..none },
                promotable: vec![1],
                crashing: vec![1],
                probed: vec![(0, 1)],
                ..World::default()
            },
        ),
        three(
            "promotion + moving name",
            World {
                prefix: steps(&[&answered_probe(0), &answered_probe(2)]),
                budget: Budget { writes: 1, probes: 2, reads: 1, promotions: 1, moves: 1, opens: 1, ..none },
                promotable: vec![1],
                targets: vec![0, 2],
                probed: vec![(0, 0), (0, 2)],
                ..World::default()
            },
        ),
        three(
            "two promotions",
            World {
                prefix: steps(&[&WRITE, &answered_probe(0), &answered_probe(1), &[Promote(1), Other(1)]]),
                budget: Budget { others: 1, probes: 3, reads: 1, promotions: 1, ..none },
                promotable: vec![2],
                ..World::default()
            },
        ),
        two(
            "an old primary that goes on",
            World {
                prefix: steps(&[&answered_probe(0), &answered_probe(1), &[Promote(1)]]),
                budget: Budget { others: 2, probes: 2, reads: 2, opens: 1, moves: 1, ..none },
                unfenced: true,
                targets: vec![0, 1],
                probed: vec![(0, 0), (0, 1)],
                ..World::default()
            },
        ),
        two(
            "bounded reads + crash + promotion",
            World {
                prefix: steps(&[&[Other(0)], &answered_probe(0)]),
                budget: Budget { others: 1, probes: 3, reads: 1, crashes: 1, promotions: 1, ..none },
                classes: vec![Class::Bounded],
                promotable: vec![1],
                crashing: vec![1],
                targets: vec![1],
                probed: vec![(0, 0), (0, 1)],
                ..World::default()
            },
        ),
    ]
}

/// A read on a node whose probe connection is then lost, or which goes over to another timeline.
fn floors() -> Vec<Combination> {
    let none = Budget::default();
    vec![
        three(
            "floor on a discarded timeline + probe connection lost",
            World {
                prefix: steps(&[
                    &[Other(0), Replay(1)],
                    &answered_probe(0),
                    &answered_probe(1),
                    &whole_read(Class::Strict, 1),
                    &[Promote(2), Move(2), Open(0, 0)],
                ]),
                budget: Budget { probes: 2, reads: 1, failures: 2, ..none },
                targets: vec![0, 2],
                ..World::default()
            },
        ),
        three(
            "two reads on a node that follows a promotion",
            World {
                prefix: steps(&[
                    &answered_probe(0),
                    &answered_probe(2),
                    &[Promote(1), Other(1), Follow(2, 1), Replay(2)],
                ]),
                budget: Budget { probes: 1, reads: 3, failures: 1, ..none },
                tasks: 2,
                targets: vec![0, 2],
                probed: vec![(0, 2)],
                ..World::default()
            },
        ),
        three(
            "floor on one of two new primaries + write on the other",
            World {
                prefix: steps(&[
                    &[Other(0), Replay(1)],
                    &answered_probe(1),
                    &whole_read(Class::Strict, 1),
                    &[Promote(2), Move(2), Open(0, 0), Promote(1)],
                ]),
                budget: Budget { writes: 1, probes: 1, reads: 1, ..none },
                targets: vec![0],
                probed: vec![(0, 1)],
                ..World::default()
            },
        ),
        three(
            "promotion + probe connection lost",
            World {
                prefix: steps(&[&answered_probe(0), &answered_probe(1), &answered_probe(2), &[Promote(1)]]),
                budget: Budget { others: 1, probes: 2, reads: 2, failures: 1, ..none },
                targets: vec![0, 1, 2],
                probed: vec![(0, 0), (0, 1)],
                ..World::default()
            },
        ),
    ]
}

fn sessions() -> Vec<Combination> {
    let none = Budget::default();
    vec![
        two(
            "two processes + exported token",
            World {
                processes: 2,
                prefix: answered_probe(1).to_vec(),
                budget: Budget { writes: 1, probes: 3, reads: 1, exports: 1, ..none },
                probed: vec![(0, 0), (1, 0), (1, 1)],
                ..World::default()
            },
        ),
        two(
            "cancel + two writes",
            World { budget: Budget { writes: 2, probes: 2, reads: 1, drops: 1, ..none }, tasks: 2, ..World::default() },
        ),
        two(
            "cancel + crash of the primary",
            World {
                prefix: answered_probe(1).to_vec(),
                budget: Budget { writes: 1, probes: 2, reads: 1, drops: 1, crashes: 1, opens: 1, ..none },
                crashing: vec![0],
                probed: vec![(0, 0), (0, 1)],
                ..World::default()
            },
        ),
        two(
            "clones used by two tasks",
            World {
                prefix: answered_probe(1).to_vec(),
                budget: Budget { writes: 1, probes: 2, reads: 2, ..none },
                tasks: 2,
                parking: true,
                ..World::default()
            },
        ),
        two(
            "a replica shows it first + fallback + promotion",
            World {
                prefix: steps(&[
                    &answered_probe(0),
                    &answered_probe(1),
                    &[Other(0), Replay(1)],
                    &whole_read(Class::Strict, 1),
                ]),
                budget: Budget { others: 1, probes: 2, reads: 1, promotions: 1, moves: 1, opens: 1, ..none },
                hides: true,
                monotonic_fallback: true,
                promotable: vec![1],
                probed: vec![(0, 0), (0, 1)],
                ..World::default()
            },
        ),
        three(
            "slow replay + a node lost + another one",
            World {
                prefix: steps(&[&answered_probe(0), &answered_probe(1), &answered_probe(2)]),
                budget: Budget { others: 2, probes: 2, reads: 2, failures: 1, ..none },
                slow_replay: true,
                targets: vec![1, 2],
                probed: vec![(0, 1)],
                ..World::default()
            },
        ),
        two(
            "two processes + a token of what only a replica shows",
            World {
                processes: 2,
                prefix: steps(&[
                    &answered_probe(1),
                    &answered_probe_by(1, 1),
                    &[Other(0), Replay(1)],
                    &whole_read(Class::Strict, 1),
                ]),
                budget: Budget { others: 1, probes: 3, reads: 1, exports: 1, ..none },
                hides: true,
                monotonic_fallback: true,
                probed: vec![(0, 1), (1, 0), (1, 1)],
                ..World::default()
            },
        ),
        three(
            "clones on two replicas",
            World {
                prefix: steps(&[&answered_probe(1), &answered_probe(2)]),
                budget: Budget { others: 1, probes: 2, reads: 3, ..none },
                tasks: 2,
                parking: true,
                targets: vec![1, 2],
                probed: vec![(0, 1), (0, 2)],
                ..World::default()
            },
        ),
    ]
}
