//! Up to where the primary shows what replicas show.

use crate::{Branch, Position};

/// A replica shows a commit a moment before its primary does. Its commits up to a position all have transaction numbers
/// below the `xmax` that it had later; once the primary's `xmin` has reached that number, the primary shows them too,
/// from then on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Visible {
    /// The primary shows everything up to here.
    upto: Option<Position>,
    /// On this branch every transaction below this number has ended.
    ended: Option<(Branch, u64)>,
    /// Positions of replicas that the primary may not show yet, with the number that it must reach.
    waiting: Vec<(Position, u64)>,
}

/// While a long transaction holds the primary's `xmin` back, no more positions than this are kept.
const KEPT: usize = 64;

impl Visible {
    pub(crate) fn has(&self, position: Position) -> bool {
        self.upto.is_some_and(|upto| upto.branch == position.branch && position.lsn <= upto.lsn)
    }

    /// Whether every transaction below `xid` has ended on `branch`'s primary.
    pub(crate) fn has_ended(&self, branch: Branch, xid: u64) -> bool {
        self.ended.is_some_and(|(on, ended)| on == branch && xid <= ended)
    }

    /// A replica was at `position` and later showed nothing at or above `xid`.
    pub(crate) fn shown(&mut self, position: Position, xid: u64) {
        if self.has(position) || self.waiting.iter().any(|(p, _)| *p == position) {
            return;
        }
        if self.waiting.len() >= KEPT {
            // Every other one: what is asked for is then found at the next.
            let mut keep = false;
            self.waiting.sort_unstable();
            self.waiting.retain(|_| {
                keep = !keep;
                keep
            });
        }
        self.waiting.push((position, xid));
        self.settle();
    }

    /// On the primary every transaction below `xid` has ended.
    pub(crate) fn ended(&mut self, branch: Branch, xid: u64) {
        self.ended = self.ended.max(Some((branch, xid)));
        self.settle();
    }

    fn settle(&mut self) {
        let Some((branch, ended)) = self.ended else { return };
        let upto = &mut self.upto;
        self.waiting.retain(|(position, xid)| {
            if position.branch == branch && *xid <= ended {
                *upto = (*upto).max(Some(*position));
                return false;
            }
            // Of an older branch no primary will say more; of another cluster nobody asks.
            position.branch.system == branch.system && position.branch >= branch
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lsn, SystemId, Timeline};

    fn at(timeline: u32, lsn: u64) -> Position {
        Position { branch: branch(timeline), lsn: Lsn::new(lsn) }
    }

    fn branch(timeline: u32) -> Branch {
        Branch { system: SystemId(1), timeline: Timeline(timeline) }
    }

    #[test]
    fn the_primary_shows_what_ended_there() {
        let mut visible = Visible::default();
        visible.shown(at(1, 100), 7);
        assert!(!visible.has(at(1, 100)), "the primary has not spoken");
        visible.ended(branch(1), 6);
        assert!(!visible.has(at(1, 100)), "a transaction below 7 may still run");
        visible.ended(branch(1), 7);
        assert!(visible.has(at(1, 100)) && visible.has(at(1, 99)) && !visible.has(at(1, 101)));
        visible.ended(branch(1), 5);
        visible.shown(at(1, 120), 7);
        assert!(visible.has(at(1, 120)), "what has ended stays so");
        assert!(!visible.has(at(2, 100)), "of another branch nothing is said");
    }

    #[test]
    fn a_long_transaction_does_not_make_it_grow() {
        let mut visible = Visible::default();
        visible.ended(branch(1), 1);
        for lsn in 0..10_000 {
            visible.shown(at(1, lsn), lsn);
        }
        assert!(visible.waiting.len() <= KEPT);
        visible.ended(branch(1), 9_000);
        assert!(visible.has(at(1, 1)));
        visible.ended(branch(2), 1);
        visible.shown(at(1, 20_000), 1);
        assert!(visible.waiting.is_empty(), "an old branch's are dropped");
    }
}
