//! Writes whose outcome is unknown because the link broke before the answer came.

use std::{sync::Weak, time::Duration};

use read_router::{Opened, WriteId, events};
use sqlx::Row;

use crate::{connection::Inner, node::Checked, session::SharedSession};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Keeps the session's strict reads on the primary until the write can no longer happen.
///
/// The server process that was to do it may still be at work: it is asked for by its pid and start. Once it is gone,
/// or the whole server is, whatever it did is done, and the session's next token will cover it.
pub(crate) fn settle_later(inner: Weak<Inner>, session: SharedSession, write: WriteId, opened: Option<Opened>) {
    session.with(|session| session.in_doubt(write));
    events::in_doubt();
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async move {
        let mut pause = FIRST_PAUSE;
        loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            let Some(inner) = inner.upgrade() else { return };
            if is_over(&inner, opened).await {
                session.acknowledged(&inner.watch, write, opened);
                return;
            }
        }
    });
}

/// Whether the process behind the lost connection is known to be gone.
async fn is_over(inner: &Inner, lost: Option<Opened>) -> bool {
    // Without knowing whose connection it was, the session stays where it is: on the primary.
    let Some(lost) = lost else { return true };
    let Ok(Checked { mut connection, opened: Some(now) }) = inner.primary().acquire().await else { return false };
    if now.greeting.instance != lost.greeting.instance {
        // The server was restarted, or the name points to another one: no process of the old one serves us. An old
        // primary that nobody fenced may still commit the write, on a branch that is then discarded.
        return true;
    }
    let backend = lost.greeting.backend;
    let alive = sqlx::query(
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity WHERE pid = $1 \
         AND (EXTRACT(epoch FROM backend_start) * 1000000)::bigint IS NOT DISTINCT FROM $2)",
    )
    .persistent(false)
    .bind(backend.pid)
    .bind(backend.started_us)
    .fetch_one(&mut *connection)
    .await;
    match alive.and_then(|row| row.try_get::<bool, _>(0)) {
        Ok(alive) => !alive,
        Err(_) => false,
    }
}
