//! What is not promised, and documented so: in each of these worlds a read misses something.

use crate::{
    Action::{Follow, Other, Promote, Replay},
    Budget, World,
    combined::Combination,
    steps::{WRITE, answered_probe, steps},
};

/// All of them.
#[must_use]
pub fn all() -> Vec<Combination> {
    let none = Budget::default();
    let world = |name, world| Combination { name, world };
    vec![
        world(
            "rule 1: a fallback after a replica read, before the commit is acknowledged to anyone",
            World {
                budget: Budget { others: 1, probes: 1, reads: 2, ..none },
                hides: true,
                unexcused: true,
                probed: vec![(0, 1)],
                ..World::default()
            },
        ),
        world(
            "rule 6: a fallback to the old primary after a read on a promoted replica, before the replica was heard again",
            World {
                prefix: answered_probe(1).to_vec(),
                budget: Budget { others: 1, reads: 2, promotions: 1, ..none },
                unexcused: true,
                ..World::default()
            },
        ),
        world(
            "rule 12: an ordinary role, which does not see that a standby follows a new primary",
            World {
                servers: 3,
                names: &[0, 1, 2],
                prefix: steps(&[&[Promote(1), Other(1), Follow(2, 1), Replay(2)], &WRITE]),
                budget: Budget { probes: 2, reads: 1, ..none },
                ordinary_role: true,
                targets: vec![2],
                probed: vec![(0, 0), (0, 2)],
                ..World::default()
            },
        ),
        world(
            "rule 13: asynchronous commits, lost in a crash and their positions used again",
            World {
                prefix: steps(&[&WRITE, &answered_probe(0)]),
                budget: Budget { others: 1, probes: 1, reads: 1, crashes: 1, ..none },
                asynchronous: true,
                crashing: vec![0],
                targets: vec![1],
                probed: vec![(0, 1)],
                ..World::default()
            },
        ),
    ]
}
