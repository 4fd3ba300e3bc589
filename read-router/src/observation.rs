//! What a server said of itself, and when it was asked.

use crate::{Branch, Epoch, Instance, Lsn, Position, Time, Timeline};

/// What a server is at the moment of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// It is not in recovery: it accepts writes, or would if it were not set read-only.
    Primary,
    /// It is in recovery (`pg_is_in_recovery()`).
    Replica,
}

/// One answer of one server. It is never wrong, only old.
///
/// A primary's says: everything that was acknowledged before [`sent_at`](Self::sent_at) is at or below
/// [`lsn`](Self::lsn). A replica's says: it had replayed at least `lsn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Observation {
    /// The probe connection's life that saw it.
    pub epoch: Epoch,
    /// The server that answered.
    pub instance: Instance,
    /// A moment before the question was sent.
    pub sent_at: Time,
    /// A moment after the answer had come.
    pub received_at: Time,
    /// What the server was.
    pub role: Role,
    /// The timeline it was on, read after the position; `None` if it would not say.
    pub timeline: Option<Timeline>,
    /// Whether the timeline is the server's own word. If not, it comes from the control file, which an
    /// ordinary role may read but which lags behind a promotion: it counts only while no newer timeline
    /// is known.
    pub exact: bool,
    /// A primary's insert position without a trailing page header, or a replica's replay position.
    pub lsn: Lsn,
    /// The edge of what it shows, as a transaction number (with its epoch), read after the position. A primary's
    /// (`xmin` of a snapshot): every transaction below it has ended. A replica's (`xmax`): every commit that it shows is
    /// below it. `None` if it would not say.
    pub xid: Option<u64>,
}

impl Observation {
    /// The line of history that the server was on, as far as it said.
    #[must_use]
    pub fn branch(&self) -> Option<Branch> {
        Some(Branch { system: self.instance.system, timeline: self.timeline? })
    }

    /// The position on that line.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        Some(Position { branch: self.branch()?, lsn: self.lsn })
    }
}

/// Why a node does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// No connection could be made, or it broke.
    Unreachable,
    /// A probe, or opening its connection, took longer than its time limit.
    Timeout,
    /// The server refused the login.
    Login,
    /// The server answered the probe with an error or with something else than a position.
    Answer,
    /// A read failed on it in a way that says that the server is going down.
    Read,
}

impl Failure {
    /// The name in events and statistics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::Login => "login",
            Self::Answer => "answer",
            Self::Read => "read",
        }
    }
}
