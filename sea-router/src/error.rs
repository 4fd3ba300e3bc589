//! What can go wrong before the first statement, and how our own refusals look as a [`DbErr`].

use read_router::{
    BranchLost, InvalidConfig, NodeId, NotRead, PinError, PrimaryReason, ReadOptions, SetupError, Topology,
    live::GaveUp,
};
use sea_orm::{DbErr, RuntimeErr, error::ConnAcquireErr};
use sqlx::{
    error::DatabaseError,
    postgres::{PgDatabaseError, PgSeverity},
};

/// Why no routing connection could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A node's URL, login or database is wrong, or the primary cannot be reached. A replica that is merely down
    /// is no error.
    #[error("cannot connect to {node}: {source}")]
    Connect {
        /// Which node.
        node: NodeId,
        /// SeaORM's own error.
        source: DbErr,
    },
    /// The servers cannot be used together.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// A pool that was tracked for the primary is given for a replica, or the other way round: its connections would be
    /// writable where they must not be, or read-only where they must not be.
    #[error("the pool of {node} was tracked by {used}; track it by {wanted}")]
    WrongTracker {
        /// The node that has the pool.
        node: NodeId,
        /// How its tracker was made.
        used: &'static str,
        /// How it must be made.
        wanted: &'static str,
    },
    /// An existing connection is to another database system.
    #[error("{node} is not a connection to PostgreSQL")]
    NotPostgres {
        /// Which node.
        node: NodeId,
    },
    /// A setting makes no sense.
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    /// A pin is none.
    #[error(transparent)]
    Pin(#[from] PinError),
}

impl From<Error> for DbErr {
    fn from(error: Error) -> Self {
        // Which of several servers it was is worth more than the driver's type.
        DbErr::Conn(RuntimeErr::Internal(error.to_string()))
    }
}

const REFUSED: &str = "no replica can serve this read (";

/// The caller wanted no fallback, or the primary must not serve.
pub(crate) fn refused(reason: PrimaryReason, read: ReadOptions, topology: &Topology) -> DbErr {
    use PrimaryReason as R;
    let advice = match reason {
        R::Unresolved | R::Behind | R::TooStale => "allow the primary as fallback, or a longer wait",
        R::Unsettled => "allow a longer wait, or end long transactions on the primary",
        _ => "allow the primary as fallback",
    };
    let explained = match read.group() {
        Some(group) if reason == R::NoReplica => no_replica_in(group, topology),
        _ => reason.explain().to_owned(),
    };
    no_replica(reason, &format!("{explained}; {advice}"))
}

fn no_replica(reason: PrimaryReason, text: &str) -> DbErr {
    DbErr::Query(RuntimeErr::Internal(format!("{REFUSED}{}): {text}", reason.as_str())))
}

fn no_replica_in(group: &str, topology: &Topology) -> String {
    let groups = topology.groups();
    if groups.contains(group) {
        return format!("no replica of the group {group:?} serves this class");
    }
    let known: Vec<_> = groups.iter().map(|group| format!("{group:?}")).collect();
    let known =
        if known.is_empty() { "no replica is in any".to_owned() } else { format!("there are {}", known.join(", ")) };
    format!("no replica is in a group {group:?} ({known})")
}

/// The replica refused the statement as a write, and it is not to be repeated.
pub(crate) fn misrouted(node: NodeId, error: &DbErr) -> DbErr {
    let text = format!(
        "the statement passed for a read and was sent to {node}, which refused it: {error}; if it writes, call it with on_primary()"
    );
    no_replica(PrimaryReason::Misrouted, &text)
}

/// Why a read with [`or_error`](read_router::ReadClass::or_error), or a statement under
/// [`Misrouted::Fail`](crate::Misrouted::Fail), was refused, if that is what the error says.
#[must_use]
pub fn refusal(error: &DbErr) -> Option<PrimaryReason> {
    let DbErr::Query(RuntimeErr::Internal(text)) = error else { return None };
    let (name, _) = text.strip_prefix(REFUSED)?.split_once(')')?;
    PrimaryReason::ALL.into_iter().find(|reason| reason.as_str() == name)
}

/// A read without a class, where the builder says that there must be none.
pub(crate) fn unannotated() -> DbErr {
    let text = "this read has no class, and unannotated reads are an error here; say read(class) or on_primary()";
    DbErr::Query(RuntimeErr::Internal(text.to_owned()))
}

/// What came to a read-only handle is no read; it was not sent.
pub(crate) fn read_only(what: NotRead) -> DbErr {
    let what = what.as_str();
    let text =
        format!("this handle is read-only and the statement is not a read ({what}); it was not sent to any server");
    DbErr::Query(RuntimeErr::Internal(text))
}

/// A read-only handle was asked for a transaction that may write.
pub(crate) fn read_write_transaction() -> DbErr {
    let text = "this handle is read-only; begin a READ WRITE transaction on the routing connection";
    DbErr::Query(RuntimeErr::Internal(text.to_owned()))
}

/// A read on a replica took too long, or its server stopped answering.
pub(crate) fn gave_up(gave_up: GaveUp) -> DbErr {
    DbErr::Query(RuntimeErr::Internal(format!("a read on a replica was given up: {}", gave_up.as_str())))
}

/// The primary's name leads to a standby, which may lack what the session has seen.
pub(crate) fn in_recovery() -> DbErr {
    let text =
        "the primary's URL leads to a server in recovery, which proves nothing for this read; check where it points";
    DbErr::Query(RuntimeErr::Internal(text.to_owned()))
}

/// The primary that answers cannot have what the session has seen.
pub(crate) fn branch_lost(lost: BranchLost) -> DbErr {
    DbErr::Query(RuntimeErr::Internal(lost.to_string()))
}

/// An error of acquiring a connection, as SeaORM gives it.
pub(crate) fn acquire(error: sqlx::Error) -> DbErr {
    match error {
        sqlx::Error::PoolTimedOut => DbErr::ConnectionAcquire(ConnAcquireErr::Timeout),
        sqlx::Error::PoolClosed => DbErr::ConnectionAcquire(ConnAcquireErr::ConnectionClosed),
        error => DbErr::Conn(RuntimeErr::SqlxError(error.into())),
    }
}

/// An error of a connection, as SeaORM gives it.
pub(crate) fn connection(error: sqlx::Error) -> DbErr {
    DbErr::Conn(RuntimeErr::SqlxError(error.into()))
}

/// A node that was not configured.
pub(crate) fn no_node(node: NodeId) -> DbErr {
    DbErr::Conn(RuntimeErr::Internal(format!("there is no {node}")))
}

/// An error of a query, as SeaORM gives it.
pub(crate) fn query(error: sqlx::Error) -> DbErr {
    DbErr::Query(RuntimeErr::SqlxError(error.into()))
}

/// An error of an execution, as SeaORM gives it.
pub(crate) fn exec(error: sqlx::Error) -> DbErr {
    DbErr::Exec(RuntimeErr::SqlxError(error.into()))
}

/// sqlx's error inside SeaORM's, if that is what it is.
pub(crate) fn driver(error: &DbErr) -> Option<&sqlx::Error> {
    match error {
        DbErr::Conn(RuntimeErr::SqlxError(e))
        | DbErr::Exec(RuntimeErr::SqlxError(e))
        | DbErr::Query(RuntimeErr::SqlxError(e)) => Some(e),
        _ => None,
    }
}

/// Whether the server process that gave the error is ending. A statement may fail with the same codes on a healthy one:
/// `COPY` from a file that is not there has 58P01, a foreign table of a dead host has 08001.
pub(crate) fn ends_process(error: &(dyn DatabaseError + 'static)) -> bool {
    error
        .try_downcast_ref::<PgDatabaseError>()
        .is_some_and(|error| matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic))
}

/// Whether the schema changed under a prepared statement: the server drops the plan for a new one only where the columns
/// stay as they are, until the statement is prepared anew.
pub(crate) fn is_stale_plan(error: &(dyn DatabaseError + 'static)) -> bool {
    error.try_downcast_ref::<PgDatabaseError>().is_some_and(|error| error.routine() == Some("RevalidateCachedQuery"))
}

/// Whether a replica will refuse the statement the next time too: as a write, or as a read of what it has not (an unlogged
/// table). Other errors that a repetition on the primary may mend (`55000`, `XX000`) pass.
pub(crate) fn refuses_a_write(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else { return false };
    error.code().is_some_and(|code| matches!(&*code, "25006" | "0A000")) && !is_stale_plan(error.as_ref())
}

/// Whether the error leaves it open whether the server did what it was asked: the link broke, or the server
/// process was ended, before an answer came.
pub(crate) fn leaves_in_doubt(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => ends_process(error.as_ref()),
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => true,
        _ => false,
    }
}
