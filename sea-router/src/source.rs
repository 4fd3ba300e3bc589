//! Where a server is, and what it is for.

use std::{fmt, sync::Arc};

use read_router::{ClassName, ReplicaConfig};
use sea_orm::{ConnectOptions, DatabaseConnection, SqlxPostgresConnector};
use sqlx::{ConnectOptions as _, PgPool};

use crate::pool::Hooks;

/// Where one server is: a URL, SeaORM's [`ConnectOptions`], or a connection or pool that the application has already.
///
/// Of an existing [`DatabaseConnection`] or [`PgPool`] it is not known when its connections were opened and to which
/// server, so each is asked when it is taken: one round trip for each statement outside of transactions, and one more for
/// `MustSeeMyWrite` and `SecondsStale` reads on a replica. A READ ONLY transaction of such a class cannot be proven there
/// and goes to the primary, reason `untracked`. [`PoolTracker`](crate::PoolTracker) gives all this back. Connections of
/// an existing replica pool are made read-only when they are taken.
///
/// The pool stays shared: what the application does with it itself is not part of any session, and
/// [`close`](crate::RoutingConnection::close) closes it.
pub struct Source(pub(crate) Kind);

#[derive(Clone)]
pub(crate) enum Kind {
    Options(Box<ConnectOptions>),
    Pool(DatabaseConnection, Option<Hooks>),
}

impl Source {
    pub(crate) fn tracked(pool: PgPool, hooks: Hooks) -> Self {
        Self(Kind::Pool(SqlxPostgresConnector::from_sqlx_postgres_pool(pool), Some(hooks)))
    }

    /// Where it leads, for comparison and for error messages.
    pub(crate) fn url(&self) -> String {
        match &self.0 {
            Kind::Options(options) => options.get_url().to_owned(),
            Kind::Pool(database, _) if is_postgres(database) => {
                database.get_postgres_connection_pool().connect_options().to_url_lossy().to_string()
            }
            Kind::Pool(..) => String::new(),
        }
    }

    /// Whether both are one pool.
    pub(crate) fn is_same_pool(&self, other: &Self) -> bool {
        let options = |source: &Self| match &source.0 {
            Kind::Pool(database, _) if is_postgres(database) => {
                Some(database.get_postgres_connection_pool().connect_options())
            }
            _ => None,
        };
        options(self).zip(options(other)).is_some_and(|(mine, theirs)| Arc::ptr_eq(&mine, &theirs))
    }

    /// Whether its tracker makes the pool's connections read-only; `None` if it has no tracker.
    pub(crate) fn is_tracked_read_only(&self) -> Option<bool> {
        match &self.0 {
            Kind::Pool(_, Some(hooks)) => Some(hooks.read_only),
            Kind::Options(_) | Kind::Pool(_, None) => None,
        }
    }

    /// Whether it is a connection to something else than PostgreSQL.
    pub(crate) fn is_foreign(&self) -> bool {
        matches!(&self.0, Kind::Pool(database, _) if !is_postgres(database))
    }
}

fn is_postgres(database: &DatabaseConnection) -> bool {
    matches!(database.inner, sea_orm::DatabaseConnectionType::SqlxPostgresPoolConnection(_))
}

/// A replica: where it is and what it serves.
///
/// Anything that is a [`Source`] is a replica of weight 1 that serves every class.
#[must_use]
pub struct Replica {
    pub(crate) source: Source,
    pub(crate) config: ReplicaConfig,
}

impl Replica {
    /// A replica of weight 1, in no group, that serves every class.
    pub fn new(source: impl Into<Source>) -> Self {
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

impl<S: Into<Source>> From<S> for Replica {
    fn from(source: S) -> Self {
        Self::new(source)
    }
}

impl From<ConnectOptions> for Source {
    fn from(options: ConnectOptions) -> Self {
        Self(Kind::Options(Box::new(options)))
    }
}

impl From<&str> for Source {
    fn from(url: &str) -> Self {
        ConnectOptions::new(url).into()
    }
}

impl From<String> for Source {
    fn from(url: String) -> Self {
        ConnectOptions::new(url).into()
    }
}

impl From<&String> for Source {
    fn from(url: &String) -> Self {
        ConnectOptions::new(url).into()
    }
}

impl From<DatabaseConnection> for Source {
    fn from(database: DatabaseConnection) -> Self {
        Self(Kind::Pool(database, None))
    }
}

impl From<PgPool> for Source {
    fn from(pool: PgPool) -> Self {
        SqlxPostgresConnector::from_sqlx_postgres_pool(pool).into()
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the URL, which may hold a password.
        f.write_str(match self.0 {
            Kind::Options(_) => "Source(options)",
            Kind::Pool(_, None) => "Source(pool)",
            Kind::Pool(_, Some(_)) => "Source(tracked pool)",
        })
    }
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica").field("source", &self.source).field("config", &self.config).finish()
    }
}
