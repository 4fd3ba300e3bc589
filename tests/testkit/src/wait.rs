use std::{
    thread,
    time::{Duration, Instant},
};

use crate::Error;

/// Pause between two looks at something that is about to happen.
pub(crate) const STEP: Duration = Duration::from_millis(20);

/// Limit for what a healthy server does in a fraction of a second; wide enough for a busy CI machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Asks `check` every [`STEP`] until it has an answer; `None` when the limit has passed.
pub(crate) fn until<T>(
    limit: Duration,
    mut check: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<Option<T>, Error> {
    let start = Instant::now();
    loop {
        if let Some(answer) = check()? {
            return Ok(Some(answer));
        }
        if start.elapsed() >= limit {
            return Ok(None);
        }
        thread::sleep(STEP);
    }
}
