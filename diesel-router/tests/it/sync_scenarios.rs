//! The scenarios of all adapters, over the sync connection.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use diesel::{QueryResult, connection::SimpleConnection};
use diesel_router::{Config, ReadOptions, Router, RoutingConnection, Served, Stats, Token};
use read_router_scenarios::{self as scenarios, Gate, Subject};

use crate::sync_support::number;

/// The adapter as scenarios see it. Each call has a handle of its own, of the same session.
#[derive(Clone)]
struct Blocking {
    router: Router,
    session: Arc<Mutex<RoutingConnection>>,
}

impl Blocking {
    fn of(connection: RoutingConnection) -> Self {
        Self { router: connection.router().clone(), session: Arc::new(Mutex::new(connection)) }
    }

    fn handle(&self) -> RoutingConnection {
        self.session.lock().unwrap().same_session()
    }

    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce(&mut RoutingConnection) -> T + Send + 'static) -> T {
        let mut handle = self.handle();
        tokio::task::spawn_blocking(move || work(&mut handle)).await.unwrap()
    }
}

impl Subject for Blocking {
    type Error = Error;

    async fn connect(primary: &str, replicas: &[String], config: Config) -> Result<Self, Error> {
        let builder = Router::builder(primary).replicas(replicas).config(config).pool_size(20);
        let router = tokio::task::spawn_blocking(move || builder.connect()).await.unwrap();
        Ok(Self::of(router.map_err(|error| Error(error.to_string()))?.session()))
    }

    fn new_session(&self) -> Self {
        Self::of(self.router.session())
    }

    fn resume(&self, token: Token) -> Self {
        Self::of(self.router.resume(token))
    }

    async fn token(&self) -> Token {
        self.blocking(RoutingConnection::token).await
    }

    async fn execute(&self, sql: &str) -> Result<(), Error> {
        let sql = sql.to_owned();
        Ok(self.blocking(move |conn| conn.batch_execute(&sql)).await?)
    }

    async fn number(&self, options: Option<ReadOptions>, sql: &str) -> Result<Option<i64>, Error> {
        let sql = sql.to_owned();
        let read = move |conn: &mut RoutingConnection| -> QueryResult<Option<i64>> {
            match options {
                Some(options) => number(conn.read(options), &sql),
                None => number(conn, &sql),
            }
        };
        Ok(self.blocking(read).await?)
    }

    fn last_served(&self) -> Option<Served> {
        self.session.lock().unwrap().last_served()
    }

    fn stats(&self) -> Stats {
        self.router.stats()
    }
}

/// Diesel's error, which is not `Sync` in all its parts.
#[derive(Debug)]
struct Error(String);

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<diesel::result::Error> for Error {
    fn from(error: diesel::result::Error) -> Self {
        Self(error.to_string())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_replay() {
    scenarios::paused_replay::<Blocking>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_replica_serves_within_the_budget() {
    scenarios::delayed_replica_serves_within_the_budget::<Blocking>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_commit_older_than_the_bound_is_missed() {
    scenarios::no_commit_older_than_the_bound_is_missed::<Blocking>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_primary() {
    scenarios::idle_primary::<Blocking>(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_goes_to_another_process() {
    scenarios::token_goes_to_another_process::<Blocking>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steady_state_costs_nothing() {
    scenarios::steady_state_costs_nothing::<Blocking>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_then_reads_are_never_stale() {
    let outcome = scenarios::writes_then_reads::<Blocking>(Gate::On, 16, 8_000, 1).await;
    println!("gated: {outcome:?}");
    assert_eq!(outcome.stale, 0, "{outcome:?}");
    assert_eq!(outcome.failed, 0, "{outcome:?}");
    assert!(outcome.on_replicas * 4 > outcome.reads, "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_gate_the_same_load_sees_stale_reads() {
    let outcome = scenarios::writes_then_reads::<Blocking>(Gate::Off, 16, 4_000, 1).await;
    println!("not gated: {outcome:?}");
    assert!(outcome.stale > 0, "{outcome:?}");
}
