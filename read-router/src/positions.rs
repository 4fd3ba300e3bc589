//! One position for each branch.

use crate::{
    Branch, Lsn, Position,
    mutants::{Rule, is_off},
};

/// At most one position for each branch, in the order of branches. Only ever advances.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Positions(Vec<Position>);

impl Positions {
    pub(crate) const NONE: Self = Self(Vec::new());

    pub(crate) fn as_slice(&self) -> &[Position] {
        &self.0
    }

    pub(crate) fn of(&self, branch: Branch) -> Option<Lsn> {
        self.0.iter().find(|p| p.branch == branch).map(|p| p.lsn)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn advance(&mut self, to: Position) {
        if is_off(Rule::MergePerBranch)
            && let Some(first) = self.0.first_mut()
        {
            *first = if to.lsn > first.lsn { to } else { *first };
            return;
        }
        match self.0.binary_search_by_key(&to.branch, |p| p.branch) {
            Ok(at) => self.0[at].lsn = self.0[at].lsn.max(to.lsn),
            Err(at) => self.0.insert(at, to),
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for position in &other.0 {
            self.advance(*position);
        }
    }

    /// Keeps the positions for which `keep` holds; it may lower them first.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&mut Position) -> bool) {
        self.0.retain_mut(keep);
    }

    pub(crate) fn same_cluster(&self, other: &Self) -> bool {
        match (self.0.first(), other.0.first()) {
            (Some(mine), Some(theirs)) => mine.branch.system == theirs.branch.system,
            _ => true,
        }
    }
}
