//! What every adapter must do on real servers, written once.
//!
//! Each scenario is a function generic over a [`Subject`], the small face that an adapter's tests give it. It starts
//! its own cluster, breaks it, and panics with what it saw if a promise does not hold. None depends on speed: a wait
//! has a condition and a generous limit.

use std::{future::Future, sync::Arc, time::Duration};

use read_router::{Config, PrimaryReason, ReadOptions, Served, Stats, Token, Topology};
use read_router_testkit::Cluster;

mod bounded;
mod history;
mod monotonic;
mod rules;
mod steady;
mod strict;
mod tokens;

pub use bounded::{idle_primary, no_commit_older_than_the_bound_is_missed};
pub use history::{without_the_gate_the_same_load_sees_stale_reads, writes_then_reads_are_never_stale};
pub use monotonic::{
    a_fallback_does_not_go_back_where_that_is_asked_for, a_fallback_waits_for_older_transactions_of_the_primary,
    pairs_of_a_replica_read_and_a_fallback, what_one_replica_is_still_replaying_no_other_read_misses,
};
#[cfg(read_router_mutants)]
pub use rules::off;
pub use rules::{
    branches::{
        a_primary_that_may_lack_what_was_seen_says_so, a_read_may_have_run_after_a_promotion,
        a_write_is_resolved_on_the_branch_of_its_own_connection,
        of_an_older_branch_only_what_lies_below_the_switch_survives, the_old_primary_is_no_fallback,
    },
    connections::{
        a_connection_is_not_trusted_for_what_was_observed_before_it, positions_are_never_merged_across_epochs,
        the_same_node_is_the_same_life_of_it,
    },
    probes::{
        an_ordinary_role_proves_nothing_after_a_promotion, the_control_file_says_nothing_once_no_primary_answers,
        the_position_is_read_before_the_timeline,
    },
    quarantine::{
        a_replica_that_is_ahead_of_its_primary_is_quarantined, asynchronous_commits_void_the_promise_across_a_crash,
    },
    sessions::{
        a_read_on_the_primary_counts, a_token_contains_what_replicas_have_shown,
        a_write_of_unknown_outcome_keeps_the_session_on_the_primary,
        an_answer_that_was_given_before_the_read_does_not_count, each_replica_read_counts_not_only_the_last,
    },
};
pub use steady::steady_state_costs_nothing;
pub use strict::{delayed_replica_serves_within_the_budget, paused_replay};
pub use tokens::token_goes_to_another_process;

/// The tests of one adapter: every scenario, each a test of its own, on the [`Subject`] that is named.
///
/// Its crate needs `tokio` with macros.
#[macro_export]
macro_rules! tests {
    ($subject:ty) => {
        $crate::tests! {
            @ $subject:
            paused_replay
            delayed_replica_serves_within_the_budget
            no_commit_older_than_the_bound_is_missed
            idle_primary
            token_goes_to_another_process
            steady_state_costs_nothing
            writes_then_reads_are_never_stale
            without_the_gate_the_same_load_sees_stale_reads
            a_fallback_does_not_go_back_where_that_is_asked_for
            a_fallback_waits_for_older_transactions_of_the_primary
            what_one_replica_is_still_replaying_no_other_read_misses
            pairs_of_a_replica_read_and_a_fallback
            a_write_is_resolved_on_the_branch_of_its_own_connection
            the_old_primary_is_no_fallback
            a_primary_that_may_lack_what_was_seen_says_so
            of_an_older_branch_only_what_lies_below_the_switch_survives
            a_read_may_have_run_after_a_promotion
            a_connection_is_not_trusted_for_what_was_observed_before_it
            positions_are_never_merged_across_epochs
            the_same_node_is_the_same_life_of_it
            the_position_is_read_before_the_timeline
            the_control_file_says_nothing_once_no_primary_answers
            an_ordinary_role_proves_nothing_after_a_promotion
            a_replica_that_is_ahead_of_its_primary_is_quarantined
            asynchronous_commits_void_the_promise_across_a_crash
            a_read_on_the_primary_counts
            a_write_of_unknown_outcome_keeps_the_session_on_the_primary
            an_answer_that_was_given_before_the_read_does_not_count
            each_replica_read_counts_not_only_the_last
            a_token_contains_what_replicas_have_shown
        }

        #[cfg(read_router_mutants)]
        #[test]
        fn each_rule_off_breaks_its_schedule() {
            $crate::off::each_rule_off_breaks_its_schedule(module_path!());
        }
    };
    (@ $subject:ty: $($scenario:ident)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $scenario() {
                $crate::$scenario::<$subject>().await;
            }
        )+
    };
}

/// How a subject connects.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The timings.
    pub config: Config,
    /// The size of each pool.
    pub connections: u32,
    /// Whether a fallback waits for what replicas have shown.
    pub monotonic_fallback: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self { config: Config::default(), connections: 20, monotonic_fallback: false }
    }
}

impl From<Config> for Setup {
    fn from(config: Config) -> Self {
        Self { config, ..Self::default() }
    }
}

/// The isolation of a READ ONLY transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// One snapshot throughout.
    RepeatableRead,
    /// Which no standby has.
    Serializable,
}

/// An adapter's connection, as far as scenarios use it. A clone is the same session.
pub trait Subject: Clone + Send + Sync + 'static {
    /// The ORM's error.
    type Error: std::error::Error + Send + Sync + 'static;
    /// Whether a call blocks its thread until the server has answered: its caller cannot go away before.
    const CALLS_BLOCK: bool = false;
    /// The adapter's transaction.
    type Transaction: Transaction<Error = Self::Error>;

    /// Connects as an application would.
    fn connect(
        primary: &str,
        replicas: &[String],
        setup: Setup,
    ) -> impl Future<Output = Result<Self, Self::Error>> + Send;

    /// A session of its own.
    fn new_session(&self) -> Self;

    /// A session that goes on where the token stands.
    fn resume(&self, token: Token) -> Self;

    /// The session's token.
    fn token(&self) -> impl Future<Output = Token> + Send;

    /// Runs a statement that writes.
    fn execute(&self, sql: &str) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Reads one number; `None` if there is no row. Without options the read is not annotated.
    fn number(
        &self,
        options: Option<ReadOptions>,
        sql: &str,
    ) -> impl Future<Output = Result<Option<i64>, Self::Error>> + Send;

    /// Begins a transaction that may write.
    fn begin(&self) -> impl Future<Output = Result<Self::Transaction, Self::Error>> + Send;

    /// Begins a READ ONLY transaction of a class.
    fn begin_read(
        &self,
        options: ReadOptions,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Self::Transaction, Self::Error>> + Send;

    /// Why a read with no fallback was refused, if that is what the error says.
    fn refusal(error: &Self::Error) -> Option<PrimaryReason>;

    /// Where the session's last statement was served.
    fn last_served(&self) -> Option<Served>;

    /// What is known of the servers.
    fn topology(&self) -> Arc<Topology>;

    /// The counters.
    fn stats(&self) -> Stats;
}

/// An adapter's transaction, as far as scenarios use it.
pub trait Transaction: Send + 'static {
    /// The ORM's error.
    type Error;

    /// Runs a statement that writes.
    fn execute(&mut self, sql: &str) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Reads one number; `None` if there is no row.
    fn number(&mut self, sql: &str) -> impl Future<Output = Result<Option<i64>, Self::Error>> + Send;

    /// Commits.
    fn commit(self) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Rolls back.
    fn rollback(self) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// A cluster with a connection to all of it.
pub struct Stage<S> {
    /// The servers.
    pub cluster: Arc<Cluster>,
    /// The connection.
    pub db: S,
}

impl<S: Subject> Stage<S> {
    /// Starts a primary and `replicas` standbys, runs `schema` on the primary, and connects.
    ///
    /// # Panics
    /// If that is not possible.
    pub async fn set(replicas: usize, schema: &str, config: Config, settings: &[(&str, &str)]) -> Self {
        let mut builder = Cluster::builder().replicas(replicas).setting("max_connections", "200");
        for (name, value) in settings {
            builder = builder.setting(*name, *value);
        }
        let cluster = tokio::task::spawn_blocking(move || builder.start()).await.expect("not cancelled");
        let cluster = Arc::new(cluster.unwrap_or_else(|error| panic!("{error}")));
        cluster.primary().sql(schema).expect("the schema is valid");
        cluster.wait_caught_up(LIMIT).expect("the standbys follow");
        let replicas: Vec<_> = cluster.replicas().iter().map(read_router_testkit::Node::url).collect();
        let db = S::connect(&cluster.primary().url(), &replicas, config.into()).await.expect("all servers are up");
        Self { cluster, db }
    }
}

/// How much of it: little in the tests that everyone runs, `long` where `READ_ROUTER_LONG` is set.
pub(crate) fn amount(short: u64, long: u64) -> u64 {
    if std::env::var_os("READ_ROUTER_LONG").is_some() { long } else { short }
}

/// How long a condition may take to come true on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Waits until `condition` holds.
///
/// # Panics
/// If it does not within [`LIMIT`]; `what` says what was waited for.
pub async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + LIMIT;
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "waited {LIMIT:?} in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs what blocks, such as a fault of the test kit, beside the tasks.
///
/// # Panics
/// If it fails.
pub async fn fault<E: std::fmt::Display + Send + 'static>(
    cluster: &Arc<Cluster>,
    f: impl FnOnce(&Cluster) -> Result<(), E> + Send + 'static,
) {
    let cluster = cluster.clone();
    let done = tokio::task::spawn_blocking(move || f(&cluster)).await.expect("not cancelled");
    done.unwrap_or_else(|error| panic!("fault: {error}"));
}
