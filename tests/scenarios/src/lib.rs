//! What every adapter must do on real servers, written once.
//!
//! Each scenario is a function generic over a [`Subject`], the small face that an adapter's tests give it. It starts
//! its own cluster, breaks it, and panics with what it saw if a promise does not hold. None depends on speed: a wait
//! has a condition and a generous limit.

use std::{future::Future, sync::Arc, time::Duration};

use read_router::{Config, ReadOptions, Served, Stats, Token};
use read_router_testkit::Cluster;

mod bounded;
mod history;
mod steady;
mod strict;
mod tokens;

pub use bounded::{idle_primary, no_commit_older_than_the_bound_is_missed};
pub use history::{Gate, Outcome, writes_then_reads};
pub use steady::steady_state_costs_nothing;
pub use strict::{delayed_replica_serves_within_the_budget, paused_replay};
pub use tokens::token_goes_to_another_process;

/// An adapter's connection, as far as scenarios use it. A clone is the same session.
pub trait Subject: Clone + Send + Sync + 'static {
    /// The ORM's error.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Connects as an application would.
    fn connect(
        primary: &str,
        replicas: &[String],
        config: Config,
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

    /// Where the session's last statement was served.
    fn last_served(&self) -> Option<Served>;

    /// The counters.
    fn stats(&self) -> Stats;
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
        let db = S::connect(&cluster.primary().url(), &replicas, config).await.expect("all servers are up");
        Self { cluster, db }
    }
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
