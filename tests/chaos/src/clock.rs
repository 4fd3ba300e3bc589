//! One clock for all processes of a run.

use rustix::time::{ClockId, clock_gettime};

/// It never goes back, and two processes of one machine read the same.
#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

/// Nanoseconds since some moment before the run.
#[must_use]
pub fn now() -> u64 {
    let at = clock_gettime(CLOCK);
    let (seconds, nanos) = (u64::try_from(at.tv_sec).unwrap_or(0), u64::try_from(at.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}
