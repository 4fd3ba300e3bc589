//! Writes whose outcome is unknown because the link broke before the answer came.

use std::{sync::Weak, thread, time::Duration};

use read_router::{
    Opened, WriteId, events,
    live::{SharedSession, now},
    probe,
};

use super::{node::Wishes, question, router::Inner};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long a process that nobody waits for may take to finish by itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// Keeps the session's strict reads on the primary until the write can no longer happen.
///
/// The server process that was to do it may still be at work: it is asked for by its pid and start. Once it is gone,
/// or the whole server is, whatever it did is done, and the session's next token will cover it.
pub(super) fn settle_later(inner: Weak<Inner>, session: SharedSession, write: WriteId, opened: Option<Opened>) {
    session.with(|session| session.in_doubt(write));
    events::in_doubt();
    // Without knowing whose connection it was there is nothing to ask for: the session stays where it is.
    let Some(lost) = opened else { return };
    let work = move || {
        let mut pause = FIRST_PAUSE;
        let started = now();
        loop {
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
            let Some(inner) = inner.upgrade() else { return };
            if inner.primary().is_closed() {
                return;
            }
            // A link that is half open keeps its process waiting for us: there is no need for it any more.
            let end_it = now().since(started) > PATIENCE;
            if is_over(&inner, lost, end_it) {
                session.acknowledged(&inner.watch, write, opened);
                return;
            }
        }
    };
    // Without a thread it stays in doubt.
    let _ = thread::Builder::new().name("read-router doubt".to_owned()).spawn(work);
}

/// Whether the process behind the lost connection is known to be gone. `end_it` has the server end it first, which the
/// role that owns it may do.
fn is_over(inner: &Inner, lost: Opened, end_it: bool) -> bool {
    let Ok(mut checked) = inner.primary().acquire(&Wishes::none()) else { return false };
    let Some(now) = checked.opened else { return false };
    if now.greeting.instance != lost.greeting.instance {
        // The server was restarted, or the name points to another one: no process of the old one serves us. An old
        // primary that nobody fenced may still commit the write, on a branch that is then discarded.
        return true;
    }
    matches!(question::count(&mut checked, &probe::is_alive(lost.greeting.backend, end_it)), Ok(0))
}
