//! Pools built so that we know whose connections they hand out.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::future::BoxFuture;
use read_router::{NodeId, live::Watch, probe};
use sea_orm::ConnectOptions;
use sqlx::{
    Connection, Executor, PgConnection, PgPool, Postgres,
    pool::{PoolConnectionMetadata, PoolOptions},
};

use crate::{Source, openings::Openings};

/// A user's callback for a connection that was just opened.
pub(crate) type AfterConnect = Arc<
    dyn for<'c> Fn(&'c mut PgConnection, PoolConnectionMetadata) -> BoxFuture<'c, Result<(), sqlx::Error>>
        + Send
        + Sync,
>;
/// A user's callback for an idle connection that is about to be handed out.
pub(crate) type BeforeAcquire = Arc<
    dyn for<'c> Fn(&'c mut PgConnection, PoolConnectionMetadata) -> BoxFuture<'c, Result<bool, sqlx::Error>>
        + Send
        + Sync,
>;
/// A user's last word on a pool's options.
pub(crate) type MapPool = Arc<dyn Fn(PoolOptions<Postgres>) -> PoolOptions<Postgres> + Send + Sync>;

/// The user's callbacks, for every pool alike.
#[derive(Clone, Default)]
pub(crate) struct Callbacks {
    pub(crate) after_connect: Option<AfterConnect>,
    pub(crate) before_acquire: Option<BeforeAcquire>,
    pub(crate) map_pool: Option<MapPool>,
}

/// What a pool's hooks do for one node.
#[derive(Clone)]
pub(crate) struct Hooks {
    pub(crate) openings: Arc<Openings>,
    /// Which node the pool belongs to; not known while a tracked pool belongs to none yet.
    pub(crate) home: Arc<OnceLock<Home>>,
    pub(crate) read_only: bool,
    pub(crate) search_path: Option<String>,
    /// How long a connection may have been idle before it is asked whether it is alive; `None` leaves that to sqlx.
    pub(crate) ping_idle: Option<Duration>,
    pub(crate) callbacks: Callbacks,
}

/// The node that a pool belongs to.
pub(crate) struct Home {
    pub(crate) id: NodeId,
    pub(crate) watch: Arc<Watch>,
}

impl Hooks {
    pub(crate) fn install(self, pool: PoolOptions<Postgres>) -> PoolOptions<Postgres> {
        let hooks = self.clone();
        let pool = pool.after_connect(move |connection, meta| {
            let hooks = hooks.clone();
            Box::pin(async move { hooks.connected(connection, meta).await })
        });
        pool.before_acquire(move |connection, meta| {
            let hooks = self.clone();
            Box::pin(async move { hooks.acquired(connection, meta).await })
        })
    }

    async fn connected(&self, connection: &mut PgConnection, meta: PoolConnectionMetadata) -> Result<(), sqlx::Error> {
        if let Some(path) = &self.search_path {
            connection.execute(sqlx::AssertSqlSafe(path.as_str())).await?;
        }
        if self.read_only {
            connection.execute(probe::READ_ONLY).await?;
        }
        if let Some(user) = &self.callbacks.after_connect {
            user(connection, meta).await?;
            if self.read_only {
                connection.execute(probe::READ_ONLY).await?;
            }
        }
        let opened = self.openings.opened(connection).await?;
        // A new connection may be the first to see where the primary's name leads now.
        if let Some(home) = self.home.get().filter(|home| home.id.is_primary())
            && let Some(branch) = opened.and_then(|opened| opened.greeting.branch)
        {
            home.watch.branch_seen(branch);
        }
        Ok(())
    }

    async fn acquired(&self, connection: &mut PgConnection, meta: PoolConnectionMetadata) -> Result<bool, sqlx::Error> {
        if self.ping_idle.is_some_and(|idle| meta.idle_for >= idle) {
            connection.ping().await?;
        }
        let acquired = self.openings.acquired(connection, &meta).await?;
        if let Some((home, opened)) = self.home.get().zip(acquired.opened())
            && home.watch.is_outdated(home.id, &opened)
        {
            return Ok(false);
        }
        let wanted = match &self.callbacks.before_acquire {
            Some(user) => user(connection, meta).await?,
            None => true,
        };
        // What the user runs here or when a connection comes back may be RESET ALL.
        let is_touched = self.callbacks.before_acquire.is_some() || self.callbacks.map_pool.is_some();
        if wanted && self.read_only && is_touched {
            connection.execute(probe::READ_ONLY).await?;
        }
        Ok(wanted)
    }
}

/// Lets a pool that the application builds itself tell whose connections it hands out, as our own pools do.
///
/// ```no_run
/// # use sea_router::{PoolTracker, RoutingConnection};
/// # use sqlx::postgres::PgPoolOptions;
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// let (primary, replica) = (PoolTracker::for_primary(), PoolTracker::for_replica());
/// let writes = primary.track(PgPoolOptions::new().max_connections(20)).connect("postgres://app@primary/shop").await?;
/// let reads = replica.track(PgPoolOptions::new()).connect_lazy("postgres://app@replica/shop")?;
/// let db = RoutingConnection::builder(primary.source(writes)).replica(replica.source(reads)).connect().await?;
/// # Ok(()) }
/// ```
///
/// A pool that is handed over without it works too, at the price of a round trip for each acquisition: see [`Source`].
#[must_use]
pub struct PoolTracker {
    hooks: Hooks,
}

impl PoolTracker {
    /// For the primary's pool.
    pub fn for_primary() -> Self {
        Self::new(NodeId::PRIMARY)
    }

    /// For a replica's pool, whose connections it makes read-only.
    pub fn for_replica() -> Self {
        Self::new(NodeId::replica(0))
    }

    fn new(id: NodeId) -> Self {
        let hooks = Hooks {
            openings: Arc::new(Openings::new(id)),
            home: Arc::default(),
            read_only: !id.is_primary(),
            search_path: None,
            ping_idle: None,
            callbacks: Callbacks::default(),
        };
        Self { hooks }
    }

    /// Runs `callback` on each connection that the pool opens; [`track`](Self::track) replaces what the options had.
    pub fn after_connect<F>(mut self, callback: F) -> Self
    where
        F: for<'c> Fn(&'c mut PgConnection, PoolConnectionMetadata) -> BoxFuture<'c, Result<(), sqlx::Error>>
            + Send
            + Sync
            + 'static,
    {
        self.hooks.callbacks.after_connect = Some(Arc::new(callback));
        self
    }

    /// Runs `callback` on each idle connection before the pool hands it out; [`track`](Self::track) replaces what the
    /// options had.
    pub fn before_acquire<F>(mut self, callback: F) -> Self
    where
        F: for<'c> Fn(&'c mut PgConnection, PoolConnectionMetadata) -> BoxFuture<'c, Result<bool, sqlx::Error>>
            + Send
            + Sync
            + 'static,
    {
        self.hooks.callbacks.before_acquire = Some(Arc::new(callback));
        self
    }

    /// The options of one pool, with our hooks in place of `after_connect` and `before_acquire`.
    #[must_use]
    pub fn track(&self, options: PoolOptions<Postgres>) -> PoolOptions<Postgres> {
        self.hooks.clone().install(options)
    }

    /// The pool that was built from the tracked options, for a builder.
    pub fn source(self, pool: PgPool) -> Source {
        Source::tracked(pool, self.hooks)
    }
}

impl fmt::Debug for PoolTracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolTracker")
    }
}

/// The statement that sets the search path of `ConnectOptions`, which SeaORM sets by the hook that we take.
///
/// There is no getter, so it is taken from the `Debug` form; a test pins that it is still found there.
pub(crate) fn search_path(options: &ConnectOptions) -> Option<String> {
    let shown = format!("{options:?}");
    let (_, rest) = shown.split_once("schema_search_path: Some(\"")?;
    let mut path = String::new();
    let mut characters = rest.chars();
    loop {
        match characters.next()? {
            '"' => break,
            '\\' => path.push(characters.next()?),
            other => path.push(other),
        }
    }
    let quoted = |schema: &str| {
        if schema.starts_with('"') { schema.to_owned() } else { format!("\"{schema}\"") }
    };
    let list = if path.starts_with('"') { path } else { path.split(',').map(quoted).collect::<Vec<_>>().join(",") };
    Some(format!("SET search_path = {list}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_search_path_that_the_user_set() {
        for (path, statement) in [
            (None, None),
            (Some("app"), Some("SET search_path = \"app\"")),
            (Some("app,public"), Some("SET search_path = \"app\",\"public\"")),
            (Some("\"my app\", public"), Some("SET search_path = \"my app\", public")),
        ] {
            let mut options = ConnectOptions::new("postgres://localhost/app");
            if let Some(path) = path {
                options.set_schema_search_path(path);
            }
            assert_eq!(search_path(&options).as_deref(), statement, "{path:?}");
        }
    }
}
