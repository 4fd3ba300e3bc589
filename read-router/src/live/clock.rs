//! The clock that all instants come from.

use crate::Time;

/// A moment on a clock that never goes back and runs on while the machine sleeps: a laptop that was
/// suspended must not take yesterday's proof for a fresh one.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn now() -> Time {
    of(rustix::time::ClockId::Boottime)
}

/// Elsewhere on Unix the monotonic clock is the best there is; Apple's runs on during sleep, BSDs' do not.
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
pub fn now() -> Time {
    of(rustix::time::ClockId::Monotonic)
}

#[cfg(unix)]
fn of(clock: rustix::time::ClockId) -> Time {
    let at = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(at.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(at.tv_nsec).unwrap_or(0);
    Time::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// The performance counter of Windows runs on during sleep.
#[cfg(not(unix))]
pub fn now() -> Time {
    use std::{sync::LazyLock, time::Instant};
    static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    Time::from_nanos(u64::try_from(ORIGIN.elapsed().as_nanos()).unwrap_or(u64::MAX))
}
