//! The pools that connections come from.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use diesel::{ConnectionError, connection::Instrumentation, result::Error};
#[cfg(feature = "bb8")]
use diesel_async::TransactionManager;
use diesel_async::{AsyncConnection, AsyncPgConnection, pooled_connection};

use crate::error::unsent;

/// A pool of any of the kinds.
#[derive(Clone)]
pub(crate) enum Pool {
    Deadpool(pooled_connection::deadpool::Pool<AsyncPgConnection>),
    #[cfg(feature = "bb8")]
    Bb8(pooled_connection::bb8::Pool<AsyncPgConnection>),
    #[cfg(feature = "mobc")]
    Mobc(pooled_connection::mobc::Pool<AsyncPgConnection>),
}

/// A connection out of a pool; dropped it goes back.
pub(crate) enum Lease {
    Deadpool(pooled_connection::deadpool::Object<AsyncPgConnection>),
    #[cfg(feature = "bb8")]
    Bb8(pooled_connection::bb8::PooledConnection<'static, AsyncPgConnection>),
    #[cfg(feature = "mobc")]
    Mobc(pooled_connection::mobc::PooledConnection<AsyncPgConnection>),
}

impl Pool {
    /// A connection, waited for as long as the pool itself allows.
    pub(crate) async fn lease(&self) -> Result<Lease, Error> {
        match self {
            Self::Deadpool(pool) => pool.get().await.map(Lease::Deadpool).map_err(unsent),
            #[cfg(feature = "bb8")]
            Self::Bb8(pool) => pool.get_owned().await.map(Lease::Bb8).map_err(unsent),
            #[cfg(feature = "mobc")]
            Self::Mobc(pool) => pool.get().await.map(Lease::Mobc).map_err(unsent),
        }
    }

    /// A connection beside the pool, set up as the pool's are. A pool of mobc shows no way past it: one of its own is
    /// taken out for good.
    pub(crate) async fn open(&self) -> Result<AsyncPgConnection, ConnectionError> {
        match self {
            Self::Deadpool(pool) => deadpool::managed::Manager::create(pool.manager()).await.map_err(cause),
            #[cfg(feature = "bb8")]
            Self::Bb8(pool) => pool.dedicated_connection().await.map_err(cause),
            #[cfg(feature = "mobc")]
            Self::Mobc(pool) => pool
                .get()
                .await
                .map(pooled_connection::mobc::PooledConnection::into_inner)
                .map_err(|error| ConnectionError::BadConnection(error.to_string())),
        }
    }

    /// Hands out no more connections, where the pool can be told so.
    pub(crate) fn close(&self) {
        match self {
            Self::Deadpool(pool) => pool.close(),
            #[cfg(feature = "bb8")]
            Self::Bb8(_) => {}
            #[cfg(feature = "mobc")]
            Self::Mobc(_) => {}
        }
    }

    /// How many connections there are, how many of them are idle, and how many there may be.
    pub(crate) async fn count(&self) -> [u32; 3] {
        match self {
            Self::Deadpool(pool) => {
                let status = pool.status();
                [status.size, status.available, status.max_size].map(|count| u32::try_from(count).unwrap_or(u32::MAX))
            }
            #[cfg(feature = "bb8")]
            Self::Bb8(pool) => {
                let state = pool.state();
                [state.connections, state.idle_connections, pool.config().max_size]
            }
            #[cfg(feature = "mobc")]
            Self::Mobc(pool) => {
                let state = pool.state().await;
                [state.connections, state.idle, state.max_open].map(|count| u32::try_from(count).unwrap_or(u32::MAX))
            }
        }
    }

    /// Whether both are one pool.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Deadpool(mine), Self::Deadpool(theirs)) => std::ptr::eq(mine.manager(), theirs.manager()),
            // The others show nothing to compare.
            #[cfg(any(feature = "bb8", feature = "mobc"))]
            _ => false,
        }
    }
}

impl Lease {
    /// Closes the connection in place of giving it back.
    pub(crate) fn discard(self) {
        match self {
            Self::Deadpool(object) => drop(pooled_connection::deadpool::Object::take(object)),
            #[cfg(feature = "bb8")]
            Self::Bb8(mut connection) => {
                // The pool closes what looks broken.
                <AsyncPgConnection as AsyncConnection>::TransactionManager::transaction_manager_status_mut(
                    &mut *connection,
                )
                .set_in_error();
            }
            #[cfg(feature = "mobc")]
            Self::Mobc(connection) => drop(connection.into_inner()),
        }
    }

    /// Takes the connection out of its pool for good; a pool of bb8 lets none go.
    pub(crate) fn detach(self) -> Option<AsyncPgConnection> {
        match self {
            Self::Deadpool(object) => Some(pooled_connection::deadpool::Object::take(object)),
            #[cfg(feature = "bb8")]
            Self::Bb8(_) => None,
            #[cfg(feature = "mobc")]
            Self::Mobc(connection) => Some(connection.into_inner()),
        }
    }

    /// Who is told of the connection's statements.
    pub(crate) fn listener(&mut self) -> &mut dyn Instrumentation {
        AsyncConnection::instrumentation(&mut **self)
    }
}

impl Deref for Lease {
    type Target = AsyncPgConnection;

    fn deref(&self) -> &AsyncPgConnection {
        match self {
            Self::Deadpool(connection) => connection,
            #[cfg(feature = "bb8")]
            Self::Bb8(connection) => connection,
            #[cfg(feature = "mobc")]
            Self::Mobc(connection) => connection,
        }
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut AsyncPgConnection {
        match self {
            Self::Deadpool(connection) => connection,
            #[cfg(feature = "bb8")]
            Self::Bb8(connection) => connection,
            #[cfg(feature = "mobc")]
            Self::Mobc(connection) => connection,
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deadpool(_) => "deadpool",
            #[cfg(feature = "bb8")]
            Self::Bb8(_) => "bb8",
            #[cfg(feature = "mobc")]
            Self::Mobc(_) => "mobc",
        })
    }
}

fn cause(error: pooled_connection::PoolError) -> ConnectionError {
    match error {
        pooled_connection::PoolError::ConnectionError(error) => error,
        pooled_connection::PoolError::QueryError(error) => ConnectionError::CouldntSetupConfiguration(error),
    }
}
