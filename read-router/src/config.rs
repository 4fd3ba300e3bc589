//! The defaults, in one place.

use std::time::Duration;

/// Timing of the monitor and of reads. [`Config::default`] is the one place where defaults stand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Time from one probe of a node to the next while nobody waits, ±20%. Defaults to 100 ms.
    pub probe_interval: Duration,
    /// How long a probe, or opening its connection, may take before the node counts as down.
    /// Defaults to 1 s.
    pub probe_timeout: Duration,
    /// Time from one probe of a node to the next while someone waits: a few may follow each other at once, all others are so
    /// far apart at least. Defaults to 2 ms, which caps probes at 500 a second for each node.
    pub probe_spacing: Duration,
    /// How long a [`MustSeeMyWrite`](crate::ReadClass::MustSeeMyWrite) read waits for a replica to catch up
    /// before it goes to the primary. A replica that lags by more than ten times as much is not waited for. Defaults to
    /// 100 ms.
    pub strict_wait: Duration,
    /// How long a [`SecondsStale`](crate::ReadClass::SecondsStale) read waits for a fresher proof. It waits
    /// only where a newer observation may help, not on a replica known to lag. Defaults to 100 ms.
    pub bounded_wait: Duration,
    /// Time limit of one read on a replica for `MustSeeMyWrite` and `SecondsStale`; `Eventual` has none.
    /// Replay can wait behind a reader's lock, and a new read of that table then hangs on the replica.
    /// Defaults to 5 s.
    pub replica_read_timeout: Duration,
    /// How long a read waits for a connection of a replica's pool before it goes elsewhere.
    /// Defaults to 1 s.
    pub replica_acquire_timeout: Duration,
    /// Time from one reading of the primary's catalogue to the next; changes of the schema that the router sees are read at
    /// once. What others change may be misjudged for so long. `Duration::MAX` reads it only at the start and then.
    /// Defaults to 60 s.
    pub catalogue_interval: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            probe_interval: Duration::from_millis(100),
            probe_timeout: Duration::from_secs(1),
            probe_spacing: Duration::from_millis(2),
            strict_wait: Duration::from_millis(100),
            bounded_wait: Duration::from_millis(100),
            replica_read_timeout: Duration::from_secs(5),
            replica_acquire_timeout: Duration::from_secs(1),
            catalogue_interval: Duration::from_secs(60),
        }
    }
}

impl Config {
    /// Whether the values make sense together.
    ///
    /// # Errors
    /// Names the first value that does not, and what it must be.
    pub fn check(&self) -> Result<(), InvalidConfig> {
        let rules = [
            (self.probe_interval.is_zero(), "probe_interval must be above zero"),
            (self.probe_timeout.is_zero(), "probe_timeout must be above zero"),
            (self.probe_spacing.is_zero(), "probe_spacing must be above zero"),
            (self.probe_spacing > self.probe_interval, "probe_spacing must not exceed probe_interval"),
            (self.replica_read_timeout.is_zero(), "replica_read_timeout must be above zero"),
            (self.replica_acquire_timeout.is_zero(), "replica_acquire_timeout must be above zero"),
            (self.catalogue_interval.is_zero(), "catalogue_interval must be above zero"),
        ];
        match rules.into_iter().find(|(broken, _)| *broken) {
            Some((_, rule)) => Err(InvalidConfig(rule)),
            None => Ok(()),
        }
    }

    /// How old the last observation of a node may be before the node no longer counts as answering.
    ///
    /// A probe that hangs is noticed after its time limit; this notices a monitor that has stopped.
    pub(crate) fn observation_lifetime(&self) -> Duration {
        self.probe_interval.saturating_add(self.probe_timeout).saturating_mul(4)
    }
}

/// A value of [`Config`] that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid configuration: {0}")]
pub struct InvalidConfig(&'static str);
