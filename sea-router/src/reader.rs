//! A handle that only reads.

use std::{fmt, future::Future, pin::Pin};

use async_trait::async_trait;
use read_router::{PrimaryReason, ReadOptions, StatementKind, live::Call};
use sea_orm::{
    AccessMode, ConnectionTrait, DbBackend, DbErr, ExecResult, IsolationLevel, QueryResult, Statement, StreamTrait,
    TransactionError, TransactionOptions, TransactionTrait,
};

use crate::{
    RoutedStream, RoutedTransaction, RoutingConnection, error,
    fetch::{All, Execute, Fetch, One},
    routing::Access,
    spans::in_span,
    transaction::run,
};

/// A cloneable, read-only handle of one class, for application state and for the signatures of handlers that read.
///
/// Each read goes where the class sends it. A statement that is not a query, or that names anything that writes, is
/// refused with an error before it is sent to any server, in and out of transactions. A query that is not *provably* a
/// read, because it calls a function of the user's, runs on the primary, on a connection that is read-only
/// (`default_transaction_read_only`), so that a hidden write fails there.
///
/// [`begin`](TransactionTrait::begin) starts a READ ONLY transaction on one replica that was proven when it began, or, if
/// none could be, on the primary, READ ONLY too; it stays there to its end. If that server is promoted meanwhile, the
/// transaction goes on, read-only; if it dies or hangs, its statements fail, and begin must be called again.
///
/// For code that is bound to it the transaction dereferences to SeaORM's own type; what is run through that, the server
/// refuses if it writes, unless it is asked for READ WRITE by name.
///
/// A reader shares the session of the connection that it was made from: `MustSeeMyWrite` speaks of that one.
#[derive(Clone)]
pub struct Reader {
    connection: RoutingConnection,
    options: ReadOptions,
    isolation: Option<IsolationLevel>,
}

impl RoutingConnection {
    /// A read-only handle of this class, of the same session.
    pub fn reader(&self, options: impl Into<ReadOptions>) -> Reader {
        let options = options.into();
        Reader { connection: self.read(options), options, isolation: None }
    }
}

impl Reader {
    /// The isolation level of its transactions. Defaults to the server's (READ COMMITTED). `RepeatableRead` sees one
    /// snapshot throughout; replicas have no `Serializable`, which goes to the primary.
    #[must_use]
    pub fn isolation_level(mut self, level: IsolationLevel) -> Self {
        self.isolation = Some(level);
        self
    }

    /// The routing connection that it was made from, with the reader's class.
    pub fn connection(&self) -> &RoutingConnection {
        &self.connection
    }

    async fn fetch<F: Fetch>(&self, statement: Statement) -> Result<F::Out, DbErr> {
        match self.kind(&statement.sql)? {
            Kind::Read => self.connection.read_on_any::<F>(statement, self.options, Access::ReadOnly).await,
            Kind::Query => {
                let (primary, call) = (self.connection.primary_for(Access::ReadOnly), Call::new(self.options));
                self.connection.read_on_primary::<F>(primary, &statement, Some(&call), PrimaryReason::NotARead).await
            }
        }
    }

    fn kind(&self, sql: &str) -> Result<Kind, DbErr> {
        match self.connection.inner.watch.kinds.kind(sql) {
            StatementKind::Read => Ok(Kind::Read),
            StatementKind::Primary(_) if StatementKind::is_query(sql) => Ok(Kind::Query),
            StatementKind::Primary(what) => Err(error::read_only(what)),
        }
    }
}

enum Kind {
    /// Any server can answer it.
    Read,
    /// It may be a read.
    Query,
}

#[async_trait]
impl ConnectionTrait for Reader {
    fn get_database_backend(&self) -> DbBackend {
        DbBackend::Postgres
    }

    async fn execute_raw(&self, stmt: Statement) -> Result<ExecResult, DbErr> {
        in_span!("sea_orm.execute", &*stmt.sql, self.connection.records(), self.fetch::<Execute>(stmt))
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        let work = self.fetch::<Execute>(Statement::from_string(DbBackend::Postgres, sql));
        in_span!("sea_orm.execute_unprepared", sql, false, work)
    }

    async fn query_one_raw(&self, stmt: Statement) -> Result<Option<QueryResult>, DbErr> {
        in_span!("sea_orm.query_one", &*stmt.sql, self.connection.records(), self.fetch::<One>(stmt))
    }

    async fn query_all_raw(&self, stmt: Statement) -> Result<Vec<QueryResult>, DbErr> {
        in_span!("sea_orm.query_all", &*stmt.sql, self.connection.records(), self.fetch::<All>(stmt))
    }

    fn support_returning(&self) -> bool {
        true
    }
}

impl StreamTrait for Reader {
    type Stream<'a> = RoutedStream;

    fn get_database_backend(&self) -> DbBackend {
        DbBackend::Postgres
    }

    fn stream_raw<'a>(
        &'a self,
        stmt: Statement,
    ) -> Pin<Box<dyn Future<Output = Result<Self::Stream<'a>, DbErr>> + 'a + Send>> {
        Box::pin(async move {
            let span = self.connection.stream_span(&stmt.sql);
            let stream = span.around(async {
                match self.kind(&stmt.sql)? {
                    Kind::Read => self.connection.stream_read(stmt, self.options, Access::ReadOnly).await,
                    Kind::Query => {
                        let (primary, call) = (self.connection.primary_for(Access::ReadOnly), Call::new(self.options));
                        self.connection.stream_from(primary, stmt, Some(&call), PrimaryReason::NotARead).await
                    }
                }
            });
            Ok(stream.await?.in_span(span))
        })
    }
}

#[async_trait]
impl TransactionTrait for Reader {
    type Transaction = RoutedTransaction;

    async fn begin(&self) -> Result<RoutedTransaction, DbErr> {
        self.begin_with_options(TransactionOptions::default()).await
    }

    async fn begin_with_config(
        &self,
        isolation_level: Option<IsolationLevel>,
        access_mode: Option<AccessMode>,
    ) -> Result<RoutedTransaction, DbErr> {
        self.begin_with_options(TransactionOptions { isolation_level, access_mode, ..Default::default() }).await
    }

    async fn begin_with_options(&self, options: TransactionOptions) -> Result<RoutedTransaction, DbErr> {
        if options.access_mode == Some(AccessMode::ReadWrite) {
            return Err(error::read_write_transaction());
        }
        let isolation_level = options.isolation_level.or(self.isolation);
        let options = TransactionOptions { isolation_level, access_mode: Some(AccessMode::ReadOnly), ..options };
        Ok(self.connection.begin_with(options).await?.refusing_writes())
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

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("options", &self.options).field("isolation", &self.isolation).finish()
    }
}
