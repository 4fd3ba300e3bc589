//! Pieces of schedules.

use crate::{Action, Class};
use Action::{ProbeAnswered, ProbeHeard, ProbeSent, ReadAnswered, ReadHeard, Route, WriteDone, WriteHeard, WriteSent};

/// A write on the primary, acknowledged, while no other is under way.
pub(crate) const WRITE: [Action; 3] = [WriteSent, WriteDone(0), WriteHeard(0)];

/// A probe of a node by process 0 that is answered at once, while no other is under way.
pub(crate) fn answered_probe(node: usize) -> [Action; 3] {
    answered_probe_by(0, node)
}

pub(crate) fn answered_probe_by(process: usize, node: usize) -> [Action; 3] {
    [ProbeSent(process, node), ProbeAnswered(process, 0), ProbeHeard(process, 0)]
}

/// A probe whose two statements are answered one at a time.
pub(crate) fn two_step_probe(node: usize) -> [Action; 4] {
    [ProbeSent(0, node), ProbeAnswered(0, 0), ProbeAnswered(0, 0), ProbeHeard(0, 0)]
}

/// A read, all of it, while no other is under way.
pub(crate) fn whole_read(class: Class, target: usize) -> [Action; 3] {
    [Route(class, target), ReadAnswered(0), ReadHeard(0)]
}

pub(crate) fn steps(parts: &[&[Action]]) -> Vec<Action> {
    parts.concat()
}
