//! Where a server is, and what it is for.

use std::{fmt, sync::Arc, time::Duration};

use diesel::{ConnectionError, result::Error};
use diesel_async::{
    AsyncPgConnection,
    pooled_connection::{self, AsyncDieselConnectionManager, ManagerConfig, RecyclingMethod},
};
use futures_util::FutureExt;
use read_router::{ClassName, Failure, ReplicaConfig};
use tokio::runtime::Handle;
use tokio_postgres::{NoTls, error::SqlState};

use super::{pool::Pool, runtime::timeout, watch::Failed};
use crate::error::unsent;

/// Where one server is: a URL, or a pool that the application has already.
///
/// For a URL the router makes a pool of its own, without TLS. For TLS, or a set-up of one's own, give a pool of deadpool,
/// bb8 (feature `bb8`) or mobc (feature `mobc`), as it is: it stays shared, what the application does with it itself is
/// not part of any session, and [`close`](crate::AsyncRouter::close) closes it if it is one of deadpool. Its replicas'
/// connections are made read-only when they are first taken.
///
/// What is known of a connection is kept in its instrumentation. One that the pool's set-up has given an instrumentation
/// of its own keeps that, and is asked whose it is each time it is taken, which is one round trip.
pub struct AsyncSource(pub(crate) Kind);

pub(crate) enum Kind {
    /// Not parsed yet.
    Url(String),
    Target(Target),
    Pool(Pool),
}

/// How new connections to one server are opened.
#[derive(Clone)]
pub(crate) enum Server {
    Target(Target),
    Pool(Pool),
}

/// A server of our own pools.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) config: Box<tokio_postgres::Config>,
    /// Where the connections run; `None` for where they are opened.
    pub(crate) runtime: Option<Handle>,
}

/// As long is a connection of our own pools waited for.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

impl AsyncSource {
    /// The server and the pool of connections to it.
    pub(crate) fn connect(self, connections: usize) -> Result<(Server, Pool), ConnectionError> {
        let target = match self.0 {
            Kind::Pool(pool) => return Ok((Server::Pool(pool.clone()), pool)),
            Kind::Target(target) => target,
            Kind::Url(url) => Target { config: Box::new(config_of(&url)?), runtime: None },
        };
        let mut manager = ManagerConfig::default();
        // A broken link shows without a round trip.
        manager.recycling_method = RecyclingMethod::Fast;
        let theirs = target.clone();
        manager.custom_setup = Box::new(move |_| {
            let target = theirs.clone();
            async move { target.open().await.map_err(|(_, error)| error) }.boxed()
        });
        let manager = AsyncDieselConnectionManager::new_with_config(String::new(), manager);
        let pool = pooled_connection::deadpool::Pool::builder(manager).max_size(connections);
        // The warmest one first: a program that does one thing at a time has one connection, as without a pool.
        let pool = pool.queue_mode(deadpool::managed::QueueMode::Lifo).build();
        match pool {
            Ok(pool) => Ok((Server::Target(target), Pool::Deadpool(pool))),
            Err(error) => Err(ConnectionError::BadConnection(error.to_string())),
        }
    }

    /// Where it leads, for comparison; `None` of a pool.
    pub(crate) fn address(&self) -> Option<String> {
        match &self.0 {
            Kind::Url(url) => Some(url.clone()),
            Kind::Target(Target { config, .. }) => {
                Some(format!("{:?} {:?} {:?}", config.get_hosts(), config.get_ports(), config.get_dbname()))
            }
            Kind::Pool(_) => None,
        }
    }

    /// Whether both are one pool.
    pub(crate) fn is_same_pool(&self, other: &Self) -> bool {
        matches!((&self.0, &other.0), (Kind::Pool(mine), Kind::Pool(theirs)) if mine.is_same(theirs))
    }
}

impl Server {
    /// A connection beside the pool.
    pub(crate) async fn open(&self) -> Result<AsyncPgConnection, Failed> {
        match self {
            Self::Target(target) => target.open().await,
            Self::Pool(pool) => pool.open().await.map_err(|error| (Failure::Unreachable, error)),
        }
    }

    /// The database's name, as far as it is known here.
    pub(crate) fn database(&self) -> Option<&str> {
        match self {
            // Without a name it is that of the user.
            Self::Target(Target { config, .. }) => config.get_dbname().or_else(|| config.get_user()),
            Self::Pool(_) => None,
        }
    }
}

impl Target {
    async fn open(&self) -> Result<AsyncPgConnection, Failed> {
        let Some(runtime) = &self.runtime else { return establish(&self.config).await };
        let config = self.config.clone();
        let opened = runtime.spawn(async move { establish(&config).await }).await;
        opened.unwrap_or_else(|error| Err((Failure::Unreachable, ConnectionError::BadConnection(error.to_string()))))
    }
}

/// What a URL says.
pub(crate) fn config_of(url: &str) -> Result<tokio_postgres::Config, ConnectionError> {
    url.parse().map_err(|error: tokio_postgres::Error| ConnectionError::InvalidConnectionUrl(explain(&error)))
}

async fn establish(config: &tokio_postgres::Config) -> Result<AsyncPgConnection, Failed> {
    let connected = timeout(LONGEST_WAIT, config.connect(NoTls)).await;
    let (client, connection) = match connected {
        Ok(Ok(connected)) => connected,
        Ok(Err(error)) => {
            let failure = match error.code() {
                Some(code) if code.code().starts_with("28") => Failure::Login,
                Some(&SqlState::UNDEFINED_DATABASE) => Failure::Answer,
                _ => Failure::Unreachable,
            };
            return Err((failure, ConnectionError::BadConnection(explain(&error))));
        }
        Err(_) => return Err((Failure::Timeout, ConnectionError::BadConnection("no connection in time".to_owned()))),
    };
    let set_up = AsyncPgConnection::try_from_client_and_connection(client, connection).await;
    set_up.map_err(|error| (Failure::Unreachable, error))
}

/// The driver's error with its cause, which it does not print itself.
fn explain(error: &tokio_postgres::Error) -> String {
    use std::error::Error as _;
    match (error.as_db_error(), error.source()) {
        (Some(server), _) => server.to_string(),
        (None, Some(cause)) => format!("{error}: {cause}"),
        (None, None) => error.to_string(),
    }
}

/// The pool has no connection to spare.
pub(crate) fn timed_out() -> Error {
    unsent("no connection of the pool became free in time")
}

/// A replica: where it is and what it serves.
///
/// Anything that is an [`AsyncSource`] is a replica of weight 1 that serves every class.
#[must_use]
pub struct AsyncReplica {
    pub(crate) source: AsyncSource,
    pub(crate) config: ReplicaConfig,
}

impl AsyncReplica {
    /// A replica of weight 1, in no group, that serves every class.
    pub fn new(source: impl Into<AsyncSource>) -> Self {
        Self { source: source.into(), config: ReplicaConfig::new() }
    }

    /// How much of the load it takes, against the other replicas that may serve a read. Defaults to 1.
    ///
    /// With weights 3 and 1 the first gets three reads of four while both are idle, and under load three times as many at
    /// once. Zero is taken for 1.
    pub fn weight(mut self, weight: u32) -> Self {
        self.config = self.config.weight(weight);
        self
    }

    /// Serves these classes only. Defaults to all.
    ///
    /// A read prefers the replicas that serve the fewest classes besides its own: where one serves
    /// [`Eventual`](ClassName::Eventual) only, as a replica for reports does, `Eventual` reads go there while it is up.
    pub fn only(mut self, classes: impl IntoIterator<Item = ClassName>) -> Self {
        self.config = self.config.only(classes);
        self
    }

    /// Belongs to the group of this name, for reads that ask for it: `ReadClass::Eventual.in_group("reports")`. It serves
    /// other reads too. Defaults to none.
    pub fn group(mut self, name: impl Into<Arc<str>>) -> Self {
        self.config = self.config.group(name);
        self
    }
}

impl<S: Into<AsyncSource>> From<S> for AsyncReplica {
    fn from(source: S) -> Self {
        Self::new(source)
    }
}

impl From<&str> for AsyncSource {
    fn from(url: &str) -> Self {
        Self(Kind::Url(url.to_owned()))
    }
}

impl From<String> for AsyncSource {
    fn from(url: String) -> Self {
        Self(Kind::Url(url))
    }
}

impl From<&String> for AsyncSource {
    fn from(url: &String) -> Self {
        Self(Kind::Url(url.clone()))
    }
}

impl From<pooled_connection::deadpool::Pool<AsyncPgConnection>> for AsyncSource {
    fn from(pool: pooled_connection::deadpool::Pool<AsyncPgConnection>) -> Self {
        Self(Kind::Pool(Pool::Deadpool(pool)))
    }
}

#[cfg(feature = "bb8")]
impl From<pooled_connection::bb8::Pool<AsyncPgConnection>> for AsyncSource {
    fn from(pool: pooled_connection::bb8::Pool<AsyncPgConnection>) -> Self {
        Self(Kind::Pool(Pool::Bb8(pool)))
    }
}

#[cfg(feature = "mobc")]
impl From<pooled_connection::mobc::Pool<AsyncPgConnection>> for AsyncSource {
    fn from(pool: pooled_connection::mobc::Pool<AsyncPgConnection>) -> Self {
        Self(Kind::Pool(Pool::Mobc(pool)))
    }
}

impl fmt::Debug for AsyncSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the URL, which may hold a password.
        f.write_str(match self.0 {
            Kind::Url(_) | Kind::Target(_) => "AsyncSource(url)",
            Kind::Pool(_) => "AsyncSource(pool)",
        })
    }
}

impl fmt::Debug for AsyncReplica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncReplica").field("source", &self.source).field("config", &self.config).finish()
    }
}
