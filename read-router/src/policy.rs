//! What the application has said about its statements once and for all.

use std::time::Duration;

use crate::{NotRead, PrimaryReason, ReadClass, ReadOptions, Session, StatementKind};

/// What happens to a statement that passed for a read and that a replica refused as a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Misrouted {
    /// It is repeated on the primary, with a warning and a count in
    /// [`Stats::misrouted`](crate::Stats::misrouted).
    #[default]
    Repeat,
    /// The caller gets the replica's error: for tests, so that no such statement hides.
    Fail,
}

/// What happens to a read that nobody has decided about.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Unannotated {
    /// It goes to the primary.
    #[default]
    Primary,
    /// It is a read of this class, with these options.
    Read(ReadOptions),
    /// It is an error, so that none is forgotten.
    Error,
}

impl From<ReadClass> for Unannotated {
    fn from(class: ReadClass) -> Self {
        Self::Read(class.into())
    }
}

impl From<ReadOptions> for Unannotated {
    fn from(options: ReadOptions) -> Self {
        Self::Read(options)
    }
}

/// What the caller has said of its reads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum View {
    /// Nothing.
    #[default]
    Unannotated,
    /// They go to the primary.
    Primary,
    /// They are of a class.
    Read(ReadOptions),
}

impl View {
    /// The class, if there is one.
    #[must_use]
    pub fn class(self) -> Option<ReadClass> {
        match self {
            Self::Read(options) => Some(options.class()),
            Self::Unannotated | Self::Primary => None,
        }
    }

    /// Where a statement of this kind belongs; `unannotated` says what a read without a class is. `None`: the caller wants
    /// an error for such a read.
    #[must_use]
    pub fn destination(self, kind: StatementKind, unannotated: Unannotated) -> Option<Destination> {
        Some(match (kind, self, unannotated) {
            (StatementKind::Primary(NotRead::Refused), ..) => Destination::Write(PrimaryReason::Misrouted),
            (StatementKind::Primary(_), ..) => Destination::Write(PrimaryReason::NotARead),
            (StatementKind::Read, Self::Primary, _) => Destination::Primary(PrimaryReason::Asked),
            (StatementKind::Read, Self::Read(options), _) => Destination::Read(options),
            (StatementKind::Read, Self::Unannotated, Unannotated::Primary) => {
                Destination::Primary(PrimaryReason::Unannotated)
            }
            (StatementKind::Read, Self::Unannotated, Unannotated::Read(options)) => Destination::Read(options),
            (StatementKind::Read, Self::Unannotated, Unannotated::Error) => return None,
        })
    }
}

/// Where a statement belongs, by its kind and by what the caller has said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Destination {
    /// To the primary, as what may write.
    Write(PrimaryReason),
    /// To the primary, as a read.
    Primary(PrimaryReason),
    /// To any server that can serve it so.
    Read(ReadOptions),
}

/// What the sessions of one connection are like.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sessions {
    /// Whether a fallback waits until the primary shows what replicas have shown.
    pub monotonic_fallback: bool,
    /// How long reads of the other classes go to the primary after a write.
    pub primary_window: Option<Duration>,
}

impl Sessions {
    /// The session, made so.
    #[must_use]
    pub fn apply(&self, session: Session) -> Session {
        let session = if self.monotonic_fallback { session.with_monotonic_fallback() } else { session };
        match self.primary_window {
            Some(window) => session.with_primary_window(window),
            None => session,
        }
    }
}
