//! SeaORM's traits for the routing connection.

use std::{fmt, future::Future, pin::Pin};

use async_trait::async_trait;
use read_router::{Destination, PrimaryReason};
use sea_orm::{
    AccessMode, ConnectionTrait, DbBackend, DbErr, ExecResult, IsolationLevel, QueryResult, Statement,
    StatementBuilder, StreamTrait, TransactionError, TransactionOptions, TransactionTrait,
};

use crate::{
    RoutedStream, RoutedTransaction, RoutingConnection,
    fetch::{All, Execute, ExecuteUnprepared, One},
    routing::Access,
    spans::in_span,
    transaction::run,
};

#[async_trait]
impl ConnectionTrait for RoutingConnection {
    fn get_database_backend(&self) -> DbBackend {
        DbBackend::Postgres
    }

    async fn execute_raw(&self, stmt: Statement) -> Result<ExecResult, DbErr> {
        in_span!("sea_orm.execute", &*stmt.sql, self.records(), self.write::<Execute>(stmt, PrimaryReason::NotARead))
    }

    async fn execute<S: StatementBuilder>(&self, stmt: &S) -> Result<ExecResult, DbErr> {
        self.execute_raw(DbBackend::Postgres.build(stmt)).await
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        let statement = Statement::from_string(DbBackend::Postgres, sql);
        let work = self.write::<ExecuteUnprepared>(statement, PrimaryReason::NotARead);
        in_span!("sea_orm.execute_unprepared", sql, false, work)
    }

    async fn query_one_raw(&self, stmt: Statement) -> Result<Option<QueryResult>, DbErr> {
        in_span!("sea_orm.query_one", &*stmt.sql, self.records(), self.query::<One>(stmt))
    }

    async fn query_one<S: StatementBuilder>(&self, stmt: &S) -> Result<Option<QueryResult>, DbErr> {
        self.query_one_raw(DbBackend::Postgres.build(stmt)).await
    }

    async fn query_all_raw(&self, stmt: Statement) -> Result<Vec<QueryResult>, DbErr> {
        in_span!("sea_orm.query_all", &*stmt.sql, self.records(), self.query::<All>(stmt))
    }

    async fn query_all<S: StatementBuilder>(&self, stmt: &S) -> Result<Vec<QueryResult>, DbErr> {
        self.query_all_raw(DbBackend::Postgres.build(stmt)).await
    }

    fn support_returning(&self) -> bool {
        true
    }

    fn is_mock_connection(&self) -> bool {
        false
    }
}

impl StreamTrait for RoutingConnection {
    type Stream<'a> = RoutedStream;

    fn get_database_backend(&self) -> DbBackend {
        DbBackend::Postgres
    }

    fn stream_raw<'a>(
        &'a self,
        stmt: Statement,
    ) -> Pin<Box<dyn Future<Output = Result<Self::Stream<'a>, DbErr>> + 'a + Send>> {
        Box::pin(async move {
            let span = self.stream_span(&stmt.sql);
            let stream = span.around(async {
                match self.destination(&stmt.sql)? {
                    Destination::Write(reason) => self.stream_write(stmt, reason).await,
                    Destination::Primary(reason) => self.stream_from_primary(stmt, None, reason).await,
                    Destination::Read(options) => self.stream_read(stmt, options, Access::Full).await,
                }
            });
            Ok(stream.await?.in_span(span))
        })
    }
}

#[async_trait]
impl TransactionTrait for RoutingConnection {
    type Transaction = RoutedTransaction;

    async fn begin(&self) -> Result<RoutedTransaction, DbErr> {
        self.begin_with(TransactionOptions::default()).await
    }

    async fn begin_with_config(
        &self,
        isolation_level: Option<IsolationLevel>,
        access_mode: Option<AccessMode>,
    ) -> Result<RoutedTransaction, DbErr> {
        self.begin_with(TransactionOptions { isolation_level, access_mode, ..Default::default() }).await
    }

    async fn begin_with_options(&self, options: TransactionOptions) -> Result<RoutedTransaction, DbErr> {
        self.begin_with(options).await
    }

    async fn transaction<F, T, E>(&self, callback: F) -> Result<T, TransactionError<E>>
    where
        F: for<'c> FnOnce(&'c RoutedTransaction) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>> + Send,
        T: Send,
        E: fmt::Display + fmt::Debug + Send,
    {
        run(self.begin().await, callback).await
    }

    async fn transaction_with_config<F, T, E>(
        &self,
        callback: F,
        isolation_level: Option<IsolationLevel>,
        access_mode: Option<AccessMode>,
    ) -> Result<T, TransactionError<E>>
    where
        F: for<'c> FnOnce(&'c RoutedTransaction) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>> + Send,
        T: Send,
        E: fmt::Display + fmt::Debug + Send,
    {
        run(self.begin_with_config(isolation_level, access_mode).await, callback).await
    }
}
