//! The scenarios of all adapters, over the sync connection.

use std::sync::{Arc, Mutex};

use diesel::{
    QueryResult,
    connection::{AnsiTransactionManager, SimpleConnection, TransactionManager},
};
use diesel_router::{PrimaryReason, ReadOptions, Router, RoutingConnection, Served, Stats, Token, Topology};
use read_router_scenarios::{self as scenarios, Isolation, Setup, Subject, Transaction};

use crate::{
    failed::{Failed, begin_read_only},
    sync_support::number,
};

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
    type Error = Failed;
    type Transaction = BlockingTransaction;
    const CALLS_BLOCK: bool = true;

    async fn connect(primary: &str, replicas: &[String], setup: Setup) -> Result<Self, Failed> {
        let builder = Router::builder(primary).replicas(replicas).config(setup.config);
        let builder = builder.pool_size(setup.connections).monotonic_fallback(setup.monotonic_fallback);
        let router = tokio::task::spawn_blocking(move || builder.connect()).await.unwrap();
        Ok(Self::of(router?.session()))
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

    async fn execute(&self, sql: &str) -> Result<(), Failed> {
        let sql = sql.to_owned();
        Ok(self.blocking(move |conn| conn.batch_execute(&sql)).await?)
    }

    async fn number(&self, options: Option<ReadOptions>, sql: &str) -> Result<Option<i64>, Failed> {
        let sql = sql.to_owned();
        let read = move |conn: &mut RoutingConnection| -> QueryResult<Option<i64>> {
            match options {
                Some(options) => number(conn.read(options), &sql),
                None => number(conn, &sql),
            }
        };
        Ok(self.blocking(read).await?)
    }

    async fn begin(&self) -> Result<BlockingTransaction, Failed> {
        BlockingTransaction::begun(self.handle(), AnsiTransactionManager::begin_transaction).await
    }

    async fn begin_read(&self, options: ReadOptions, isolation: Isolation) -> Result<BlockingTransaction, Failed> {
        let begin = move |conn: &mut RoutingConnection| {
            AnsiTransactionManager::begin_transaction_sql(conn.read(options), begin_read_only(isolation))
        };
        BlockingTransaction::begun(self.handle(), begin).await
    }

    fn refusal(error: &Failed) -> Option<PrimaryReason> {
        error.reason
    }

    fn last_served(&self) -> Option<Served> {
        self.session.lock().unwrap().last_served()
    }

    fn topology(&self) -> Arc<Topology> {
        self.router.topology()
    }

    fn stats(&self) -> Stats {
        self.router.stats()
    }
}

/// A handle with an open transaction.
struct BlockingTransaction(Option<RoutingConnection>);

impl BlockingTransaction {
    async fn run<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut RoutingConnection) -> QueryResult<T> + Send + 'static,
    ) -> Result<T, Failed> {
        let mut handle = self.0.take().unwrap();
        let done = tokio::task::spawn_blocking(move || (work(&mut handle), handle));
        let (out, handle) = done.await.unwrap();
        self.0 = Some(handle);
        Ok(out?)
    }

    async fn begun(
        handle: RoutingConnection,
        begin: impl FnOnce(&mut RoutingConnection) -> QueryResult<()> + Send + 'static,
    ) -> Result<Self, Failed> {
        let mut transaction = Self(Some(handle));
        transaction.run(begin).await?;
        Ok(transaction)
    }
}

impl Transaction for BlockingTransaction {
    type Error = Failed;

    async fn execute(&mut self, sql: &str) -> Result<(), Failed> {
        let sql = sql.to_owned();
        self.run(move |conn| conn.batch_execute(&sql)).await
    }

    async fn number(&mut self, sql: &str) -> Result<Option<i64>, Failed> {
        let sql = sql.to_owned();
        self.run(move |conn| number(conn, &sql)).await
    }

    async fn commit(mut self) -> Result<(), Failed> {
        self.run(AnsiTransactionManager::commit_transaction).await
    }

    async fn rollback(mut self) -> Result<(), Failed> {
        self.run(AnsiTransactionManager::rollback_transaction).await
    }
}

scenarios::tests!(Blocking);
