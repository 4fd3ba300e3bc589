//! The scenarios of all adapters, over the async connection.

use std::sync::Arc;

use diesel::{OptionalExtension, pg::Pg};
use diesel_async::{AsyncConnection, RunQueryDsl, SimpleAsyncConnection, TransactionManager};
use diesel_router::{AsyncRouter, AsyncRoutingConnection, RoutedTransactions};
use read_router::{PrimaryReason, ReadOptions, Served, Stats, Token, Topology};
use read_router_scenarios::{self as scenarios, Isolation, Setup, Subject, Transaction};

use crate::{
    failed::{Failed, begin_read_only},
    sync_support::Number,
};

/// The adapter as scenarios see it.
pub(crate) struct Async(pub(crate) AsyncRoutingConnection);

impl Clone for Async {
    fn clone(&self) -> Self {
        Self(self.0.same_session())
    }
}

impl Subject for Async {
    type Error = Failed;
    type Transaction = AsyncTransaction;

    async fn connect(primary: &str, replicas: &[String], setup: Setup) -> Result<Self, Failed> {
        let size = usize::try_from(setup.connections).unwrap();
        let builder = AsyncRouter::builder(primary).replicas(replicas).config(setup.config);
        let builder = builder.pool_size(size).monotonic_fallback(setup.monotonic_fallback);
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

    async fn execute(&self, sql: &str) -> Result<(), Failed> {
        Ok(self.0.same_session().batch_execute(sql).await?)
    }

    async fn number(&self, options: Option<ReadOptions>, sql: &str) -> Result<Option<i64>, Failed> {
        let mut connection = self.0.same_session();
        match options {
            Some(options) => number(connection.read(options), sql).await,
            None => number(&mut connection, sql).await,
        }
    }

    async fn begin(&self) -> Result<AsyncTransaction, Failed> {
        let mut connection = self.0.same_session();
        RoutedTransactions::begin_transaction(&mut connection).await?;
        Ok(AsyncTransaction(connection))
    }

    async fn begin_read(&self, options: ReadOptions, isolation: Isolation) -> Result<AsyncTransaction, Failed> {
        let mut connection = self.0.same_session();
        connection.read(options).batch_execute(begin_read_only(isolation)).await?;
        Ok(AsyncTransaction(connection))
    }

    fn refusal(error: &Failed) -> Option<PrimaryReason> {
        error.reason
    }

    fn last_served(&self) -> Option<Served> {
        self.0.last_served()
    }

    fn topology(&self) -> Arc<Topology> {
        self.0.topology()
    }

    fn stats(&self) -> Stats {
        self.0.stats()
    }
}

/// A handle with an open transaction, begun by Diesel's manager or by a text.
pub(crate) struct AsyncTransaction(AsyncRoutingConnection);

impl Transaction for AsyncTransaction {
    type Error = Failed;

    async fn execute(&mut self, sql: &str) -> Result<(), Failed> {
        Ok(self.0.batch_execute(sql).await?)
    }

    async fn number(&mut self, sql: &str) -> Result<Option<i64>, Failed> {
        number(&mut self.0, sql).await
    }

    async fn commit(mut self) -> Result<(), Failed> {
        Ok(self.0.batch_execute("COMMIT").await?)
    }

    async fn rollback(mut self) -> Result<(), Failed> {
        Ok(self.0.batch_execute("ROLLBACK").await?)
    }
}

/// One number; `None` if there is no row.
async fn number<C: AsyncConnection<Backend = Pg>>(connection: &mut C, sql: &str) -> Result<Option<i64>, Failed> {
    Ok(Number(sql).get_result::<i64>(connection).await.optional()?)
}

scenarios::tests!(Async);
