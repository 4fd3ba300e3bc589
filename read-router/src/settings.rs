//! The settings that every adapter's builder has, said once.

/// Setters of a builder with the fields `config`, `sessions`, `unannotated`, `misrouted` and `pins`, for use in its `impl`.
///
/// For adapters: what is promised of these settings is the same whichever of them is configured.
#[doc(hidden)]
#[macro_export]
macro_rules! settings {
    () => {
        /// How long a `MustSeeMyWrite` read waits for a replica to catch up before it goes to the primary. A replica that
        /// lags by more than ten times as much is not waited for. Zero means: decide on what is known. Defaults to 100 ms.
        pub fn strict_wait(mut self, budget: ::std::time::Duration) -> Self {
            self.config.strict_wait = budget;
            self
        }

        /// How long a `SecondsStale` read waits for a fresher proof. Defaults to 100 ms.
        pub fn bounded_wait(mut self, budget: ::std::time::Duration) -> Self {
            self.config.bounded_wait = budget;
            self
        }

        /// Time from one probe of a node to the next while nobody waits. Defaults to 100 ms.
        pub fn probe_interval(mut self, interval: ::std::time::Duration) -> Self {
            self.config.probe_interval = interval;
            self
        }

        /// Whether a `MustSeeMyWrite` read that falls back to the primary waits until the primary shows all that replicas
        /// have shown its session. Defaults to `false`.
        ///
        /// A standby shows a commit a moment before its primary does, and with synchronous replication for as long as the
        /// primary waits for its standbys: a read on a replica followed by one on the primary may then go back in time, by
        /// commits that were not acknowledged to anyone yet. With this option it does not, for every session of what is
        /// built here and for tokens handed over between processes that all have it.
        ///
        /// It adds no statement and costs nothing while replicas serve. A fallback after a replica read waits for an answer
        /// of that replica, or of another one that is past it, and for one of the primary, which takes milliseconds; it
        /// waits as long as a transaction runs on the primary that is older than what the replica showed. What the wait
        /// budget does not cover is an error whose [`refusal`](crate::refusal) says
        /// [`Unsettled`](crate::PrimaryReason::Unsettled): also where all replicas are gone since, and with a budget of zero.
        /// Writes, transactions that may write, and reads without a class never wait.
        pub fn monotonic_fallback(mut self, wanted: bool) -> Self {
            self.sessions.monotonic_fallback = wanted;
            self
        }

        /// How long a session's `Eventual` and `SecondsStale` reads go to the primary after each of its writes. Defaults to
        /// no time at all.
        ///
        /// The cheap alternative to `MustSeeMyWrite` and tokens, and a guess where they have proof: a replica that lags by
        /// more is read without the write. Where a user's sessions live no longer than a request, keep the connection's
        /// `last_write` between them and begin the next one after it.
        pub fn primary_window(mut self, window: ::std::time::Duration) -> Self {
            self.sessions.primary_window = Some(window);
            self
        }

        /// What a read without a class is. Defaults to [`Unannotated::Primary`](crate::Unannotated::Primary), so that a swap
        /// changes nothing; `unannotated(ReadClass::MustSeeMyWrite)` sends every read to replicas that have what its session
        /// must see.
        pub fn unannotated(mut self, unannotated: impl Into<$crate::Unannotated>) -> Self {
            self.unannotated = unannotated.into();
            self
        }

        /// Calls of this function are reads, or are for the primary, whatever the catalogue says: for a function that is
        /// declared `VOLATILE` though it only reads, say, or in a language that is not looked into. Defaults to what the
        /// [catalogue]($crate::Catalogue) says.
        ///
        /// The name is written as in SQL: `my_udf`, `app.my_udf`, `"MyUdf"`; without a schema it speaks of all that have
        /// it. What is no name, and a built-in function that can be no read, is an error of [`connect`](Self::connect).
        pub fn function(self, name: &str, access: $crate::Access) -> Self {
            self.pinned(|pins| pins.function(name, access))
        }

        /// Queries of this table or view are reads, or are for the primary, whatever the catalogue says. The name is as for
        /// [`function`](Self::function). Defaults to what the catalogue says.
        pub fn table(self, name: &str, access: $crate::Access) -> Self {
            self.pinned(|pins| pins.table(name, access))
        }

        /// The first that is none counts.
        fn pinned(
            mut self,
            pin: impl FnOnce(&mut $crate::Pins) -> ::std::result::Result<(), $crate::PinError>,
        ) -> Self {
            self.pins = self.pins.and_then(|mut pins| pin(&mut pins).map(|()| pins));
            self
        }

        /// What happens to a write that passed for a read. Defaults to [`Misrouted::Repeat`](crate::Misrouted::Repeat).
        pub fn on_misrouted(mut self, misrouted: $crate::Misrouted) -> Self {
            self.misrouted = misrouted;
            self
        }
    };
}
