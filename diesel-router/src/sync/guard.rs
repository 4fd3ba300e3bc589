//! Guards are connections themselves, as r2d2's are: `query.load(&mut conn)` takes them as it takes a pooled connection.

use diesel::{
    Connection, ConnectionError, ConnectionResult, PgConnection, QueryResult,
    connection::{
        AnsiTransactionManager, CacheSize, ConnectionSealed, Instrumentation, LoadConnection, SimpleConnection,
    },
    expression::QueryMetadata,
    migration::MigrationConnection,
    pg::Pg,
    query_builder::{Query, QueryFragment, QueryId},
    query_dsl::UpdateAndFetchResults,
};

use super::{Checkout, Detached, WriteCheckout};

macro_rules! is_a_connection {
    ($guard:ty) => {
        impl SimpleConnection for $guard {
            fn batch_execute(&mut self, query: &str) -> QueryResult<()> {
                (**self).batch_execute(query)
            }
        }

        impl ConnectionSealed for $guard {}

        impl Connection for $guard {
            type Backend = Pg;
            type TransactionManager = AnsiTransactionManager;

            fn establish(_: &str) -> ConnectionResult<Self> {
                Err(ConnectionError::BadConnection("a guard is taken from a router or a connection".to_owned()))
            }

            fn begin_test_transaction(&mut self) -> QueryResult<()> {
                (**self).begin_test_transaction()
            }

            fn execute_returning_count<T>(&mut self, source: &T) -> QueryResult<usize>
            where
                T: QueryFragment<Pg> + QueryId,
            {
                (**self).execute_returning_count(source)
            }

            fn transaction_state(&mut self) -> &mut AnsiTransactionManager {
                (**self).transaction_state()
            }

            fn instrumentation(&mut self) -> &mut dyn Instrumentation {
                (**self).instrumentation()
            }

            fn set_instrumentation(&mut self, instrumentation: impl Instrumentation) {
                self.tell(instrumentation);
            }

            fn set_prepared_statement_cache_size(&mut self, size: CacheSize) {
                (**self).set_prepared_statement_cache_size(size);
            }
        }

        impl<B> LoadConnection<B> for $guard
        where
            PgConnection: LoadConnection<B>,
        {
            type Cursor<'conn, 'query> = <PgConnection as LoadConnection<B>>::Cursor<'conn, 'query>;
            type Row<'conn, 'query> = <PgConnection as LoadConnection<B>>::Row<'conn, 'query>;

            fn load<'conn, 'query, T>(&'conn mut self, source: T) -> QueryResult<Self::Cursor<'conn, 'query>>
            where
                T: Query + QueryFragment<Pg> + QueryId + 'query,
                Pg: QueryMetadata<T::SqlType>,
            {
                (**self).load(source)
            }
        }

        impl MigrationConnection for $guard {
            fn setup(&mut self) -> QueryResult<usize> {
                (**self).setup()
            }
        }

        impl<Changes, Output> UpdateAndFetchResults<Changes, Output> for $guard
        where
            PgConnection: UpdateAndFetchResults<Changes, Output>,
        {
            fn update_and_fetch(&mut self, changeset: Changes) -> QueryResult<Output> {
                (**self).update_and_fetch(changeset)
            }
        }
    };
}

is_a_connection!(Checkout);
is_a_connection!(WriteCheckout);
is_a_connection!(Detached);
