//! Where a call goes, and why.

use std::time::Duration;

use crate::{Branch, Epoch, Instance, Lsn, NodeId, ReadClass, Time};

/// The outcome of a choice. Each carries its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// To a node that is proven good enough.
    Replica(NodeId, Proof),
    /// To the primary.
    Primary(PrimaryReason),
    /// Nowhere yet: a newer observation may help. Choose again when one has come, or at `until`.
    Wait {
        /// The end of the wait budget.
        until: Time,
        /// Whose observation may help.
        ask: Ask,
    },
    /// Nowhere: no replica can serve the class, and the caller wants an error rather than the primary.
    Refused(PrimaryReason),
}

/// Whose observation a waiting read needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ask {
    /// The primary's position: it turns a write into a token.
    Primary,
    /// The replicas' positions.
    Replicas,
    /// Both.
    All,
}

/// What proves that a node may serve a read.
///
/// It holds for connections that were open before [`sent_at`](Self::sent_at) and belong to
/// [`instance`](Self::instance); see [`connection_trusts`](crate::connection_trusts).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Proof {
    /// The life of the node that was observed.
    pub epoch: Epoch,
    /// The server that was observed.
    pub instance: Instance,
    /// A moment before the observation was made.
    pub sent_at: Time,
    /// The line of history that the node was on; `None` if it would not say (`Eventual` only).
    pub branch: Option<Branch>,
    /// The position that it had reached.
    pub lsn: Lsn,
    /// Everything acknowledged before this moment is there; `None` if no kept sample says so.
    pub covered: Option<Time>,
    /// The node is the primary under another name: a read there is a contact with the primary.
    pub is_primary: bool,
    /// The session has read on this life of the node since the observation: only a connection that certainly
    /// belongs to the same life may serve it, whatever position another one has reached.
    pub same_life: bool,
}

/// Where a call was served, and why there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Served {
    /// The node.
    pub node: NodeId,
    /// The class asked for; `None` for writes and for reads without one.
    pub class: Option<ReadClass>,
    /// Why it was the primary; `None` if a replica served it.
    pub reason: Option<PrimaryReason>,
    /// How long the call waited for an observation before it was sent.
    pub waited: Duration,
}

impl Served {
    /// A call that a replica served.
    #[must_use]
    pub const fn by_replica(node: NodeId, class: ReadClass, waited: Duration) -> Self {
        Self { node, class: Some(class), reason: None, waited }
    }

    /// A call that the primary served.
    #[must_use]
    pub const fn by_primary(class: Option<ReadClass>, reason: PrimaryReason, waited: Duration) -> Self {
        Self { node: NodeId::PRIMARY, class, reason: Some(reason), waited }
    }
}

/// Why a call goes to the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum PrimaryReason {
    /// The statement is not provably a read.
    NotARead,
    /// Nobody has said which class the read has.
    Unannotated,
    /// The caller asked for the primary.
    Asked,
    /// A transaction that may write.
    Transaction,
    /// The pool of the replica was not built to tell whose connections it hands out, so that a transaction on it proves
    /// nothing.
    Untracked,
    /// The isolation level does not exist on a replica (`SERIALIZABLE`).
    Isolation,
    /// No replica is configured, or none for the class or the group.
    NoReplica,
    /// No replica answers, or none is a trustworthy one; [`Standing`](crate::Standing) says which it is.
    NoneUp,
    /// Nothing is known of what the session has done.
    UnknownSession,
    /// The session has written within its [primary window](crate::Session::with_primary_window).
    RecentWrite,
    /// A write of the session has an unknown outcome and may still happen.
    InDoubt,
    /// A connection whose writes we do not see is out.
    GivenOut,
    /// No observation came in time to turn the session's last contact with the primary, or its last read on another
    /// replica, into a position.
    Unresolved,
    /// No replica had replayed what the session must see, in time.
    Behind,
    /// A replica has shown the session what the primary may not show yet; with monotonic fallback only.
    Unsettled,
    /// No replica was proven to lag less than the bound, in time.
    TooStale,
    /// The timeline of the replicas is not visible to this role: grant it `pg_monitor`.
    Unproven,
    /// What the session has seen lies on a branch of history that may be lost.
    BranchLost,
    /// The session's token is of another cluster.
    ForeignToken,
    /// The replica's connection failed, or the read on it did, in a way that another server may not.
    ReplicaFailed,
    /// The replica refused the statement as a write.
    Misrouted,
}

impl PrimaryReason {
    /// All reasons, in the order of their values.
    pub const ALL: [Self; 21] = [
        Self::NotARead,
        Self::Unannotated,
        Self::Asked,
        Self::Transaction,
        Self::Untracked,
        Self::Isolation,
        Self::NoReplica,
        Self::NoneUp,
        Self::UnknownSession,
        Self::RecentWrite,
        Self::InDoubt,
        Self::GivenOut,
        Self::Unresolved,
        Self::Behind,
        Self::Unsettled,
        Self::TooStale,
        Self::Unproven,
        Self::BranchLost,
        Self::ForeignToken,
        Self::ReplicaFailed,
        Self::Misrouted,
    ];

    /// The name in events and statistics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotARead => "not_a_read",
            Self::Unannotated => "unannotated",
            Self::Asked => "asked",
            Self::Transaction => "transaction",
            Self::Untracked => "untracked",
            Self::Isolation => "isolation",
            Self::NoReplica => "no_replica",
            Self::NoneUp => "none_up",
            Self::UnknownSession => "unknown_session",
            Self::RecentWrite => "recent_write",
            Self::InDoubt => "in_doubt",
            Self::GivenOut => "given_out",
            Self::Unresolved => "unresolved",
            Self::Behind => "behind",
            Self::Unsettled => "unsettled",
            Self::TooStale => "too_stale",
            Self::Unproven => "unproven",
            Self::BranchLost => "branch_lost",
            Self::ForeignToken => "foreign_token",
            Self::ReplicaFailed => "replica_failed",
            Self::Misrouted => "misrouted",
        }
    }

    /// What a caller that wanted no fallback is told.
    #[must_use]
    pub const fn explain(self) -> &'static str {
        match self {
            Self::NotARead => "the statement is not provably a read",
            Self::Unannotated => "the read has no class",
            Self::Asked => "the primary was asked for",
            Self::Transaction => "a transaction that may write runs on the primary",
            Self::Untracked => "a transaction on this replica's pool proves nothing; build the pool with a tracker",
            Self::Isolation => "replicas have no SERIALIZABLE isolation",
            Self::NoReplica => "no replica is configured for this class and group",
            Self::RecentWrite => "this session has just written",
            Self::NoneUp => "no configured replica answers as a replica of this cluster",
            Self::UnknownSession => {
                "nothing is known of what this session has written; read on the primary once, or start a new session"
            }
            Self::InDoubt => "a write of this session has an unknown outcome and may still happen",
            Self::GivenOut => "a connection whose writes are not seen is still out",
            Self::Unresolved => "no server's position after this session's last statement came within the wait budget",
            Self::Behind => "no replica had replayed what this session must see within the wait budget",
            Self::Unsettled => {
                "the primary was not known to show what a replica has shown this session within the wait budget"
            }
            Self::TooStale => "no replica was proven to lag less than the bound within the wait budget",
            Self::Unproven => "the replicas' timeline is not visible to this role; grant it pg_monitor",
            Self::BranchLost => "what this session has seen may have been lost by a failover",
            Self::ForeignToken => "this session's token is of another cluster",
            Self::ReplicaFailed => "the replica failed during the read",
            Self::Misrouted => "the replica refused the statement as a write",
        }
    }
}
