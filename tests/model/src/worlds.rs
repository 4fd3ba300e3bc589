//! One tiny world for each rule: with the rule off a promise breaks in it, with the rule on none does.

use crate::{Action, Budget, Class, World};
use Action::*;

/// A world and the rule that it is about.
#[derive(Clone, Debug)]
pub struct Case {
    /// The rule's number in `RULES.md`.
    pub number: u8,
    /// The switch.
    pub rule: &'static str,
    /// The world, with every rule on.
    pub world: World,
}

const NONE: Budget = Budget {
    writes: 0,
    others: 0,
    probes: 0,
    reads: 0,
    crashes: 0,
    promotions: 0,
    drops: 0,
    exports: 0,
    opens: 0,
    moves: 0,
    failures: 0,
    ticks: 0,
};

/// A probe of a node by process 0 that is answered at once, while no other is under way.
fn probe(node: usize) -> [Action; 3] {
    probe_by(0, node)
}

fn probe_by(process: usize, node: usize) -> [Action; 3] {
    [ProbeSent(process, node), ProbeAnswered(process, 0), ProbeHeard(process, 0)]
}

/// A write on the primary, acknowledged.
const WRITE: [Action; 3] = [WriteSent, WriteDone(0), WriteHeard(0)];

/// A read, all of it.
fn read(class: Class, target: usize) -> [Action; 3] {
    [Route(class, target), ReadAnswered(0), ReadHeard(0)]
}

fn steps(parts: &[&[Action]]) -> Vec<Action> {
    parts.concat()
}

/// The worlds of all rules, in the order of their numbers.
#[must_use]
pub fn all() -> Vec<Case> {
    [connections(), branches(), sessions(), tokens(), samples()].concat()
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
        prefix: steps(&[&WRITE, &[Replay(1)], &probe(0)]),
        targets: vec![1],
        probed: vec![(0, 1)],
        crashing: vec![1],
        ..two()
    };
    let trust = Budget { probes: 2, reads: 2, crashes: 1, opens: 1, ..NONE };
    let closed = Budget { probes: 2, reads: 1, crashes: 1, opens: 1, failures: 1, ..NONE };
    vec![
        case(2, "ConnectionTrust", World { budget: trust, ..crash.clone() }),
        case(3, "ClosedEpochs", World { budget: closed, late_answers: true, ..crash }),
    ]
}

/// Which line of history a position lies on.
fn branches() -> Vec<Case> {
    vec![
        case(
            4,
            "BranchOfMark",
            World {
                prefix: steps(&[&probe(0), &[Promote(1), Move(1), Open(0, 0)]]),
                budget: Budget { writes: 1, probes: 3, reads: 1, ..NONE },
                targets: vec![2],
                probed: vec![(0, 0), (0, 2)],
                ..three()
            },
        ),
        case(
            5,
            "GatedPrimary",
            World {
                budget: Budget { writes: 1, probes: 1, reads: 1, promotions: 1, moves: 1, opens: 1, ..NONE },
                targets: vec![0],
                probed: vec![(0, 0)],
                ..two()
            },
        ),
        case(
            5,
            "SwitchBound",
            World {
                prefix: steps(&[&WRITE, &probe(0), &probe(1), &[Promote(1)]]),
                budget: Budget { others: 1, probes: 2, reads: 1, ..NONE },
                targets: vec![0, 2],
                probed: vec![(0, 1), (0, 2)],
                ..three()
            },
        ),
        case(
            6,
            "LaterBranch",
            World {
                prefix: probe(1).to_vec(),
                budget: Budget { others: 1, probes: 1, reads: 2, promotions: 1, ..NONE },
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
                budget: Budget { probes: 2, reads: 1, ..NONE },
                targets: vec![2],
                probed: vec![(0, 2)],
                two_steps: true,
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
            7,
            "PrimaryReads",
            World {
                budget: Budget { others: 1, probes: 2, reads: 2, ..NONE },
                classes: vec![Class::Strict, Class::Plain],
                ..two()
            },
        ),
        case(
            8,
            "InDoubt",
            World { budget: Budget { writes: 1, drops: 1, probes: 3, reads: 1, ..NONE }, tasks: 2, ..two() },
        ),
        case(9, "SentAfterRead", World { budget: Budget { others: 1, probes: 3, reads: 2, ..NONE }, ..pair.clone() }),
        case(
            9,
            "SameLife",
            World {
                prefix: steps(&[&[Other(0), Replay(1)], &probe(1)]),
                budget: Budget { probes: 2, reads: 2, crashes: 1, opens: 1, ..NONE },
                targets: vec![1],
                probed: vec![(0, 1)],
                ..two()
            },
        ),
        case(
            9,
            "FloorEach",
            World {
                prefix: steps(&[&probe(1), &probe(2)]),
                budget: Budget { others: 1, probes: 1, reads: 3, ..NONE },
                classes: vec![Class::Strict, Class::Eventual],
                ..pair
            },
        ),
    ]
}

/// What leaves a process.
fn tokens() -> Vec<Case> {
    let handed = Budget { exports: 1, probes: 2, reads: 1, ..NONE };
    let pair = World { processes: 2, budget: handed, targets: vec![1], ..two() };
    vec![
        case(
            9,
            "ExportedFloors",
            World {
                prefix: steps(&[&[Other(0), Replay(1)], &probe(1), &read(Class::Strict, 1)]),
                targets: vec![2],
                probed: vec![(0, 1), (1, 2)],
                ..World { servers: 3, names: &[0, 1, 2], ..pair.clone() }
            },
        ),
        case(
            10,
            "LaterCap",
            World {
                prefix: steps(&[&probe_by(1, 0), &WRITE, &probe(0)]),
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
                    &probe(1),
                    &[Promote(1), Other(1)],
                    &read(Class::Strict, 1),
                    &probe(1),
                    &read(Class::Plain, 0),
                ]),
                budget: Budget { probes: 2, reads: 1, ..NONE },
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
                budget: Budget { others: 1, probes: 3, reads: 1, ..NONE },
                classes: vec![Class::Bounded],
                targets: vec![2],
                ..three()
            },
        ),
        case(
            13,
            "Quarantine",
            World {
                prefix: steps(&[&[Other(0), Replay(1)], &probe(1), &[Crash(0, true), Open(0, 0)], &probe(0)]),
                budget: Budget { writes: 1, probes: 3, reads: 1, ..NONE },
                targets: vec![1],
                asynchronous: true,
                ..two()
            },
        ),
        case(
            14,
            "StrictlyLater",
            World { budget: Budget { writes: 1, probes: 2, reads: 1, ticks: 3, ..NONE }, coarse: true, ..two() },
        ),
        case(15, "JoinUnsent", World { budget: Budget { writes: 1, probes: 2, reads: 1, ..NONE }, tasks: 2, ..two() }),
        case(
            15,
            "SamePrimary",
            World {
                names: &[0, 0],
                prefix: steps(&[&probe(0), &probe(1), &[Promote(1), Move(1)]]),
                budget: Budget { others: 1, probes: 2, reads: 1, failures: 1, ..NONE },
                classes: vec![Class::Bounded],
                targets: vec![1],
                probed: vec![(0, 0), (0, 1)],
                ..two()
            },
        ),
    ]
}

/// A probe by process 0 whose statements are answered one at a time.
fn two_step_probe(node: usize) -> [Action; 4] {
    [ProbeSent(0, node), ProbeAnswered(0, 0), ProbeAnswered(0, 0), ProbeHeard(0, 0)]
}
