//! What a session's reads on replicas have shown.

use crate::{
    Branch, Epoch, NodeId, Observation, Position, Role, Time, Topology,
    mutants::{Rule, is_off},
};

/// A read that ended on a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Floor {
    pub(crate) node: NodeId,
    pub(crate) epoch: Epoch,
    /// The branch that the read was proven on. It may have been promoted since; a later sample will tell.
    pub(crate) branch: Option<Branch>,
    pub(crate) ended_at: Time,
    /// Where the node was after the read, once it has said so. It shows a commit a moment before its position has
    /// passed it (the whole time that it takes to remove dropped files), so the read may have shown the record that
    /// begins here: another node must be past this. `None` if only a primary's sample can tell.
    pub(crate) at: Option<Position>,
    /// What that answer said of the transactions that it shows: all of them are below this number, the read's too.
    pub(crate) xid: Option<u64>,
    /// A sample of the primary sent after the read, where it is nearer than past `at`: all that is there was written before.
    pub(crate) bound: Option<Position>,
    /// Connections to the node that are out, on which more may be read: the read has no end yet.
    pub(crate) out: u32,
}

impl Floor {
    /// The nearest position that has certainly all that the read showed, on whatever node.
    pub(crate) fn passed(&self) -> Option<Position> {
        self.bound.or(self.at.map(past))
    }

    /// Whether the primary certainly shows what the read showed, wherever replicas are by now.
    pub(crate) fn is_shown(&self, topology: &Topology) -> bool {
        self.out == 0 && self.at.zip(self.xid).is_some_and(|(at, xid)| topology.has_ended(at.branch, xid))
    }
}

fn past(at: Position) -> Position {
    Position { lsn: at.lsn.next(), ..at }
}

/// What a read on a replica showed is at or below what the same life of that node shows later, but for the record that
/// it was replaying: a node that is past the later answer has that one too. So has one that has reached a sample of the
/// primary sent after the read, since a replica shows nothing that its primary does not have; that helps where nothing
/// more is written. Where the node's life is over before it was heard again, such a sample of its branch is a sound
/// substitute; one of a newer branch is not: what was shown may have been discarded, which is to be told.
pub(crate) fn resolve_floor(floor: &mut Floor, topology: &Topology) -> Option<Position> {
    if floor.out > 0 {
        return None;
    }
    let node = topology.node(floor.node)?;
    let is_life = |o: &Observation| o.epoch == floor.epoch || is_off(Rule::SameLife);
    let is_later = |o: &Observation| {
        let asked = if is_off(Rule::SentAfterRead) { o.received_at } else { o.sent_at };
        asked > floor.ended_at
    };
    let later = node.observation().filter(|o| is_life(o) && is_later(o));
    if let Some((later, branch)) = later.zip(floor.branch).filter(|_| is_off(Rule::LaterBranch)) {
        return Some(Position { branch, lsn: later.lsn });
    }
    let reached = later.and_then(Observation::position);
    let alive = node.epoch() == Some(floor.epoch);
    match (later, reached) {
        (Some(later), Some(reached)) if later.role == Role::Primary || is_off(Rule::PastPosition) => {
            return Some(reached);
        }
        (Some(later), Some(reached)) if floor.at.is_none() => {
            floor.at = Some(reached);
            floor.xid = later.xid;
        }
        // The next answer of that life will tell.
        (None, _) if alive && floor.at.is_none() => return None,
        _ => {}
    }
    let Some((at, passed)) = floor.at.map(|at| (at, past(at))) else {
        let surviving = topology.surviving().filter(|b| floor.branch.is_none_or(|f| f == *b))?;
        return Some(topology.first_sample_after(surviving, floor.ended_at)?.position());
    };
    let sample = topology.first_sample_after(at.branch, floor.ended_at).map(|s| s.position().min(passed));
    floor.bound = sample;
    let has_passed = |reached: Position| reached.branch != at.branch || sample.unwrap_or(passed).lsn <= reached.lsn;
    match reached {
        // Until then the node itself may serve the session's next read, and another one only once it is past `at`.
        Some(reached) if alive => has_passed(reached).then_some(sample.unwrap_or(passed)),
        _ if topology.surviving() == Some(at.branch) => sample,
        _ => Some(passed),
    }
}
