//! Writes whose outcome is unknown because the link broke before the answer came.

use std::{sync::Weak, time::Duration};

use read_router::{
    Opened, WriteId, events,
    live::{SharedSession, now},
    probe,
};
use sqlx::Row;

use crate::{connection::Inner, node::Checked};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long a process that nobody waits for may take to finish by itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// Keeps the session's strict reads on the primary until the write can no longer happen.
///
/// The server process that was to do it may still be at work: it is asked for by its pid and start. Once it is gone,
/// or the whole server is, whatever it did is done, and the session's next token will cover it.
pub(crate) fn settle_later(inner: Weak<Inner>, session: SharedSession, write: WriteId, opened: Option<Opened>) {
    session.with(|session| session.in_doubt(write));
    events::in_doubt();
    // Without knowing whose connection it was there is nothing to ask for: the session stays where it is.
    let Some(lost) = opened else { return };
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async move {
        let mut pause = FIRST_PAUSE;
        let started = now();
        loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            let Some(inner) = inner.upgrade() else { return };
            if inner.primary().pool().is_closed() {
                return;
            }
            // A link that is half open keeps its process waiting for us: there is no need for it any more.
            let end_it = now().since(started) > PATIENCE;
            if is_over(&inner, lost, end_it).await {
                session.acknowledged(&inner.watch, write, opened);
                return;
            }
        }
    });
}

/// Whether the process behind the lost connection is known to be gone. `end_it` has the server end it first, which the
/// role that owns it may do.
async fn is_over(inner: &Inner, lost: Opened, end_it: bool) -> bool {
    let Ok(Checked { mut connection, opened: Some(now) }) = inner.primary().acquire().await else { return false };
    if now.greeting.instance != lost.greeting.instance {
        // The server was restarted, or the name points to another one: no process of the old one serves us. An old
        // primary that nobody fenced may still commit the write, on a branch that is then discarded.
        return true;
    }
    let question = probe::is_alive(lost.greeting.backend, end_it);
    let alive = sqlx::query(sqlx::AssertSqlSafe(question)).persistent(false).fetch_one(&mut *connection).await;
    match alive.and_then(|row| row.try_get::<i64, _>(0)) {
        Ok(alive) => alive == 0,
        Err(_) => false,
    }
}
