//! What can go wrong before the first statement, and how our own refusals look as a Diesel error.

use diesel::{
    ConnectionError,
    result::{DatabaseErrorKind, Error as DieselError},
};
use read_router::{BranchLost, InvalidConfig, NodeId, PinError, PrimaryReason, SetupError};

/// Why no router could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The primary cannot be reached, or refuses the login or the database. A replica that does not answer is no error.
    #[error("cannot connect to {node}: {source}")]
    Connect {
        /// Which node.
        node: NodeId,
        /// Diesel's own error.
        source: ConnectionError,
    },
    /// The servers cannot be used together.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// A setting makes no sense.
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    /// A pin is none.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// An existing pool of one connection has none to spare for probes.
    #[error("{node} has a pool of one connection, which the probes would take; give it two, or a URL for the probes")]
    PoolTooSmall {
        /// Which node.
        node: NodeId,
    },
}

impl From<Error> for ConnectionError {
    fn from(error: Error) -> Self {
        match error {
            Error::Connect { source, .. } => source,
            error => Self::BadConnection(error.to_string()),
        }
    }
}

/// Why a statement was sent nowhere, as the source of a Diesel error.
///
/// It comes as [`QueryBuilderError`](DieselError::QueryBuilderError): see [`refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No replica can serve the read, and the caller wanted no fallback.
    #[error("no replica can serve this read ({}): {}; allow the primary as fallback", .0.as_str(), .0.explain())]
    NoReplica(PrimaryReason),
    /// The read has no class, where the builder says that there must be none.
    #[error("this read has no class, and unannotated reads are an error here; say read(class) or on_primary()")]
    Unannotated,
    /// The primary's name leads to a standby, which may lack what the session has seen.
    #[error(
        "the primary's URL leads to a server in recovery, which proves nothing for this read; check where it points"
    )]
    InRecovery,
    /// The primary that answers cannot have what the session has seen.
    #[error(transparent)]
    BranchLost(BranchLost),
    /// A transaction is open on a replica, where the primary is asked for.
    #[error("a READ ONLY transaction of this connection is open on a replica; end it first")]
    OnReplica,
    /// A transaction is open, where it must not be.
    #[error("a transaction is still open; commit it or roll it back first")]
    InTransaction,
}

/// Why the router sent a statement nowhere, if that is what the error says.
#[must_use]
pub fn refusal(error: &DieselError) -> Option<Refusal> {
    match error {
        DieselError::QueryBuilderError(source) => source.downcast_ref().copied(),
        _ => None,
    }
}

impl From<Refusal> for DieselError {
    fn from(refusal: Refusal) -> Self {
        Self::QueryBuilderError(Box::new(refusal))
    }
}

/// There was no connection to send the statement on.
pub(crate) fn unsent(cause: impl std::fmt::Display) -> DieselError {
    DieselError::DatabaseError(DatabaseErrorKind::UnableToSendCommand, Box::new(cause.to_string()))
}

/// The connection broke under a transaction, which its server has rolled back.
pub(crate) fn lost() -> DieselError {
    let text = "the connection of this transaction was lost, and the transaction with it; roll back and begin again";
    DieselError::DatabaseError(DatabaseErrorKind::ClosedConnection, Box::new(text.to_owned()))
}

/// Whether the error may come from a type or a statement that was remembered and is gone.
pub(crate) fn may_be_stale(error: &DieselError) -> bool {
    let is_unknown = matches!(error, DieselError::DatabaseError(DatabaseErrorKind::Unknown, _));
    is_unknown && Fault::of(error) == Fault::Unclear || matches!(error, DieselError::SerializationError(_))
}

/// Whether the server's message says that the rows, or the values given, are at fault: such an error is the statement's own on
/// whichever server it ran, and nothing that was remembered can be behind it. Where a server speaks another language than
/// English none is known.
fn is_of_the_data(message: &str) -> bool {
    const WHOLE: [&str; 6] = [
        "division by zero",
        "smallint out of range",
        "integer out of range",
        "bigint out of range",
        "numeric field overflow",
        "more than one row returned by a subquery used as an expression",
    ];
    WHOLE.contains(&message)
        || message.starts_with("invalid input syntax for type ")
        || message.starts_with("value \"") && message.contains("\" is out of range for type ")
}

/// What an error of a driver says of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The server refuses to write.
    ReadOnly,
    /// The server asks to try again: on a replica, a conflict with replay.
    Conflict,
    /// The link broke, or was broken.
    Gone,
    /// It may be the statement, the server's state, or what the connection has cached: Diesel does not say the code.
    Unclear,
    /// It has nothing to do with the server: it is Diesel's, or of the data.
    Other,
}

impl Fault {
    pub(crate) fn of(error: &DieselError) -> Self {
        match error {
            DieselError::DatabaseError(kind, said) => match kind {
                DatabaseErrorKind::ReadOnlyTransaction => Self::ReadOnly,
                DatabaseErrorKind::SerializationFailure => Self::Conflict,
                DatabaseErrorKind::ClosedConnection | DatabaseErrorKind::UnableToSendCommand => Self::Gone,
                DatabaseErrorKind::Unknown if is_of_the_data(said.message()) => Self::Other,
                _ => Self::Unclear,
            },
            // The type of a bound value is looked up on the connection.
            DieselError::SerializationError(_) => Self::Unclear,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_data_is_the_statements_own() {
        for (message, fault) in [
            ("division by zero", Fault::Other),
            ("invalid input syntax for type integer: \"a\"", Fault::Other),
            ("value \"99999999999\" is out of range for type integer", Fault::Other),
            // A replica may lack what the primary has, and a remembered plan what the schema has.
            ("invalid input value for enum mood: \"glad\"", Fault::Unclear),
            ("relation \"t\" does not exist", Fault::Unclear),
            ("cached plan must not change result type", Fault::Unclear),
            ("cannot access temporary or unlogged relations during recovery", Fault::Unclear),
            ("Division durch Null", Fault::Unclear),
        ] {
            let error = DieselError::DatabaseError(DatabaseErrorKind::Unknown, Box::new(message.to_owned()));
            assert_eq!((Fault::of(&error), may_be_stale(&error)), (fault, fault == Fault::Unclear), "{message}");
        }
    }
}
