//! Transactions with options of their own.

use std::{fmt, future::Future};

use diesel::{QueryResult, pg::Pg};
use diesel_async::{AsyncConnection, TransactionManager};

use super::{
    beginning::Beginning,
    connection::{AsyncReadConnection, AsyncRoutingConnection},
};

/// The options of a transaction that is about to begin; as diesel-async's own
/// [`TransactionBuilder`](diesel_async::pg::TransactionBuilder).
///
/// ```no_run
/// use diesel::prelude::*;
/// use diesel_async::RunQueryDsl;
/// use diesel_router::AsyncRoutingConnection;
///
/// diesel::table! { ride (id) { id -> Integer, } }
///
/// # async fn f(conn: &mut AsyncRoutingConnection) -> Result<(), diesel::result::Error> {
/// // Both reads see the same state, on one replica that has this session's writes.
/// let (all, newest) = conn
///     .must_see_my_write()
///     .build_transaction()
///     .read_only()
///     .repeatable_read()
///     .run(async |conn| {
///         let all: i64 = ride::table.count().get_result(conn).await?;
///         let newest: Option<i32> = ride::table.select(diesel::dsl::max(ride::id)).get_result(conn).await?;
///         Ok::<_, diesel::result::Error>((all, newest))
///     })
///     .await?;
/// # let _ = (all, newest);
/// # Ok(()) }
/// ```
#[must_use = "a transaction does not begin until run()"]
pub struct AsyncTransactionBuilder<'a, C> {
    connection: &'a mut C,
    isolation: Option<&'static str>,
    access: Option<&'static str>,
    deferrable: Option<&'static str>,
}

const SERIALIZABLE: &str = "SERIALIZABLE";
const READ_ONLY: &str = "READ ONLY";

impl<'a, C: Begins> AsyncTransactionBuilder<'a, C> {
    pub(crate) fn new(connection: &'a mut C) -> Self {
        Self { connection, isolation: None, access: None, deferrable: None }
    }

    /// Makes the transaction `READ ONLY`. On a view with a class it runs on one replica then, where one can serve it.
    pub fn read_only(mut self) -> Self {
        self.access = Some(READ_ONLY);
        self
    }

    /// Makes the transaction `READ WRITE`.
    pub fn read_write(mut self) -> Self {
        self.access = Some("READ WRITE");
        self
    }

    /// Makes the transaction `DEFERRABLE`.
    pub fn deferrable(mut self) -> Self {
        self.deferrable = Some("DEFERRABLE");
        self
    }

    /// Makes the transaction `NOT DEFERRABLE`.
    pub fn not_deferrable(mut self) -> Self {
        self.deferrable = Some("NOT DEFERRABLE");
        self
    }

    /// Makes the transaction `READ COMMITTED`.
    pub fn read_committed(mut self) -> Self {
        self.isolation = Some("READ COMMITTED");
        self
    }

    /// Makes the transaction `REPEATABLE READ`.
    pub fn repeatable_read(mut self) -> Self {
        self.isolation = Some("REPEATABLE READ");
        self
    }

    /// Makes the transaction `SERIALIZABLE`. No replica has this level: one that is also `READ ONLY` runs on the primary.
    pub fn serializable(mut self) -> Self {
        self.isolation = Some(SERIALIZABLE);
        self
    }

    /// Runs the closure in the transaction: commits if it returns `Ok`, rolls back if it returns `Err`.
    ///
    /// # Errors
    /// The closure's, or Diesel's if the transaction could not begin or end.
    pub async fn run<'b, T, E, F>(&mut self, f: F) -> Result<T, E>
    where
        for<'r> F: AsyncFnOnce(&'r mut C) -> Result<T, E> + AsyncFunc<&'r mut C, Result<T, E>, Fut: Send> + Send + 'a,
        T: 'b,
        E: From<diesel::result::Error> + 'b,
    {
        self.connection.begin_as(self.beginning()).await?;
        match f(&mut *self.connection).await {
            Ok(value) => {
                C::TransactionManager::commit_transaction(&mut *self.connection).await?;
                Ok(value)
            }
            Err(error) => {
                C::TransactionManager::rollback_transaction(&mut *self.connection).await?;
                Err(error)
            }
        }
    }

    fn beginning(&self) -> Beginning {
        let mut sql = "BEGIN TRANSACTION".to_owned();
        if let Some(isolation) = self.isolation {
            sql.push_str(" ISOLATION LEVEL ");
            sql.push_str(isolation);
        }
        for option in [self.access, self.deferrable].into_iter().flatten() {
            sql.push(' ');
            sql.push_str(option);
        }
        let is_serializable = self.isolation == Some(SERIALIZABLE);
        Beginning { sql, is_read_only: self.access == Some(READ_ONLY), is_serializable }
    }
}

/// A connection that such a transaction may run on.
pub trait Begins: AsyncConnection<Backend = Pg> + sealed::Begins {}

impl<C: AsyncConnection<Backend = Pg> + sealed::Begins> Begins for C {}

mod sealed {
    use super::{Beginning, QueryResult};

    pub trait Begins {
        #[doc(hidden)]
        fn begin_as(&mut self, beginning: Beginning) -> impl Future<Output = QueryResult<()>> + Send;
    }
}

impl sealed::Begins for AsyncReadConnection {
    async fn begin_as(&mut self, beginning: Beginning) -> QueryResult<()> {
        self.begin(beginning).await
    }
}

impl sealed::Begins for AsyncRoutingConnection {
    async fn begin_as(&mut self, beginning: Beginning) -> QueryResult<()> {
        self.plain().begin(beginning).await
    }
}

/// An async closure whose future has a name, so that it can be asked to be `Send`.
#[doc(hidden)]
pub trait AsyncFunc<T, R>: AsyncFnOnce(T) -> R + FnOnce(T) -> <Self as AsyncFunc<T, R>>::Fut {
    type Fut: Future<Output = R>;
}

impl<F, T, Fut, R> AsyncFunc<T, R> for F
where
    F: AsyncFnOnce(T) -> R + FnOnce(T) -> Fut,
    Fut: Future<Output = R>,
{
    type Fut = Fut;
}

impl<C> fmt::Debug for AsyncTransactionBuilder<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncTransactionBuilder")
            .field("isolation", &self.isolation)
            .field("access", &self.access)
            .field("deferrable", &self.deferrable)
            .finish_non_exhaustive()
    }
}
