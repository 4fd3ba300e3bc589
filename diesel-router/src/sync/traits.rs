//! Diesel's traits, for the connection and for the connection with a class.

use std::any::Any;

use diesel::{
    Connection, ConnectionResult, ExecuteCopyFromDsl, PgConnection, QueryResult, RunQueryDsl,
    connection::{
        AnsiTransactionManager, CacheSize, ConnectionSealed, DefaultLoadingMode, Instrumentation, LoadConnection,
        MultiConnectionHelper, SimpleConnection, TransactionManager,
    },
    expression::QueryMetadata,
    migration::{CREATE_MIGRATIONS_TABLE, MigrationConnection},
    pg::{CopyFromQuery, GetPgMetadataCache, Pg, PgMetadataCache, PgMetadataLookup, PgRowByRowLoadingMode},
    query_builder::{Query, QueryFragment, QueryId},
    query_dsl::UpdateAndFetchResults,
    r2d2::R2D2Connection,
    result::Error,
    sql_types::TypeMetadata,
};

use super::{RoutingConnection, establish::establish, view::ReadConnection};
use crate::instrument::Listener;

impl SimpleConnection for ReadConnection {
    fn batch_execute(&mut self, query: &str) -> QueryResult<()> {
        self.handle.batch(self.view, query)
    }
}

impl SimpleConnection for RoutingConnection {
    fn batch_execute(&mut self, query: &str) -> QueryResult<()> {
        self.plain().batch_execute(query)
    }
}

impl ConnectionSealed for ReadConnection {}

impl ConnectionSealed for RoutingConnection {}

impl Connection for ReadConnection {
    type Backend = Pg;
    type TransactionManager = AnsiTransactionManager;

    fn establish(database_url: &str) -> ConnectionResult<Self> {
        RoutingConnection::establish(database_url).map(|connection| connection.read)
    }

    fn execute_returning_count<T>(&mut self, source: &T) -> QueryResult<usize>
    where
        T: QueryFragment<Pg> + QueryId,
    {
        self.handle.query(self.view, source, |connection, source| connection.execute_returning_count(source))
    }

    fn transaction_state(&mut self) -> &mut AnsiTransactionManager {
        self.handle.transaction_state()
    }

    fn instrumentation(&mut self) -> &mut dyn Instrumentation {
        self.handle.instrumentation()
    }

    fn set_instrumentation(&mut self, instrumentation: impl Instrumentation) {
        self.handle.listen(Some(Listener::new(instrumentation)));
    }

    fn set_prepared_statement_cache_size(&mut self, size: CacheSize) {
        self.handle.set_cache_size(size);
    }
}

impl Connection for RoutingConnection {
    type Backend = Pg;
    type TransactionManager = AnsiTransactionManager;

    /// Connects to the hosts of one URL, `postgres://app@host-1,host-2/shop`, or of libpq's other forms,
    /// `host=host-1,host-2 dbname=shop`: the one that accepts writes is the primary, the others are its replicas, numbered
    /// from one in the order of the URL. They have one [`Router`](super::Router) behind them, which the
    /// first one makes, the others of the same URL share while one of them is there, and which ends with the last; each
    /// has a session of its own. Where the primary is gone the hosts are asked again, and a new router is made. An
    /// application that is not bound to `establish` builds its router itself, and takes from it as many
    /// [sessions](super::Router::session) as it needs.
    ///
    /// Reads without a class go to the primary, unless the URL says otherwise: `read_class=must_see_my_write` or
    /// `read_class=eventual`, or `read_class=seconds_stale(2.5)`.
    fn establish(database_url: &str) -> ConnectionResult<Self> {
        establish(database_url)
    }

    fn execute_returning_count<T>(&mut self, source: &T) -> QueryResult<usize>
    where
        T: QueryFragment<Pg> + QueryId,
    {
        self.plain().execute_returning_count(source)
    }

    fn transaction_state(&mut self) -> &mut AnsiTransactionManager {
        self.read.transaction_state()
    }

    fn instrumentation(&mut self) -> &mut dyn Instrumentation {
        self.read.instrumentation()
    }

    fn set_instrumentation(&mut self, instrumentation: impl Instrumentation) {
        self.read.set_instrumentation(instrumentation);
    }

    fn set_prepared_statement_cache_size(&mut self, size: CacheSize) {
        self.read.set_prepared_statement_cache_size(size);
    }
}

type Loaded<'conn, 'query, B> = <PgConnection as LoadConnection<B>>::Cursor<'conn, 'query>;
type LoadedRow<'conn, 'query, B> = <PgConnection as LoadConnection<B>>::Row<'conn, 'query>;

impl LoadConnection<DefaultLoadingMode> for ReadConnection {
    type Cursor<'conn, 'query> = Loaded<'conn, 'query, DefaultLoadingMode>;
    type Row<'conn, 'query> = LoadedRow<'conn, 'query, DefaultLoadingMode>;

    fn load<'conn, 'query, T>(&'conn mut self, source: T) -> QueryResult<Self::Cursor<'conn, 'query>>
    where
        T: Query + QueryFragment<Pg> + QueryId + 'query,
        Pg: QueryMetadata<T::SqlType>,
    {
        self.handle.query(self.view, &source, |connection, source| {
            LoadConnection::<DefaultLoadingMode>::load(connection, source)
        })
    }
}

impl LoadConnection<DefaultLoadingMode> for RoutingConnection {
    type Cursor<'conn, 'query> = Loaded<'conn, 'query, DefaultLoadingMode>;
    type Row<'conn, 'query> = LoadedRow<'conn, 'query, DefaultLoadingMode>;

    fn load<'conn, 'query, T>(&'conn mut self, source: T) -> QueryResult<Self::Cursor<'conn, 'query>>
    where
        T: Query + QueryFragment<Pg> + QueryId + 'query,
        Pg: QueryMetadata<T::SqlType>,
    {
        LoadConnection::<DefaultLoadingMode>::load(self.plain(), source)
    }
}

impl LoadConnection<PgRowByRowLoadingMode> for ReadConnection {
    type Cursor<'conn, 'query> = Loaded<'conn, 'query, PgRowByRowLoadingMode>;
    type Row<'conn, 'query> = LoadedRow<'conn, 'query, PgRowByRowLoadingMode>;

    fn load<'conn, 'query, T>(&'conn mut self, source: T) -> QueryResult<Self::Cursor<'conn, 'query>>
    where
        T: Query + QueryFragment<Pg> + QueryId + 'query,
        Pg: QueryMetadata<T::SqlType>,
    {
        self.handle.rows(self.view, source)
    }
}

impl LoadConnection<PgRowByRowLoadingMode> for RoutingConnection {
    type Cursor<'conn, 'query> = Loaded<'conn, 'query, PgRowByRowLoadingMode>;
    type Row<'conn, 'query> = LoadedRow<'conn, 'query, PgRowByRowLoadingMode>;

    fn load<'conn, 'query, T>(&'conn mut self, source: T) -> QueryResult<Self::Cursor<'conn, 'query>>
    where
        T: Query + QueryFragment<Pg> + QueryId + 'query,
        Pg: QueryMetadata<T::SqlType>,
    {
        LoadConnection::<PgRowByRowLoadingMode>::load(self.plain(), source)
    }
}

impl GetPgMetadataCache for ReadConnection {
    fn get_metadata_cache(&mut self) -> &mut PgMetadataCache {
        self.handle.metadata()
    }
}

impl GetPgMetadataCache for RoutingConnection {
    fn get_metadata_cache(&mut self) -> &mut PgMetadataCache {
        self.read.get_metadata_cache()
    }
}

impl MigrationConnection for ReadConnection {
    fn setup(&mut self) -> QueryResult<usize> {
        diesel::sql_query(CREATE_MIGRATIONS_TABLE).execute(self)
    }
}

impl MigrationConnection for RoutingConnection {
    fn setup(&mut self) -> QueryResult<usize> {
        self.plain().setup()
    }
}

impl R2D2Connection for ReadConnection {
    fn ping(&mut self) -> QueryResult<()> {
        diesel::sql_query("SELECT 1").execute(self).map(|_| ())
    }

    fn is_broken(&mut self) -> bool {
        AnsiTransactionManager::is_broken_transaction_manager(self)
    }
}

impl R2D2Connection for RoutingConnection {
    /// Whether the primary answers.
    fn ping(&mut self) -> QueryResult<()> {
        self.on_primary().ping()
    }

    fn is_broken(&mut self) -> bool {
        self.read.is_broken()
    }
}

impl<Changes, Output> UpdateAndFetchResults<Changes, Output> for ReadConnection
where
    PgConnection: UpdateAndFetchResults<Changes, Output>,
{
    fn update_and_fetch(&mut self, changeset: Changes) -> QueryResult<Output> {
        self.handle.unseen(self.view, |connection| connection.update_and_fetch(changeset))
    }
}

impl<Changes, Output> UpdateAndFetchResults<Changes, Output> for RoutingConnection
where
    PgConnection: UpdateAndFetchResults<Changes, Output>,
{
    fn update_and_fetch(&mut self, changeset: Changes) -> QueryResult<Output> {
        self.plain().update_and_fetch(changeset)
    }
}

type CopyError<T, A> = <CopyFromQuery<T, A> as ExecuteCopyFromDsl<PgConnection>>::Error;

impl<T, A> ExecuteCopyFromDsl<ReadConnection> for CopyFromQuery<T, A>
where
    Self: ExecuteCopyFromDsl<PgConnection>,
    CopyError<T, A>: From<Error>,
{
    type Error = CopyError<T, A>;

    fn execute(self, conn: &mut ReadConnection) -> Result<usize, Self::Error> {
        conn.handle.unseen(conn.view, |connection| ExecuteCopyFromDsl::execute(self, connection))
    }
}

impl<T, A> ExecuteCopyFromDsl<RoutingConnection> for CopyFromQuery<T, A>
where
    Self: ExecuteCopyFromDsl<PgConnection>,
    CopyError<T, A>: From<Error>,
{
    type Error = CopyError<T, A>;

    fn execute(self, conn: &mut RoutingConnection) -> Result<usize, Self::Error> {
        <Self as ExecuteCopyFromDsl<ReadConnection>>::execute(self, conn.plain())
    }
}

impl MultiConnectionHelper for ReadConnection {
    fn to_any<'a>(lookup: &mut <Pg as TypeMetadata>::MetadataLookup) -> &mut (dyn Any + 'a) {
        lookup.as_any()
    }

    fn from_any(lookup: &mut dyn Any) -> Option<&mut <Pg as TypeMetadata>::MetadataLookup> {
        lookup.downcast_mut::<Self>().map(|connection| connection as &mut dyn PgMetadataLookup)
    }
}

impl MultiConnectionHelper for RoutingConnection {
    fn to_any<'a>(lookup: &mut <Pg as TypeMetadata>::MetadataLookup) -> &mut (dyn Any + 'a) {
        lookup.as_any()
    }

    fn from_any(lookup: &mut dyn Any) -> Option<&mut <Pg as TypeMetadata>::MetadataLookup> {
        lookup.downcast_mut::<Self>().map(|connection| connection as &mut dyn PgMetadataLookup)
    }
}
