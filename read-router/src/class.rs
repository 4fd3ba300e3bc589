//! What a read asks for.

use std::time::Duration;

use crate::Config;

/// How fresh the state that a read returns must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadClass {
    /// Everything that the session has committed or has been shown as committed.
    ///
    /// Guaranteed: the read sees every write that was acknowledged to the session, every commit that a
    /// read on the primary had shown it, and, between replicas, never goes back in time.
    /// Not guaranteed: a standby can show a commit a moment before the primary does, so a read that falls
    /// back to the primary right after a replica read may miss a commit that was not yet acknowledged to
    /// anyone, unless the session has [monotonic fallback](crate::Session::with_monotonic_fallback); commits
    /// with `synchronous_commit=off` are void once their server crashed; commits that a failover lost are
    /// gone, and reported; what a replica showed after it was promoted, or had followed a promoted one, counts
    /// once it was asked again, so that until then an old primary that nobody has fenced may serve a fallback;
    /// a role without `pg_monitor` may take a standby of the new timeline for one of the old while nobody else
    /// has shown it the new one.
    #[doc(alias("read-your-writes", "causal", "monotonic", "strict"))]
    MustSeeMyWrite,
    /// Everything that anyone had committed longer ago than this.
    ///
    /// The bound is proven by positions, without the servers' clocks: the replica has replayed a position
    /// that the primary had at a moment less than this long ago. It counts up to the moment when the read
    /// is sent, by a clock that runs while the machine sleeps where there is one (on all but BSDs). Above ten minutes it
    /// is as good as unproven, since no older positions are kept.
    ///
    /// Not guaranteed: what a new primary commits that none of our connections has seen yet; no client can
    /// know of it.
    #[doc(alias("bounded staleness", "max staleness"))]
    SecondsStale(Duration),
    /// Some committed state of this cluster, not of a branch of history known to be discarded.
    #[doc(alias("eventual consistency", "any replica"))]
    Eventual,
}

impl ReadClass {
    /// Waits this long for a replica to become good enough, instead of the default.
    ///
    /// Zero means: decide on what is known now.
    #[must_use]
    pub const fn wait(self, budget: Duration) -> ReadOptions {
        ReadOptions::new(self).wait(budget)
    }

    /// Returns an error, instead of reading on the primary, if no replica can serve the class. Statements that are no
    /// reads still go to the primary.
    #[must_use]
    pub const fn or_error(self) -> ReadOptions {
        ReadOptions::new(self).or_error()
    }

    /// Reads only on replicas of [this group](crate::ReplicaConfig::group).
    #[must_use]
    pub const fn in_group(self, name: &'static str) -> ReadOptions {
        ReadOptions::new(self).in_group(name)
    }

    /// The name in events and statistics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MustSeeMyWrite => "must_see_my_write",
            Self::SecondsStale(_) => "seconds_stale",
            Self::Eventual => "eventual",
        }
    }
}

/// A class together with what to do when no replica can serve it at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadOptions {
    class: ReadClass,
    wait: Option<Duration>,
    fallback: Fallback,
    group: Option<&'static str>,
}

/// Where a read goes that no replica can serve within its wait budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fallback {
    /// To the primary, with a reason.
    #[default]
    Primary,
    /// Nowhere: the caller gets an error that says why.
    Error,
}

impl ReadOptions {
    /// The class with the default wait budget and the primary as fallback.
    #[must_use]
    pub const fn new(class: ReadClass) -> Self {
        Self { class, wait: None, fallback: Fallback::Primary, group: None }
    }

    /// Waits this long for a replica to become good enough. Zero means: decide on what is known now.
    ///
    /// Defaults to [`Config::strict_wait`](crate::Config::strict_wait) for
    /// [`MustSeeMyWrite`](ReadClass::MustSeeMyWrite), to
    /// [`Config::bounded_wait`](crate::Config::bounded_wait) for [`SecondsStale`](ReadClass::SecondsStale).
    /// [`Eventual`](ReadClass::Eventual) has nothing to wait for.
    #[must_use]
    pub const fn wait(mut self, budget: Duration) -> Self {
        self.wait = Some(budget);
        self
    }

    /// Returns an error, instead of reading on the primary, if no replica can serve the class. Statements that are no
    /// reads still go to the primary.
    #[must_use]
    pub const fn or_error(mut self) -> Self {
        self.fallback = Fallback::Error;
        self
    }

    /// Reads only on replicas of [this group](crate::ReplicaConfig::group). Defaults to all replicas.
    #[must_use]
    pub const fn in_group(mut self, name: &'static str) -> Self {
        self.group = Some(name);
        self
    }

    /// The group of replicas asked for; `None` means all.
    #[must_use]
    pub const fn group(&self) -> Option<&'static str> {
        self.group
    }

    /// The class asked for.
    #[must_use]
    pub const fn class(&self) -> ReadClass {
        self.class
    }

    /// The wait budget asked for; `None` means the class's default.
    #[must_use]
    pub const fn wait_budget(&self) -> Option<Duration> {
        self.wait
    }

    /// How long the read may wait, with the defaults of `config` where the caller said nothing.
    #[must_use]
    pub fn budget(&self, config: &Config) -> Duration {
        self.wait.unwrap_or(match self.class {
            ReadClass::MustSeeMyWrite => config.strict_wait,
            ReadClass::SecondsStale(_) => config.bounded_wait,
            ReadClass::Eventual => Duration::ZERO,
        })
    }

    /// What happens when no replica can serve the class.
    #[must_use]
    pub const fn fallback(&self) -> Fallback {
        self.fallback
    }
}

impl From<ReadClass> for ReadOptions {
    fn from(class: ReadClass) -> Self {
        Self::new(class)
    }
}
