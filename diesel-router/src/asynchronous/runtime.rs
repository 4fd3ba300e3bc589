//! Where timers and tasks run.

use std::{future::Future, io, sync::OnceLock, thread, time::Duration};

use tokio::{
    runtime::{Builder, Handle},
    time::{Sleep, Timeout},
};

/// The runtime of connections that are [established](diesel_async::AsyncConnection::establish) from a URL: a thread of its
/// own, started with the first.
///
/// Such a connection may be used through diesel-async's `AsyncConnectionWrapper`, whose runtime has no timers, and runs only
/// as long as someone blocks on it: probes would stand still.
static BACKGROUND: OnceLock<Handle> = OnceLock::new();

/// That runtime.
pub(crate) fn background() -> io::Result<Handle> {
    if let Some(handle) = BACKGROUND.get() {
        return Ok(handle.clone());
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    // Two may come at once: the second one's thread ends with its runtime.
    if BACKGROUND.set(handle).is_ok() {
        thread::Builder::new()
            .name("diesel-router".to_owned())
            .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    }
    Ok(BACKGROUND.get().cloned().unwrap_or_else(Handle::current))
}

/// Limits the time of `work`.
pub(crate) fn timeout<F: Future>(limit: Duration, work: F) -> Timeout<F> {
    // A timer is of the runtime in which it is made, and may be awaited anywhere.
    let _entered = BACKGROUND.get().map(Handle::enter);
    tokio::time::timeout(limit, work)
}

/// Waits.
pub(crate) fn sleep(time: Duration) -> Sleep {
    let _entered = BACKGROUND.get().map(Handle::enter);
    tokio::time::sleep(time)
}

/// Has `work` done by the runtime, if there is one; without one it is dropped, and `false`.
pub(crate) fn spawn(work: impl Future<Output: Send + 'static> + Send + 'static) -> bool {
    let runtime = BACKGROUND.get().cloned().or_else(|| Handle::try_current().ok());
    runtime.map(|runtime| runtime.spawn(work)).is_some()
}
