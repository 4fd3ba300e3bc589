//! How long something took, over many times.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Microseconds above which all count the same: longer than any request may take.
const LONGEST: u64 = 60_000_000;

/// Durations from a microsecond to a minute, to three digits.
pub(crate) struct Latency(Histogram<u64>);

impl Latency {
    pub(crate) fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST, 3).expect("the bounds are two apart and the digits at most five"))
    }

    pub(crate) fn add(&mut self, took: Duration) {
        self.0.saturating_record(u64::try_from(took.as_micros()).unwrap_or(LONGEST));
    }

    /// How many were added.
    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// Microseconds that this share of them did not exceed, from 0 to 1; zero if there are none.
    pub(crate) fn at(&self, share: f64) -> u64 {
        self.0.value_at_quantile(share)
    }
}
