//! Writes whose outcome is unknown because the link broke before the answer came.

use std::{sync::Weak, time::Duration};

use diesel::{
    QueryResult,
    result::{DatabaseErrorKind, Error},
};
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection};
use read_router::{
    Opened, WriteId, events,
    live::{SharedSession, now},
    probe,
};

use super::{
    collected::Collected,
    node::Checked,
    router::Inner,
    runtime::{sleep, spawn, timeout},
    text::texts,
};
use crate::error::Fault;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long a process that nobody waits for may take to finish by itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether the error leaves it open whether the server did what it was asked: the link broke, or the server process was
/// ended, before an answer came. Diesel does not say which error it was; a connection that still answers says that it was
/// none of these.
pub(crate) async fn leaves_in_doubt(connection: &mut AsyncPgConnection, error: &Error, limit: Duration) -> bool {
    match Fault::of(error) {
        Fault::Gone => true,
        Fault::Unclear if is_definite(error) => false,
        Fault::Unclear => !is_alive(connection, limit).await,
        Fault::ReadOnly | Fault::Conflict | Fault::Other => false,
    }
}

/// Whether it is an answer that only a living process gives.
fn is_definite(error: &Error) -> bool {
    !matches!(error, Error::DatabaseError(DatabaseErrorKind::Unknown, _))
}

/// Whether the server still answers on this connection.
pub(crate) async fn is_alive(connection: &mut AsyncPgConnection, limit: Duration) -> bool {
    match timeout(limit, connection.batch_execute("SELECT 1")).await {
        Ok(Ok(())) => true,
        // Inside of a transaction that has failed this is an error too.
        Ok(Err(error)) => Fault::of(&error) != Fault::Gone,
        Err(_) => false,
    }
}

/// Settles the write whose last answer was an error, as far as the connection itself can tell.
pub(crate) fn look(inner: Weak<Inner>, session: SharedSession, write: WriteId, mut connection: Checked) {
    session.with(|session| session.in_doubt(write));
    spawn(async move {
        let Some(shared) = inner.upgrade() else { return };
        let opened = connection.opened;
        if is_alive(&mut connection, shared.watch.config.probe_timeout).await {
            session.acknowledged(&shared.watch, write, opened);
        } else {
            connection.discard();
            settle_later(inner, session, write, opened);
        }
    });
}

/// Keeps the session's strict reads on the primary until the write can no longer happen.
///
/// The server process that was to do it may still be at work: it is asked for by its pid and start. Once it is gone,
/// or the whole server is, whatever it did is done, and the session's next token will cover it.
pub(crate) fn settle_later(inner: Weak<Inner>, session: SharedSession, write: WriteId, opened: Option<Opened>) {
    session.with(|session| session.in_doubt(write));
    events::in_doubt();
    // Without knowing whose connection it was there is nothing to ask for: the session stays where it is.
    let Some(lost) = opened else { return };
    spawn(async move {
        let mut pause = FIRST_PAUSE;
        let started = now();
        loop {
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            let Some(inner) = inner.upgrade() else { return };
            if inner.check_open().is_err() {
                return;
            }
            // A link that is half open keeps its process waiting for us: there is no need for it any more.
            let end_it = now().since(started) > PATIENCE;
            if is_over(&inner, lost, end_it).await.unwrap_or(false) {
                session.acknowledged(&inner.watch, write, opened);
                return;
            }
        }
    });
}

/// Whether the process behind the lost connection is known to be gone. `end_it` has the server end it first, which the
/// role that owns it may do.
async fn is_over(inner: &Inner, lost: Opened, end_it: bool) -> QueryResult<bool> {
    let connection = inner.acquire_primary().await?;
    let Some(now) = connection.opened else { return Ok(false) };
    if now.greeting.instance != lost.greeting.instance {
        // The server was restarted, or the name points to another one: no process of the old one serves us. An old
        // primary that nobody fenced may still commit the write, on a branch that is then discarded.
        return Ok(true);
    }
    let question = format!("SELECT ({})::text", first_column(&probe::is_alive(lost.greeting.backend, end_it)));
    let rows = texts(&connection, &Collected::text(&question)).await?;
    Ok(rows.first().and_then(|row| row.first()).is_some_and(|count| count.as_deref() == Some("0")))
}

/// The question as one value, which the wire has as a text then.
fn first_column(question: &str) -> String {
    format!("SELECT answer.alive FROM ({question}) AS answer (alive, ended)")
}
