//! One instant of the caller's clock.

use std::{ops::Add, time::Duration};

/// An instant of the caller's clock, in nanoseconds since an origin that the caller chose.
///
/// The core reads no clock: whoever calls it brings the time. All values given to one
/// [`Monitor`](crate::Monitor) and its sessions must come from one clock that never goes back and,
/// for [`SecondsStale`](crate::ReadClass::SecondsStale) to hold on a machine that was suspended,
/// runs on while the machine sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The instant `nanos` nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The instant `span` earlier; the origin if that lies before it.
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long after `earlier` this is; zero if it is not after it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    /// The instant `rhs` later; the farthest representable one if that lies beyond it.
    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saturates_at_both_ends() {
        let t = Time::from_nanos(5);
        assert_eq!(t.since(Time::from_nanos(9)), Duration::ZERO);
        assert_eq!((t + Duration::MAX).as_nanos(), u64::MAX);
        assert_eq!((t + Duration::from_nanos(2)).as_nanos(), 7);
    }
}
