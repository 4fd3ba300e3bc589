//! diesel-async's traits.

use diesel::{
    ConnectionResult, QueryResult,
    associations::Identifiable,
    connection::{CacheSize, Instrumentation, TransactionManagerStatus},
    pg::Pg,
    query_builder::{AsChangeset, AsQuery, IntoUpdateTarget, QueryFragment, QueryId, UpdateStatement},
};
use diesel_async::{
    AsyncConnection, AsyncConnectionCore, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection, TransactionManager,
    UpdateAndFetchResults, methods::LoadQuery, pooled_connection::PoolableConnection,
};
use futures_util::{FutureExt, future::BoxFuture};

use super::{
    beginning::Beginning,
    connection::{AsyncReadConnection, AsyncRoutingConnection},
    establish,
    rows::AsyncRows,
    statement::{Output, Prepared, Wanted},
    transaction::RoutedTransactions,
};
use crate::{
    control::{self, Control},
    kinds::Looked,
};

impl AsyncReadConnection {
    fn prepare<Q: QueryFragment<Pg> + QueryId>(&self, query: &Q) -> QueryResult<Prepared> {
        let types = match &self.pinned {
            Some(pinned) => pinned.types(),
            None => self.handle.inner.schema.types(),
        };
        self.handle.prepare(query, &types)
    }

    async fn run(&mut self, prepared: Prepared, wanted: Wanted) -> QueryResult<Output> {
        let out = match &mut self.pinned {
            Some(pinned) => pinned.run(prepared, wanted).await?,
            None => self.handle.run(prepared, wanted).await?,
        };
        match out {
            Output::Opened(pinned) => {
                self.pinned = Some(*pinned);
                Ok(Output::Count(0))
            }
            out => Ok(out),
        }
    }

    /// A statement that begins or ends a transaction by its text does so for this connection; `false` if it is none.
    async fn control(&mut self, looked: &Looked) -> QueryResult<bool> {
        let sql = &*looked.sql;
        if looked.kind.is_read() || control::is_several(sql) {
            return Ok(false);
        }
        // Boxed: what follows is seldom gone, and each read would have room for it.
        match (Control::of(sql), self.depth()) {
            (Control::Begin, 0) => {
                let (is_read_only, is_serializable) = control::begins_read_only(sql);
                Box::pin(self.begin(Beginning { sql: sql.to_owned(), is_read_only, is_serializable })).await?;
            }
            // PREPARE TRANSACTION ends it too, and is run as it is.
            (Control::Commit, 1) if !control::prepares(sql) => {
                Box::pin(RoutedTransactions::commit_transaction(self)).await?;
            }
            (Control::Rollback, 1) => Box::pin(RoutedTransactions::rollback_transaction(self)).await?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl SimpleAsyncConnection for AsyncReadConnection {
    async fn batch_execute(&mut self, query: &str) -> QueryResult<()> {
        let prepared = self.handle.prepare_text(query);
        if self.control(&prepared.looked).await? {
            return Ok(());
        }
        self.run(prepared, Wanted::Batch).await.map(drop)
    }
}

impl AsyncConnectionCore for AsyncReadConnection {
    type ExecuteFuture<'conn, 'query> = BoxFuture<'conn, QueryResult<usize>>;
    type LoadFuture<'conn, 'query> = BoxFuture<'conn, QueryResult<AsyncRows>>;
    type Stream<'conn, 'query> = AsyncRows;
    type Row<'conn, 'query> = <AsyncPgConnection as AsyncConnectionCore>::Row<'conn, 'query>;
    type Backend = Pg;

    fn load<'conn, 'query, T>(&'conn mut self, source: T) -> Self::LoadFuture<'conn, 'query>
    where
        T: AsQuery + 'query,
        T::Query: QueryFragment<Pg> + QueryId + 'query,
    {
        // A query is not `Send`: it is gone before the first `await`.
        let prepared = self.prepare(&source.as_query());
        async move {
            let prepared = prepared?;
            if self.control(&prepared.looked).await? {
                return Ok(AsyncRows::none());
            }
            self.run(prepared, Wanted::Rows).await?.rows()
        }
        .boxed()
    }

    fn execute_returning_count<'conn, 'query, T>(&'conn mut self, source: T) -> Self::ExecuteFuture<'conn, 'query>
    where
        T: QueryFragment<Pg> + QueryId + 'query,
    {
        let prepared = self.prepare(&source);
        drop(source);
        async move {
            let prepared = prepared?;
            if self.control(&prepared.looked).await? {
                return Ok(0);
            }
            self.run(prepared, Wanted::Count).await?.count().await
        }
        .boxed()
    }
}

impl AsyncConnection for AsyncReadConnection {
    type TransactionManager = RoutedTransactions;

    async fn establish(_: &str) -> ConnectionResult<Self> {
        let text = "a view is lent by a connection; establish an AsyncRoutingConnection";
        Err(diesel::ConnectionError::BadConnection(text.to_owned()))
    }

    fn transaction_state(&mut self) -> &mut TransactionManagerStatus {
        RoutedTransactions::transaction_manager_status_mut(self)
    }

    fn instrumentation(&mut self) -> &mut dyn Instrumentation {
        &mut self.told
    }

    fn set_instrumentation(&mut self, instrumentation: impl Instrumentation) {
        self.set_listener(instrumentation);
    }

    fn set_prepared_statement_cache_size(&mut self, size: CacheSize) {
        self.handle.caches = !matches!(size, CacheSize::Disabled);
    }
}

impl SimpleAsyncConnection for AsyncRoutingConnection {
    async fn batch_execute(&mut self, query: &str) -> QueryResult<()> {
        self.plain().batch_execute(query).await
    }
}

impl AsyncConnectionCore for AsyncRoutingConnection {
    type ExecuteFuture<'conn, 'query> = BoxFuture<'conn, QueryResult<usize>>;
    type LoadFuture<'conn, 'query> = BoxFuture<'conn, QueryResult<AsyncRows>>;
    type Stream<'conn, 'query> = AsyncRows;
    type Row<'conn, 'query> = <AsyncPgConnection as AsyncConnectionCore>::Row<'conn, 'query>;
    type Backend = Pg;

    fn load<'conn, 'query, T>(&'conn mut self, source: T) -> Self::LoadFuture<'conn, 'query>
    where
        T: AsQuery + 'query,
        T::Query: QueryFragment<Pg> + QueryId + 'query,
    {
        AsyncConnectionCore::load(self.plain(), source)
    }

    fn execute_returning_count<'conn, 'query, T>(&'conn mut self, source: T) -> Self::ExecuteFuture<'conn, 'query>
    where
        T: QueryFragment<Pg> + QueryId + 'query,
    {
        AsyncConnectionCore::execute_returning_count(self.plain(), source)
    }
}

impl AsyncConnection for AsyncRoutingConnection {
    type TransactionManager = RoutedTransactions;

    /// Connects to the hosts of one URL, `postgres://app@host-1,host-2/shop`: the one that accepts writes is the
    /// primary, the others are its replicas. They have one [`AsyncRouter`](crate::AsyncRouter) behind them, which the
    /// first one makes, the others of the same URL share while one of them is there, and which ends with the last; each
    /// has a session of its own. Where the primary is gone the hosts are asked again, and a new router is made. An
    /// application that is not bound to `establish` builds its router itself, and takes from it as many
    /// [sessions](crate::AsyncRouter::session) as it needs.
    ///
    /// Reads without a class go to the primary, unless the URL says otherwise: `read_class=must_see_my_write` or
    /// `read_class=eventual`, or `read_class=seconds_stale(2.5)`.
    async fn establish(database_url: &str) -> ConnectionResult<Self> {
        Ok(establish::router(database_url).await?.session())
    }

    fn transaction_state(&mut self) -> &mut TransactionManagerStatus {
        RoutedTransactions::transaction_manager_status_mut(self)
    }

    fn instrumentation(&mut self) -> &mut dyn Instrumentation {
        AsyncConnection::instrumentation(self.plain())
    }

    fn set_instrumentation(&mut self, instrumentation: impl Instrumentation) {
        AsyncConnection::set_instrumentation(self.plain(), instrumentation);
    }

    fn set_prepared_statement_cache_size(&mut self, size: CacheSize) {
        self.plain().set_prepared_statement_cache_size(size);
    }
}

impl TransactionManager<AsyncRoutingConnection> for RoutedTransactions {
    type TransactionStateData = TransactionManagerStatus;

    async fn begin_transaction(conn: &mut AsyncRoutingConnection) -> QueryResult<()> {
        Self::begin_transaction(conn.plain()).await
    }

    async fn rollback_transaction(conn: &mut AsyncRoutingConnection) -> QueryResult<()> {
        Self::rollback_transaction(conn.plain()).await
    }

    async fn commit_transaction(conn: &mut AsyncRoutingConnection) -> QueryResult<()> {
        Self::commit_transaction(conn.plain()).await
    }

    fn transaction_manager_status_mut(conn: &mut AsyncRoutingConnection) -> &mut TransactionManagerStatus {
        Self::transaction_manager_status_mut(conn.plain())
    }
}

impl PoolableConnection for AsyncRoutingConnection {}

impl PoolableConnection for AsyncReadConnection {}

/// As diesel-async has it for its own connection: an update of a row that returns it.
macro_rules! update_and_fetch {
    ($connection:ty) => {
        impl<'b, Changes, Output, Tab, V> UpdateAndFetchResults<Changes, Output> for $connection
        where
            Output: Send + 'static,
            Changes: Copy + AsChangeset<Target = Tab> + Send + Identifiable<Table = Tab>,
            Tab: diesel::Table + diesel::query_dsl::methods::FindDsl<Changes::Id> + 'b,
            diesel::dsl::Find<Tab, Changes::Id>: IntoUpdateTarget<Table = Tab, WhereClause = V>,
            UpdateStatement<Tab, V, Changes::Changeset>: AsQuery,
            diesel::dsl::Update<Changes, Changes>: LoadQuery<'b, Self, Output>,
            V: Send + 'b,
            Changes::Changeset: Send + 'b,
            Tab::FromClause: Send,
        {
            fn update_and_fetch<'conn, 'changes>(
                &'conn mut self,
                changeset: Changes,
            ) -> BoxFuture<'changes, QueryResult<Output>>
            where
                Changes: 'changes,
                Changes::Changeset: 'changes,
                'conn: 'changes,
                Self: 'changes,
            {
                async move { diesel::update(changeset).set(changeset).get_result(self).await }.boxed()
            }
        }
    };
}

update_and_fetch!(AsyncRoutingConnection);
update_and_fetch!(AsyncReadConnection);
