//! The async adapter: the scenarios of all adapters, and what is diesel-async's own.

use std::time::Duration;

use diesel::{
    QueryableByName,
    pg::Pg,
    result::Error,
    row::{Field, Row},
    sql_types::BigInt,
};
use diesel_async::{AsyncConnectionCore, RunQueryDsl, SimpleAsyncConnection};
use diesel_router::{AsyncRouter, AsyncRoutingConnection};
use futures_util::TryStreamExt;
use read_router::{Config, ReadOptions, Served, Stats, Token};
use read_router_scenarios::{self as scenarios, Gate, Subject};

mod checkouts;
mod pools;
mod routing;
mod transactions;
mod types;

/// The adapter as scenarios see it.
struct Async(AsyncRoutingConnection);

impl Clone for Async {
    fn clone(&self) -> Self {
        Self(self.0.same_session())
    }
}

impl Subject for Async {
    type Error = diesel_router::Error;

    async fn connect(primary: &str, replicas: &[String], config: Config) -> Result<Self, Self::Error> {
        let builder = AsyncRouter::builder(primary).replicas(replicas).config(config).pool_size(20);
        Ok(Self(builder.connect().await?.session()))
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

    async fn execute(&self, sql: &str) -> Result<(), Self::Error> {
        self.0.same_session().batch_execute(sql).await.map_err(failed)
    }

    async fn number(&self, options: Option<ReadOptions>, sql: &str) -> Result<Option<i64>, Self::Error> {
        let mut connection = self.0.same_session();
        let query = diesel::sql_query(sql);
        let rows = match options {
            Some(options) => AsyncConnectionCore::load(connection.read(options), query).await,
            None => AsyncConnectionCore::load(&mut connection, query).await,
        };
        let rows: Vec<_> = rows.map_err(failed)?.try_collect().await.map_err(failed)?;
        Ok(rows.iter().next().and_then(integer))
    }

    fn last_served(&self) -> Option<Served> {
        self.0.last_served()
    }

    fn stats(&self) -> Stats {
        self.0.stats()
    }
}

fn failed(error: Error) -> diesel_router::Error {
    let source = diesel::ConnectionError::CouldntSetupConfiguration(error);
    diesel_router::Error::Connect { node: diesel_router::NodeId::PRIMARY, source }
}

/// The first column, which is an integer of any size.
fn integer(row: &impl for<'a> Row<'a, Pg>) -> Option<i64> {
    let field = row.get(0)?;
    let value = field.value()?;
    match *value.as_bytes() {
        [a, b, c, d] => Some(i32::from_be_bytes([a, b, c, d]).into()),
        [a, b, c, d, e, f, g, h] => Some(i64::from_be_bytes([a, b, c, d, e, f, g, h])),
        _ => None,
    }
}

#[derive(QueryableByName)]
struct Number {
    #[diesel(sql_type = diesel::sql_types::Nullable<BigInt>)]
    number: Option<i64>,
}

/// One number of any connection.
async fn number<C>(connection: &mut C, sql: &str) -> Result<i64, Error>
where
    C: diesel_async::AsyncConnection<Backend = diesel::pg::Pg>,
{
    let sql = format!("SELECT ({sql})::bigint AS number");
    let row: Number = diesel::sql_query(sql).get_result(connection).await?;
    row.number.ok_or(Error::NotFound)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_replay() {
    scenarios::paused_replay::<Async>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_replica_serves_within_the_budget() {
    scenarios::delayed_replica_serves_within_the_budget::<Async>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_commit_older_than_the_bound_is_missed() {
    scenarios::no_commit_older_than_the_bound_is_missed::<Async>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_primary() {
    scenarios::idle_primary::<Async>(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_goes_to_another_process() {
    scenarios::token_goes_to_another_process::<Async>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steady_state_costs_nothing() {
    scenarios::steady_state_costs_nothing::<Async>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_then_reads_are_never_stale() {
    let outcome = scenarios::writes_then_reads::<Async>(Gate::On, 16, 10_000, 1).await;
    println!("gated: {outcome:?}");
    assert_eq!(outcome.stale, 0, "{outcome:?}");
    assert_eq!(outcome.failed, 0, "{outcome:?}");
    assert!(outcome.on_replicas * 4 > outcome.reads, "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_gate_the_same_load_sees_stale_reads() {
    let outcome = scenarios::writes_then_reads::<Async>(Gate::Off, 16, 4_000, 1).await;
    println!("not gated: {outcome:?}");
    assert!(outcome.stale > 0, "{outcome:?}");
}
