//! Transactions, whole on one server.

use std::{
    fmt,
    future::Future,
    ops::Deref,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::Stream;
use read_router::{
    BranchLost, Fallback, Greeting, NodeId, Opened, PrimaryReason, Proof, ReadClass, ReadOptions, Served,
    StatementKind, Token, View,
    live::{Busy, Call, SchemaChanges, now},
    probe,
};
use sea_orm::{
    AccessMode, ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, ExecResult, IsolationLevel, QueryResult,
    Statement, StreamTrait, TransactionError, TransactionOptions, TransactionSession, TransactionStream,
    TransactionTrait,
};

use crate::{
    RoutingConnection, doubt, error,
    finish::finish,
    metric::{Meter, Place as Ran},
    node::Node,
    openings::{Acquired, acquiring_until},
    routing::{Attempt, Missed, Outcome},
    spans::TransactionSpan,
    watch::while_serving,
};

/// A transaction that runs whole on one server: on the primary, or, begun READ ONLY on a view with a class, on one
/// replica proven good enough when it began. A write in a READ ONLY one is the server's own error, 25006 (`cannot execute
/// INSERT in a read-only transaction`), and is not repeated on the primary.
///
/// Dropped without [`commit`](Self::commit) it is rolled back. It dereferences to SeaORM's own
/// [`DatabaseTransaction`], for code that is bound to that type; a commit cannot go past the wrapper.
pub struct RoutedTransaction {
    /// Taken by commit and rollback only.
    inner: Option<DatabaseTransaction>,
    connection: RoutingConnection,
    place: Place,
    nested: bool,
    /// Whether what is no query is refused before it is sent.
    refuses_writes: bool,
    /// Whether someone may run statements past us: reads of the session stay on the primary meanwhile.
    given_out: AtomicBool,
    /// What the catalogue is read anew for once it is committed.
    schema: Arc<SchemaChanges>,
    span: TransactionSpan,
}

/// The server that runs a transaction.
#[derive(Clone)]
enum Place {
    Primary(Option<Opened>),
    Replica { node: NodeId, proof: Proof, served: Served, _busy: Arc<Busy> },
}

impl RoutingConnection {
    pub(crate) async fn begin_with(&self, options: TransactionOptions) -> Result<RoutedTransaction, DbErr> {
        let span = TransactionSpan::new();
        let mut transaction = span.around(self.begin_somewhere(options)).await?;
        transaction.span = span;
        Ok(transaction)
    }

    async fn begin_somewhere(&self, options: TransactionOptions) -> Result<RoutedTransaction, DbErr> {
        match self.view {
            View::Read(read) if options.access_mode == Some(AccessMode::ReadOnly) => {
                self.begin_read(options, read).await
            }
            _ => {
                self.count_primary(self.view.class(), PrimaryReason::Transaction, Duration::ZERO);
                let (inner, opened) = self.begin_on(self.inner.primary(), options, None).await?;
                Ok(self.transaction_of(inner, Place::Primary(opened)))
            }
        }
    }

    /// A read-only transaction of a class.
    async fn begin_read(&self, options: TransactionOptions, read: ReadOptions) -> Result<RoutedTransaction, DbErr> {
        let mut call = Call::new(read);
        let outcome = if options.isolation_level != Some(IsolationLevel::Serializable) {
            self.serve(&mut call, &BeginOnce { options }).await?
        } else if read.fallback() == Fallback::Primary {
            Outcome::Primary(PrimaryReason::Isolation)
        } else {
            return Err(self.refuse(&call, PrimaryReason::Isolation));
        };
        match outcome {
            Outcome::Served(transaction) => Ok(transaction),
            Outcome::Primary(reason) | Outcome::Misrouted(reason) => {
                self.begin_read_on_primary(options, &call, reason).await
            }
        }
    }

    async fn begin_read_on_primary(
        &self,
        options: TransactionOptions,
        call: &Call,
        reason: PrimaryReason,
    ) -> Result<RoutedTransaction, DbErr> {
        // Taken and given back: what it says of the branch holds for the next one, and old ones are closed on the way.
        let (checked, reason) = self.acquire_primary(self.inner.primary(), Some(call), reason).await?;
        drop(checked);
        let (inner, opened) = self.begin_on(self.inner.primary(), options, None).await?;
        if call.is_strict() && opened.is_some_and(Opened::is_in_recovery) {
            inner.rollback().await?;
            return Err(error::in_recovery());
        }
        let branch = opened.and_then(|opened| opened.greeting.branch).filter(|_| call.is_strict());
        let topology = self.topology();
        let admitted = branch.map_or(Ok(()), |branch| self.session.with(|s| s.admits(&topology, branch)));
        if let Err(lost @ BranchLost::OldPrimary { .. }) = admitted {
            self.inner.watch.report(Some(lost));
            inner.rollback().await?;
            return Err(error::branch_lost(lost));
        }
        self.count_primary(Some(call.class()), reason, call.waited());
        Ok(self.transaction_of(inner, Place::Primary(opened)))
    }

    fn transaction_of(&self, inner: DatabaseTransaction, place: Place) -> RoutedTransaction {
        RoutedTransaction {
            inner: Some(inner),
            connection: self.clone(),
            place,
            nested: false,
            refuses_writes: false,
            given_out: AtomicBool::new(false),
            schema: Arc::default(),
            span: TransactionSpan::none(),
        }
    }
}

struct BeginOnce {
    options: TransactionOptions,
}

impl Attempt for BeginOnce {
    type Out = RoutedTransaction;

    fn sql(&self) -> &str {
        ""
    }

    /// The proof must be the monitor's, and the connection older than it: a sample inside of the transaction would take
    /// the snapshot first.
    async fn attempt(
        &self,
        routing: &RoutingConnection,
        call: &Call,
        node: NodeId,
        proof: &Proof,
        busy: Busy,
    ) -> Result<RoutedTransaction, Missed> {
        let Some(server) = routing.inner.nodes.get(node.index()) else { return Err(Missed::Unproven) };
        if !server.is_tracked() && call.class() != ReadClass::Eventual {
            return Err(Missed::Untracked);
        }
        let limit = routing.inner.watch.config.replica_acquire_timeout;
        let (inner, opened) = match routing.begin_on(server, self.options, Some(limit)).await {
            Ok(begun) => begun,
            Err(error @ DbErr::ConnectionAcquire(_)) => return Err(routing.elsewhere(node, "no connection", error)),
            Err(error) => return Err(routing.missed(node, error)),
        };
        if !call.trusts(opened, proof) || !call.is_still_fresh(proof) {
            // Dropping it rolls it back.
            return Err(Missed::Unproven);
        }
        let served = routing.count_replica(call, node);
        routing.session.served(served);
        let place = Place::Replica { node, proof: *proof, served, _busy: Arc::new(busy) };
        Ok(routing.transaction_of(inner, place))
    }
}

impl RoutingConnection {
    /// Begins a transaction, and rolls it back in the background if the caller goes away once it has a connection: sqlx
    /// would return it to the pool with the transaction open.
    async fn begin_on(
        &self,
        node: &Node,
        options: TransactionOptions,
        limit: Option<Duration>,
    ) -> Result<(DatabaseTransaction, Option<Opened>), DbErr> {
        let mut left = node.pool().options().get_max_connections();
        loop {
            let (inner, opened) = self.begin_on_any(node, options, limit).await?;
            if left == 0 || !node.id.is_primary() || !node.is_outdated(opened) {
                return Ok((inner, opened));
            }
            // SeaORM does not let go of a transaction's connection but to the pool, which would hand it out again.
            left -= 1;
            let _ =
                inner.execute_unprepared("SELECT pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid())").await;
        }
    }

    async fn begin_on_any(
        &self,
        node: &Node,
        options: TransactionOptions,
        limit: Option<Duration>,
    ) -> Result<(DatabaseTransaction, Option<Opened>), DbErr> {
        // The hooks tell when there is a connection. Without them it may be any moment.
        let arrived = Arc::new(AtomicBool::new(!node.is_tracked()));
        let database = self.metered(&node.database, ran_on(node.id));
        let begin = acquiring_until(arrived.clone(), async move { database.begin_with_options(options).await });
        let begin = finish(begin, move || arrived.load(Ordering::Acquire));
        let (inner, acquired): (Result<_, DbErr>, Acquired) = match limit {
            None => begin.await,
            Some(limit) => match tokio::time::timeout(limit, begin).await {
                Ok(begun) => begun,
                Err(_) => return Err(error::acquire(sqlx::Error::PoolTimedOut)),
            },
        };
        let inner = inner?;
        let opened = match acquired.opened() {
            None if !node.is_tracked() => greet_transaction(&inner).await?,
            opened => opened,
        };
        Ok((inner, opened))
    }
}

fn ran_on(node: NodeId) -> Ran {
    if node.is_primary() { Ran::primary(PrimaryReason::Transaction) } else { Ran::replica(node) }
}

/// Whose connection a transaction runs on, where its pool does not tell: it is asked inside of the transaction.
async fn greet_transaction(inner: &DatabaseTransaction) -> Result<Option<Opened>, DbErr> {
    let greeting = Statement::from_string(DbBackend::Postgres, probe::GREETING);
    let Some(row) = inner.query_one_raw(greeting).await? else { return Ok(None) };
    let texts: Vec<Option<String>> = (0..10).map(|index| row.try_get_by_index(index)).collect::<Result<_, _>>()?;
    let mut columns = [None; 10];
    columns.iter_mut().zip(&texts).for_each(|(column, text)| *column = text.as_deref());
    Ok(Greeting::read(columns).ok().map(|greeting| Opened { at: now(), greeting }))
}

impl RoutedTransaction {
    /// The transaction for those who report to the session themselves.
    #[cfg(feature = "schema-sync")]
    pub(crate) fn seen(&self) -> &DatabaseTransaction {
        self.inner()
    }

    /// The transaction for one who will not say how it ends.
    pub(crate) fn into_inner(mut self) -> DatabaseTransaction {
        self.connection.session.hand_out();
        self.inner.take().expect("only commit and rollback take the transaction, and they consume it")
    }

    fn inner(&self) -> &DatabaseTransaction {
        self.inner.as_ref().expect("only commit and rollback take the transaction, and they consume it")
    }

    /// The same transaction, which refuses what is no query before it is sent.
    pub(crate) fn refusing_writes(mut self) -> Self {
        self.refuses_writes = true;
        self
    }

    /// Before each statement.
    fn check(&self, sql: &str) -> Result<(), DbErr> {
        self.schema.note(sql);
        if !self.refuses_writes {
            return Ok(());
        }
        match self.connection.inner.watch.kinds.kind(sql) {
            StatementKind::Primary(what) if !StatementKind::is_query(sql) => Err(error::read_only(what)),
            _ => Ok(()),
        }
    }

    /// A statement of the transaction is done; it may have shown any commit.
    fn touched(&self) {
        let session = &self.connection.session;
        let watch = &self.connection.inner.watch;
        match &self.place {
            Place::Primary(opened) => session.contact(watch, *opened),
            Place::Replica { node, proof, served, .. } => session.read_done(watch, *node, proof, *served),
        }
    }

    /// Waits for a statement of the transaction, but not for a replica that no longer answers.
    pub(crate) async fn on_server<T>(&self, work: impl Future<Output = Result<T, DbErr>>) -> Result<T, DbErr> {
        let work = self.span.around(work);
        let out = match &self.place {
            Place::Primary(_) => work.await,
            Place::Replica { node, .. } => {
                let served = while_serving(&self.connection.inner.watch, *node, None, work).await;
                served.unwrap_or_else(|gave_up| Err(error::gave_up(gave_up)))
            }
        };
        self.touched();
        out
    }

    fn node(&self) -> NodeId {
        match &self.place {
            Place::Primary(_) => NodeId::PRIMARY,
            Place::Replica { node, .. } => *node,
        }
    }

    fn taken_back(&self) {
        if self.given_out.swap(false, Ordering::AcqRel) {
            self.connection.session.with(read_router::Session::taken_back);
        }
    }

    /// Commits. If the future is dropped once `COMMIT` was sent, the commit goes on in the background and the session
    /// counts it as in doubt until it is done.
    ///
    /// # Errors
    /// SeaORM's own. If the link broke the outcome is unknown, and the session's strict reads go to the primary until
    /// it is settled.
    pub async fn commit(mut self) -> Result<(), DbErr> {
        let Some(inner) = self.inner.take() else { return Ok(()) };
        let commit = self.span.around(inner.commit());
        let Place::Primary(opened) = self.place.clone() else { return commit.await };
        if self.nested {
            return commit.await;
        }
        let shared = &self.connection.inner;
        let (session, watch, weak) = (self.connection.session.clone(), shared.watch.clone(), shared.downgrade());
        let write = session.with(read_router::Session::write_sent);
        let settled = session.clone();
        let schema = self.schema.clone();
        let work = async move {
            let done = commit.await;
            schema.committed(&watch);
            match done.as_ref().err().and_then(error::driver) {
                Some(error) if error::leaves_in_doubt(error) => doubt::settle_later(weak, settled, write, opened),
                _ => settled.acknowledged(&watch, write, opened),
            }
            done
        };
        let abandoned = move || {
            session.with(|session| session.in_doubt(write));
            true
        };
        finish(work, abandoned).await
    }

    /// Commits and returns the session's token, which covers this transaction.
    ///
    /// # Errors
    /// As [`commit`](Self::commit). The token is [unknown](Token::UNKNOWN) if the primary's position could not be had.
    pub async fn commit_token(self) -> Result<Token, DbErr> {
        let connection = self.connection.clone();
        self.commit().await?;
        Ok(connection.token().await)
    }

    /// Rolls back.
    ///
    /// # Errors
    /// SeaORM's own.
    pub async fn rollback(mut self) -> Result<(), DbErr> {
        match self.inner.take() {
            Some(inner) => self.span.around(inner.rollback()).await,
            None => Ok(()),
        }
    }

    async fn nested(&self, options: TransactionOptions) -> Result<Self, DbErr> {
        Ok(Self {
            inner: Some(self.inner().begin_with_options(options).await?),
            connection: self.connection.clone(),
            place: self.place.clone(),
            nested: true,
            refuses_writes: self.refuses_writes,
            given_out: AtomicBool::new(false),
            schema: self.schema.clone(),
            span: self.span.clone(),
        })
    }
}

impl Drop for RoutedTransaction {
    fn drop(&mut self) {
        self.touched();
        self.taken_back();
    }
}

impl Deref for RoutedTransaction {
    type Target = DatabaseTransaction;

    /// SeaORM's own transaction. What is run there is not seen one by one: until this transaction ends, strict reads of
    /// its session outside of it go to the primary.
    fn deref(&self) -> &DatabaseTransaction {
        self.schema.unseen();
        if !self.given_out.swap(true, Ordering::AcqRel) {
            self.connection.session.with(read_router::Session::given_out);
        }
        self.inner()
    }
}

impl fmt::Debug for RoutedTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RoutedTransaction")
    }
}

#[async_trait]
impl TransactionSession for RoutedTransaction {
    async fn commit(self) -> Result<(), DbErr> {
        Self::commit(self).await
    }

    async fn rollback(self) -> Result<(), DbErr> {
        Self::rollback(self).await
    }
}

#[async_trait]
impl ConnectionTrait for RoutedTransaction {
    fn get_database_backend(&self) -> DbBackend {
        DbBackend::Postgres
    }

    async fn execute_raw(&self, stmt: Statement) -> Result<ExecResult, DbErr> {
        self.check(&stmt.sql)?;
        self.on_server(self.inner().execute_raw(stmt)).await
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        self.check(sql)?;
        let meter = Meter::start(self.connection.metering.as_ref());
        let out = self.on_server(self.inner().execute_unprepared(sql)).await;
        if let Some(meter) = meter {
            let statement = Statement::from_string(DbBackend::Postgres, sql);
            meter.end(ran_on(self.node()), &statement, out.is_err(), false);
        }
        out
    }

    async fn query_one_raw(&self, stmt: Statement) -> Result<Option<QueryResult>, DbErr> {
        self.check(&stmt.sql)?;
        self.on_server(self.inner().query_one_raw(stmt)).await
    }

    async fn query_all_raw(&self, stmt: Statement) -> Result<Vec<QueryResult>, DbErr> {
        self.check(&stmt.sql)?;
        self.on_server(self.inner().query_all_raw(stmt)).await
    }
}

impl StreamTrait for RoutedTransaction {
    type Stream<'a> = RoutedTransactionStream<'a>;

    fn get_database_backend(&self) -> DbBackend {
        DbBackend::Postgres
    }

    fn stream_raw<'a>(
        &'a self,
        stmt: Statement,
    ) -> Pin<Box<dyn Future<Output = Result<Self::Stream<'a>, DbErr>> + 'a + Send>> {
        Box::pin(async move {
            self.check(&stmt.sql)?;
            let rows = self.inner().stream_raw(stmt).await?;
            Ok(RoutedTransactionStream { rows, transaction: self })
        })
    }
}

/// The rows of a statement that a [`RoutedTransaction`] streams.
#[derive(Debug)]
pub struct RoutedTransactionStream<'a> {
    rows: TransactionStream<'a>,
    transaction: &'a RoutedTransaction,
}

impl Stream for RoutedTransactionStream<'_> {
    type Item = Result<QueryResult, DbErr>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.rows).poll_next(context)
    }
}

impl Drop for RoutedTransactionStream<'_> {
    fn drop(&mut self) {
        self.transaction.touched();
    }
}

#[async_trait]
impl TransactionTrait for RoutedTransaction {
    type Transaction = Self;

    async fn begin(&self) -> Result<Self, DbErr> {
        self.nested(TransactionOptions::default()).await
    }

    async fn begin_with_config(
        &self,
        isolation_level: Option<IsolationLevel>,
        access_mode: Option<AccessMode>,
    ) -> Result<Self, DbErr> {
        self.nested(TransactionOptions { isolation_level, access_mode, ..Default::default() }).await
    }

    async fn begin_with_options(&self, options: TransactionOptions) -> Result<Self, DbErr> {
        self.nested(options).await
    }

    async fn transaction<F, T, E>(&self, callback: F) -> Result<T, TransactionError<E>>
    where
        F: for<'c> FnOnce(&'c Self) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>> + Send,
        T: Send,
        E: fmt::Display + fmt::Debug + Send,
    {
        run(TransactionTrait::begin(self).await, callback).await
    }

    async fn transaction_with_config<F, T, E>(
        &self,
        callback: F,
        isolation_level: Option<IsolationLevel>,
        access_mode: Option<AccessMode>,
    ) -> Result<T, TransactionError<E>>
    where
        F: for<'c> FnOnce(&'c Self) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>> + Send,
        T: Send,
        E: fmt::Display + fmt::Debug + Send,
    {
        run(TransactionTrait::begin_with_config(self, isolation_level, access_mode).await, callback).await
    }
}

/// Runs a closure in a transaction: commits if it returns `Ok`, rolls back if it returns `Err` or panics.
pub(crate) async fn run<X, F, T, E>(begun: Result<X, DbErr>, callback: F) -> Result<T, TransactionError<E>>
where
    X: TransactionSession,
    F: for<'c> FnOnce(&'c X) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>> + Send,
    T: Send,
    E: fmt::Display + fmt::Debug + Send,
{
    let transaction = begun.map_err(TransactionError::Connection)?;
    let out = callback(&transaction).await.map_err(TransactionError::Transaction);
    let ended = if out.is_ok() { transaction.commit().await } else { transaction.rollback().await };
    ended.map_err(TransactionError::Connection)?;
    out
}

/// The same with an async closure.
pub(crate) async fn run_async<X, F, T, E>(begun: Result<X, DbErr>, callback: F) -> Result<T, TransactionError<E>>
where
    X: TransactionSession,
    F: for<'c> AsyncFnOnce(&'c X) -> Result<T, E> + Send,
    T: Send,
    E: fmt::Display + fmt::Debug + Send,
{
    let transaction = begun.map_err(TransactionError::Connection)?;
    let out = callback(&transaction).await.map_err(TransactionError::Transaction);
    let ended = if out.is_ok() { transaction.commit().await } else { transaction.rollback().await };
    ended.map_err(TransactionError::Connection)?;
    out
}
