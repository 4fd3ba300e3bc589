//! One tiny world for each rule: with the rule off a promise breaks in it, with the rule on none does.

use crate::{
    Action::{Crash, Follow, Move, Open, Other, ProbeFailed, Promote, Replay},
    Budget, Class, World,
    steps::{WRITE, answered_probe, answered_probe_by, steps, two_step_probe, whole_read},
};

/// A world and the rule that it is about.
#[derive(Clone, Debug)]
pub struct Case {
    /// The rule's number in `RULES.md`; 16 was found here.
    pub number: u8,
    /// The switch.
    pub rule: &'static str,
    /// The world, with every rule on.
    pub world: World,
}

/// The worlds of all rules, in the order of their numbers.
#[must_use]
pub fn all() -> Vec<Case> {
    let mut all = [connections(), branches(), sessions(), tokens(), samples()].concat();
    all.sort_by_key(|case| case.number);
    all
}

fn two() -> World {
    World::default()
}

fn three() -> World {
    World { servers: 3, names: &[0, 1, 2], ..World::default() }
}

fn case(number: u8, rule: &'static str, world: World) -> Case {
    Case { number, rule, world }
}

/// Which life of a server a connection belongs to.
fn connections() -> Vec<Case> {
    let crash = World {
        prefix: steps(&[&WRITE, &[Replay(1)], &answered_probe(0)]),
        targets: vec![1],
        probed: vec![(0, 1)],
        crashing: vec![1],
        ..two()
    };
    let trust = Budget { probes: 2, reads: 2, crashes: 1, opens: 1, ..Budget::default() };
    let closed = Budget { probes: 2, reads: 1, crashes: 1, opens: 1, failures: 1, ..Budget::default() };
    vec![
        case(2, "ConnectionTrust", World { budget: trust, ..crash.clone() }),
        case(3, "ClosedEpochs", World { budget: closed, late_answers: true, ..crash.clone() }),
        case(3, "EpochsApart", World { budget: trust, ..crash }),
    ]
}

/// Which line of history a position lies on.
fn branches() -> Vec<Case> {
    vec![
        case(
            4,
            "BranchOfMark",
            World {
                prefix: steps(&[&answered_probe(0), &[Promote(1), Move(1), Open(0, 0)]]),
                budget: Budget { writes: 1, probes: 3, reads: 1, ..Budget::default() },
                targets: vec![2],
                probed: vec![(0, 0), (0, 2)],
                ..three()
            },
        ),
        case(
            5,
            "GatedPrimary",
            World {
                budget: Budget {
                    writes: 1,
                    probes: 1,
                    reads: 1,
                    promotions: 1,
                    moves: 1,
                    opens: 1,
                    ..Budget::default()
                },
                targets: vec![0],
                probed: vec![(0, 0)],
                ..two()
            },
        ),
        case(
            5,
            "SwitchBound",
            World {
                prefix: steps(&[&WRITE, &answered_probe(0), &answered_probe(1), &[Promote(1)]]),
                budget: Budget { others: 1, probes: 2, reads: 1, ..Budget::default() },
                targets: vec![0, 2],
                probed: vec![(0, 1), (0, 2)],
                ..three()
            },
        ),
        case(
            6,
            "LaterBranch",
            World {
                prefix: answered_probe(1).to_vec(),
                budget: Budget { others: 1, probes: 1, reads: 2, promotions: 1, ..Budget::default() },
                probed: vec![(0, 1)],
                promotable: vec![1],
                ..two()
            },
        ),
        case(
            12,
            "PositionFirst",
            World {
                prefix: steps(&[&WRITE, &two_step_probe(0), &[Promote(1), Other(1)]]),
                budget: Budget { probes: 2, reads: 1, ..Budget::default() },
                targets: vec![2],
                probed: vec![(0, 2)],
                two_steps: true,
                ..three()
            },
        ),
        case(
            12,
            "OwnWord",
            World {
                prefix: steps(&[
                    &answered_probe(2),
                    &WRITE,
                    &answered_probe(0),
                    &[Promote(1), Other(1), ProbeFailed(0, 0), Follow(2, 1), Replay(2)],
                ]),
                budget: Budget { probes: 2, reads: 1, failures: 1, ..Budget::default() },
                targets: vec![2],
                probed: vec![(0, 2)],
                ordinary_role: true,
                ..three()
            },
        ),
    ]
}

/// What a session has done and seen.
fn sessions() -> Vec<Case> {
    let pair = World { targets: vec![1, 2], probed: vec![(0, 1), (0, 2)], ..three() };
    vec![
        case(
            1,
            "Settled",
            World {
                budget: Budget { others: 1, writes: 1, probes: 3, reads: 2, ..Budget::default() },
                probed: vec![(0, 0), (0, 1)],
                hides: true,
                monotonic_fallback: true,
                ..two()
            },
        ),
        case(
            16,
            "PastPosition",
            World {
                prefix: steps(&[&answered_probe(1), &answered_probe(2)]),
                budget: Budget { others: 2, probes: 2, reads: 2, ..Budget::default() },
                slow_replay: true,
                ..pair.clone()
            },
        ),
        case(
            7,
            "PrimaryReads",
            World {
                budget: Budget { others: 1, probes: 2, reads: 2, ..Budget::default() },
                classes: vec![Class::Strict, Class::Plain],
                ..two()
            },
        ),
        case(
            8,
            "InDoubt",
            World {
                budget: Budget { writes: 1, drops: 1, probes: 3, reads: 1, ..Budget::default() },
                tasks: 2,
                ..two()
            },
        ),
        case(
            9,
            "SentAfterRead",
            World {
                prefix: answered_probe(2).to_vec(),
                budget: Budget { others: 2, probes: 2, reads: 2, ..Budget::default() },
                ..pair.clone()
            },
        ),
        case(
            9,
            "SameLife",
            World {
                prefix: steps(&[&[Other(0), Replay(1)], &answered_probe(1)]),
                budget: Budget { probes: 2, reads: 2, crashes: 1, opens: 1, ..Budget::default() },
                targets: vec![1],
                probed: vec![(0, 1)],
                ..two()
            },
        ),
        case(
            9,
            "FloorEach",
            World {
                prefix: steps(&[&answered_probe(1), &answered_probe(2)]),
                budget: Budget { others: 1, probes: 1, reads: 3, ..Budget::default() },
                classes: vec![Class::Strict, Class::Eventual],
                ..pair
            },
        ),
    ]
}

/// What leaves a process.
fn tokens() -> Vec<Case> {
    let handed = Budget { exports: 1, probes: 2, reads: 1, ..Budget::default() };
    let pair = World { processes: 2, budget: handed, targets: vec![1], ..two() };
    vec![
        case(
            9,
            "ExportedFloors",
            World {
                prefix: steps(&[&[Other(0), Replay(1)], &answered_probe(1), &whole_read(Class::Strict, 1)]),
                targets: vec![2],
                probed: vec![(0, 1), (1, 2)],
                ..World { servers: 3, names: &[0, 1, 2], ..pair.clone() }
            },
        ),
        case(
            10,
            "LaterCap",
            World {
                prefix: steps(&[&answered_probe_by(1, 0), &WRITE, &answered_probe(0)]),
                probed: vec![(1, 0), (1, 1)],
                ..pair.clone()
            },
        ),
        case(
            15,
            "UnresolvedIsUnknown",
            World { budget: Budget { writes: 1, ..handed }, probed: vec![(0, 0), (1, 1)], ..pair },
        ),
        case(
            15,
            "MergePerBranch",
            World {
                prefix: steps(&[
                    &[Other(0), Other(0)],
                    &answered_probe(1),
                    &[Promote(1), Other(1)],
                    &whole_read(Class::Strict, 1),
                    &answered_probe(1),
                    &whole_read(Class::Plain, 0),
                ]),
                budget: Budget { probes: 2, reads: 1, ..Budget::default() },
                classes: vec![Class::Strict, Class::Plain],
                probed: vec![(0, 0), (0, 1)],
                ..two()
            },
        ),
    ]
}

/// What a sample of a primary says.
fn samples() -> Vec<Case> {
    vec![
        case(
            11,
            "HighestTimeline",
            World {
                prefix: vec![Promote(1)],
                budget: Budget { others: 1, probes: 3, reads: 1, ..Budget::default() },
                classes: vec![Class::Bounded],
                targets: vec![2],
                ..three()
            },
        ),
        case(
            13,
            "Quarantine",
            World {
                prefix: steps(&[
                    &[Other(0), Replay(1)],
                    &answered_probe(1),
                    &[Crash(0, true), Open(0, 0)],
                    &answered_probe(0),
                ]),
                budget: Budget { writes: 1, probes: 3, reads: 1, ..Budget::default() },
                targets: vec![1],
                asynchronous: true,
                ..two()
            },
        ),
        case(
            14,
            "StrictlyLater",
            World {
                budget: Budget { writes: 1, probes: 2, reads: 1, ticks: 3, ..Budget::default() },
                coarse: true,
                ..two()
            },
        ),
        case(
            15,
            "JoinUnsent",
            World { budget: Budget { writes: 1, probes: 2, reads: 1, ..Budget::default() }, tasks: 2, ..two() },
        ),
        case(
            15,
            "SamePrimary",
            World {
                names: &[0, 0],
                prefix: steps(&[&answered_probe(0), &answered_probe(1), &[Promote(1), Move(1)]]),
                budget: Budget { others: 1, probes: 2, reads: 1, failures: 1, ..Budget::default() },
                classes: vec![Class::Bounded],
                targets: vec![1],
                probed: vec![(0, 0), (0, 1)],
                ..two()
            },
        ),
    ]
}
