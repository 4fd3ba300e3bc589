//! `sea-router` on real servers: the scenarios of all adapters, and what is SeaORM's own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use read_router::{Config, ReadOptions, Served, Stats, Token};
use read_router_scenarios::{self as scenarios, Gate, Subject};
use sea_orm::{ConnectionTrait, DbBackend, DbErr, Statement};
use sea_router::RoutingConnection;

mod access;
mod differential;
mod failover;
mod found;
mod handles;
mod input;
mod monotonic;
mod observed;
mod recipes;
mod rules;
mod surface;
mod transactions;

/// The adapter as scenarios see it.
#[derive(Clone)]
struct Sea(RoutingConnection);

impl Subject for Sea {
    type Error = DbErr;

    async fn connect(primary: &str, replicas: &[String], config: Config) -> Result<Self, DbErr> {
        let builder = RoutingConnection::builder(options(primary)).config(config);
        Ok(Self(builder.replicas(replicas.iter().map(|url| options(url))).connect().await?))
    }

    fn new_session(&self) -> Self {
        Self(self.0.new_session())
    }

    fn resume(&self, token: Token) -> Self {
        Self(self.0.resume(token))
    }

    async fn token(&self) -> Token {
        self.0.token().await
    }

    async fn execute(&self, sql: &str) -> Result<(), DbErr> {
        self.0.execute_unprepared(sql).await.map(drop)
    }

    async fn number(&self, options: Option<ReadOptions>, sql: &str) -> Result<Option<i64>, DbErr> {
        let view = match options {
            Some(options) => self.0.read(options),
            None => self.0.clone(),
        };
        let row = view.query_one_raw(Statement::from_string(DbBackend::Postgres, sql)).await?;
        row.map(|row| row.try_get_by_index(0)).transpose()
    }

    fn last_served(&self) -> Option<Served> {
        self.0.last_served()
    }

    fn stats(&self) -> Stats {
        self.0.stats()
    }
}

fn options(url: &str) -> sea_orm::ConnectOptions {
    let mut options = sea_orm::ConnectOptions::new(url);
    options.max_connections(20).sqlx_logging(false);
    options
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_replay() {
    scenarios::paused_replay::<Sea>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_replica_serves_within_the_budget() {
    scenarios::delayed_replica_serves_within_the_budget::<Sea>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_commit_older_than_the_bound_is_missed() {
    scenarios::no_commit_older_than_the_bound_is_missed::<Sea>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_primary() {
    scenarios::idle_primary::<Sea>(Duration::from_secs(seconds("READ_ROUTER_IDLE_SECONDS", 20))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_goes_to_another_process() {
    scenarios::token_goes_to_another_process::<Sea>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steady_state_costs_nothing() {
    scenarios::steady_state_costs_nothing::<Sea>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_then_reads_are_never_stale() {
    let outcome = scenarios::writes_then_reads::<Sea>(Gate::On, 16, 20_000, 1).await;
    println!("gated: {outcome:?}");
    assert_eq!(outcome.stale, 0, "{outcome:?}");
    assert_eq!(outcome.failed, 0, "{outcome:?}");
    assert!(outcome.on_replicas * 4 > outcome.reads, "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_gate_the_same_load_sees_stale_reads() {
    let outcome = scenarios::writes_then_reads::<Sea>(Gate::Off, 16, 4_000, 1).await;
    println!("not gated: {outcome:?}");
    assert!(outcome.stale > 0, "{outcome:?}");
}

/// A number of seconds from the environment, for the long runs of the closing notes.
fn seconds(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
