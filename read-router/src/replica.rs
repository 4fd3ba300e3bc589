//! What a replica is for.

use std::sync::Arc;

use crate::ClassName;

/// What one replica serves, and how much of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReplicaConfig {
    pub(crate) weight: u32,
    pub(crate) classes: Classes,
    pub(crate) group: Option<Arc<str>>,
}

/// A set of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Classes(u8);

impl ReplicaConfig {
    /// A replica of weight 1, in no group, that serves every class.
    #[must_use]
    pub const fn new() -> Self {
        Self { weight: 1, classes: Classes::ALL, group: None }
    }

    /// How much of the load it takes, against the other replicas that may serve a read. Defaults to 1.
    ///
    /// With weights 3 and 1 the first gets three reads of four while both are idle, and under load three times as many at
    /// once. Zero is taken for 1: a replica that is to serve nothing is not listed.
    #[must_use]
    pub const fn weight(mut self, weight: u32) -> Self {
        self.weight = if weight == 0 { 1 } else { weight };
        self
    }

    /// Serves these classes only. Defaults to all.
    ///
    /// A read prefers those replicas that serve the fewest classes besides its own: where one serves `Eventual` only, as
    /// a replica for reports does, `Eventual` reads go there for as long as it is up.
    #[must_use]
    pub fn only(mut self, classes: impl IntoIterator<Item = ClassName>) -> Self {
        self.classes = Classes(classes.into_iter().fold(0, |all, class| all | Classes::bit(class)));
        self
    }

    /// Belongs to the group of this name, for reads that [ask for it](crate::ReadOptions::in_group). Defaults to none.
    ///
    /// It serves other reads too.
    #[must_use]
    pub fn group(mut self, name: impl Into<Arc<str>>) -> Self {
        self.group = Some(name.into());
        self
    }
}

impl Default for ReplicaConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl Classes {
    const ALL: Self = Self(0b1110);

    const fn bit(class: ClassName) -> u8 {
        1 << class as u8
    }

    pub(crate) const fn contains(self, class: ClassName) -> bool {
        self.0 & Self::bit(class) != 0
    }

    /// How many there are.
    pub(crate) const fn len(self) -> u32 {
        (self.0 & Self::ALL.0).count_ones()
    }
}
