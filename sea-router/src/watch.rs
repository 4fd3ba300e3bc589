//! The loops that put the monitor's questions to the servers, and waits for what they learn.

use std::{pin::pin, sync::Arc, time::Duration};

use read_router::{
    Answer, Ask, Epoch, Failure, Greeting, NodeId, Time,
    live::{GaveUp, Watch, now},
};
use sea_orm::{DbErr, RuntimeErr};
use sqlx::{Connection, PgConnection, postgres::PgConnectOptions};

use crate::{error, openings};

/// How often one who waits for a replica, for a connection or for rows, looks whether it still answers.
///
/// Not more often than servers are probed: a timer that is due before all others wakes the runtime, which costs each read a
/// system call or two.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A probe connection with what its server said first.
pub(crate) struct Probe {
    pub(crate) connection: PgConnection,
    pub(crate) greeting: Greeting,
    pub(crate) sent_at: Time,
    pub(crate) answer: Answer,
}

/// Asks for a newer picture on behalf of one who has waited since `since`, and waits for it, until `until` at most.
pub(crate) async fn changed(watch: &Watch, ask: Ask, since: Time, until: Time) {
    let change = watch.changed(ask, since);
    let _ = tokio::time::timeout(until.since(now()), change).await;
}

/// Runs a read on a replica, within `limit` if there is one, and for no longer than the replica answers: a host that hangs
/// would hold its readers until the network gives it up.
pub(crate) async fn while_serving<T>(
    watch: &Watch,
    node: NodeId,
    limit: Option<Duration>,
    work: impl Future<Output = T>,
) -> Result<T, GaveUp> {
    let mut work = pin!(work);
    let mut left = limit.unwrap_or(Duration::MAX);
    loop {
        let pause = left.min(LOOK_AGAIN);
        if let Ok(done) = tokio::time::timeout(pause, &mut work).await {
            return Ok(done);
        }
        left -= pause;
        if left.is_zero() {
            return Err(GaveUp::TimeLimit);
        }
        if let Some(gave_up) = watch.gave_up(node) {
            return Err(gave_up);
        }
    }
}

/// Waits until the node's next probe is due.
async fn due(watch: &Watch, node: NodeId) {
    loop {
        match watch.due(node) {
            (Some(Duration::ZERO), _) => return,
            (Some(wait), change) => {
                let _ = tokio::time::timeout(wait, change).await;
            }
            (None, change) => change.await,
        }
    }
}

/// Probes one node for as long as the task lives. A node that hangs holds up no other.
pub(crate) async fn probe_node(
    watch: Arc<Watch>,
    node: NodeId,
    options: PgConnectOptions,
    first: Option<(PgConnection, Epoch)>,
) {
    let mut open = first;
    loop {
        due(&watch, node).await;
        if let Err(error) = probe_once(&watch, node, &options, &mut open).await {
            open = None;
            watch.failed(node, failure(&error), &error);
        }
    }
}

async fn probe_once(
    watch: &Watch,
    node: NodeId,
    options: &PgConnectOptions,
    open: &mut Option<(PgConnection, Epoch)>,
) -> Result<(), sqlx::Error> {
    let limit = watch.config.probe_timeout;
    // The name may lead elsewhere by now; the old connection would go on answering.
    open.take_if(|(_, epoch)| !watch.is_open(node, *epoch));
    let (connection, epoch) = match open {
        Some(open) => open,
        None => {
            let (connection, greeting) = within(limit, connect(options)).await?;
            let epoch = watch.opened(node, &greeting);
            open.insert((connection, epoch))
        }
    };
    watch.sent(node);
    let answer = within(limit, openings::position(connection)).await?;
    watch.answered(node, *epoch, &answer);
    Ok(())
}

/// Why a pool could not connect: it says only that it timed out, since it takes a refused connection for a server that
/// is still starting.
pub(crate) async fn cause(error: DbErr, url: &str, limit: Duration) -> DbErr {
    let timed_out = matches!(error::driver(&error), Some(sqlx::Error::PoolTimedOut));
    let Some(options) = timed_out.then(|| url.parse::<PgConnectOptions>().ok()).flatten() else { return error };
    match within(limit, PgConnection::connect_with(&options)).await {
        Ok(_) => error,
        Err(cause) => DbErr::Conn(RuntimeErr::SqlxError(cause.into())),
    }
}

/// Opens a probe connection and asks it once.
pub(crate) async fn first_probe(options: &PgConnectOptions, limit: Duration) -> Result<Probe, sqlx::Error> {
    within(limit, async {
        let (mut connection, greeting) = connect(options).await?;
        let sent_at = now();
        let answer = openings::position(&mut connection).await?;
        Ok(Probe { connection, greeting, sent_at, answer })
    })
    .await
}

async fn connect(options: &PgConnectOptions) -> Result<(PgConnection, Greeting), sqlx::Error> {
    let mut connection = PgConnection::connect_with(options).await?;
    let greeting = openings::greeting(&mut connection).await?;
    Ok((connection, greeting))
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, sqlx::Error> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
    }
}

pub(crate) fn failure(error: &sqlx::Error) -> Failure {
    match error {
        sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => Failure::Timeout,
        sqlx::Error::Database(_) if is_login(error) => Failure::Login,
        sqlx::Error::Database(error) if error.code().is_some_and(|c| !c.starts_with("57P") && !c.starts_with("08")) => {
            Failure::Answer
        }
        sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_) | sqlx::Error::ColumnDecode { .. } => Failure::Answer,
        _ => Failure::Unreachable,
    }
}

/// Whether the server refuses this user or has no such database: waiting does not help.
pub(crate) fn is_login(error: &sqlx::Error) -> bool {
    is_no_database(error) || code(error).is_some_and(|code| code.starts_with("28"))
}

/// Whether the server has no such database.
pub(crate) fn is_no_database(error: &sqlx::Error) -> bool {
    code(error).is_some_and(|code| code == "3D000")
}

fn code(error: &sqlx::Error) -> Option<std::borrow::Cow<'_, str>> {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code)
}
