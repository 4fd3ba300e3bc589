//! Which history a position belongs to, and which life of which server said so.

use std::fmt;

use crate::Lsn;

/// The identity of a PostgreSQL cluster (`pg_control_system()`): the primary and all its physical
/// replicas share it, and so do both sides of a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SystemId(pub u64);

/// A timeline of a cluster: a promotion starts the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timeline(pub u32);

/// One line of history: positions are comparable within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Branch {
    /// The cluster.
    pub system: SystemId,
    /// The timeline within it.
    pub timeline: Timeline,
}

/// A position on a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The line of history.
    pub branch: Branch,
    /// The place on it.
    pub lsn: Lsn,
}

/// A running server as it names itself: the cluster, when the server started, and the port it listens on.
///
/// Equal instances are one server. The converse of a restart does not hold: a server whose backend was
/// killed re-initialises itself under the same start time, so being of one instance is never enough to
/// trust a connection (see [`Epoch`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    /// The cluster that the server belongs to.
    pub system: SystemId,
    /// `pg_postmaster_start_time()`, in microseconds since 1970.
    pub started_us: i64,
    /// The server's own `port` setting, which tells apart two servers started in the same microsecond.
    pub port: u16,
}

/// One life of one server as one of our probe connections saw it; never used twice in a process.
///
/// Positions of two epochs are never merged: a server that crashed may come back behind what it had shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// A server of the configuration, by its place in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

impl NodeId {
    /// The node that the configuration calls the primary.
    pub const PRIMARY: Self = Self(0);

    /// The node that the configuration lists as replica number `index`, counted from zero.
    #[must_use]
    pub const fn replica(index: u16) -> Self {
        Self(index.saturating_add(1))
    }

    /// The node at this place in lists of nodes.
    #[must_use]
    pub fn from_index(index: usize) -> Self {
        Self(u16::try_from(index).unwrap_or(u16::MAX))
    }

    /// The place in lists of nodes, the primary's being zero.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Whether the configuration calls this node the primary. Says nothing about what it is at present.
    #[must_use]
    pub const fn is_primary(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for NodeId {
    /// `primary`, `replica0`, `replica1` and so on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.checked_sub(1) {
            None => f.write_str("primary"),
            Some(replica) => write!(f, "replica{replica}"),
        }
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
