//! One server's pool, built so that we know whose connections it hands out.

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use read_router::{NodeId, Opened, Standing, probe};
use sea_orm::{ConnectOptions, Database, DatabaseConnection, DbErr};
use sqlx::{
    ConnectOptions as _, Connection, Executor, PgConnection, Postgres,
    pool::{PoolConnection, PoolConnectionMetadata, PoolOptions},
    postgres::PgConnectOptions,
};

use crate::{
    error,
    openings::{Openings, acquiring},
    watch::Watch,
};

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

/// One server of the configuration.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) database: DatabaseConnection,
    /// Whether spans say the text of statements.
    pub(crate) record_statements: bool,
    watch: Arc<Watch>,
}

/// A connection with what is known of it.
pub(crate) struct Checked {
    pub(crate) connection: PoolConnection<Postgres>,
    pub(crate) opened: Option<Opened>,
}

impl Node {
    /// The pool of the node. A replica's is lazy, so that a replica that is down does not stop the start, and
    /// read-only, so that a misrouted write fails before and after a promotion.
    pub(crate) async fn connect(
        id: NodeId,
        mut options: ConnectOptions,
        callbacks: Callbacks,
        watch: Arc<Watch>,
    ) -> Result<Self, DbErr> {
        if !id.is_primary() {
            options.connect_lazy(true);
        }
        let record_statements = options.get_record_stmt_in_spans();
        let search_path = search_path(&options);
        let ping_idle = options.get_test_before_acquire_if_idle_for();
        let hooked = watch.clone();
        options.map_sqlx_postgres_pool_opts(move |pool| {
            let pool = match &callbacks.map_pool {
                Some(map) => map(pool),
                None => pool,
            };
            with_hooks(id, pool, search_path.clone(), ping_idle, callbacks.clone(), hooked.clone())
        });
        let database = Database::connect(options).await?;
        Ok(Self { id, database, record_statements, watch })
    }

    pub(crate) fn pool(&self) -> &sqlx::PgPool {
        self.database.get_postgres_connection_pool()
    }

    /// How the node's probe connection is opened. Its statements are not the application's: they stay out of its log.
    pub(crate) fn probe_options(&self) -> PgConnectOptions {
        (*self.pool().connect_options()).clone().disable_statement_logging()
    }

    /// A connection of the pool. A replica's is not waited for once the replica no longer serves, nor for longer than
    /// `replica_acquire_timeout`: another server may do.
    pub(crate) async fn acquire(&self) -> Result<Checked, DbErr> {
        let mut acquire = pin!(acquiring(self.pool().acquire()));
        let (connection, acquired) = if self.id.is_primary() {
            acquire.await
        } else {
            let mut left = self.watch.config.replica_acquire_timeout;
            loop {
                let pause = left.min(LOOK_AGAIN);
                if let Ok(done) = tokio::time::timeout(pause, &mut acquire).await {
                    break done;
                }
                left -= pause;
                let serves = self.watch.topology().node(self.id).is_some_and(|node| node.standing().serves());
                if left.is_zero() || !serves {
                    return Err(error::acquire(sqlx::Error::PoolTimedOut));
                }
            }
        };
        Ok(Checked { connection: connection.map_err(error::acquire)?, opened: acquired.opened() })
    }
}

/// How often one who waits for a replica's connection looks whether the replica still serves.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

fn with_hooks(
    id: NodeId,
    pool: PoolOptions<Postgres>,
    search_path: Option<String>,
    ping_idle: Option<Duration>,
    callbacks: Callbacks,
    watch: Arc<Watch>,
) -> PoolOptions<Postgres> {
    let openings = Arc::new(Openings::new(id));
    let seen = watch.clone();
    let log = openings.clone();
    let after_connect = callbacks.after_connect;
    let pool = pool.after_connect(move |connection, meta| {
        let (log, search_path, user) = (log.clone(), search_path.clone(), after_connect.clone());
        let seen = seen.clone();
        Box::pin(async move {
            if let Some(path) = search_path {
                connection.execute(sqlx::AssertSqlSafe(path)).await?;
            }
            if !id.is_primary() {
                connection.execute(probe::READ_ONLY).await?;
            }
            if let Some(user) = user {
                user(connection, meta).await?;
            }
            let opened = log.opened(connection).await?;
            // A new connection may be the first to see where the primary's name leads now.
            if let Some(branch) = opened.and_then(|opened| opened.greeting.branch).filter(|_| id.is_primary()) {
                seen.branch_seen(branch);
            }
            Ok(())
        })
    });
    let before_acquire = callbacks.before_acquire;
    pool.before_acquire(move |connection, meta| {
        let (log, watch, user) = (openings.clone(), watch.clone(), before_acquire.clone());
        Box::pin(async move {
            if ping_idle.is_some_and(|idle| meta.idle_for >= idle) {
                connection.ping().await?;
            }
            let acquired = log.acquired(connection, &meta).await?;
            if acquired.opened().is_some_and(|opened| is_outdated(id, &watch, &opened)) {
                return Ok(false);
            }
            match user {
                Some(user) => user(connection, meta).await,
                None => Ok(true),
            }
        })
    })
}

/// Whether a connection leads to where its name pointed before: a new one may lead to the right server.
fn is_outdated(id: NodeId, watch: &Watch, opened: &Opened) -> bool {
    let topology = watch.topology();
    if id.is_primary() {
        let behind = opened.greeting.branch.zip(topology.surviving());
        let is_old = behind.is_some_and(|(mine, now)| mine.system == now.system && mine < now);
        // Where the name itself is still behind, a new connection would be no better.
        let name_is_right = topology.node(id).is_some_and(|node| node.standing() == Standing::SamePrimary);
        return is_old && (name_is_right || opened.at < topology.highest_since());
    }
    // Behind a balancer one name leads to several servers: only a change of the server that is watched outdates what was
    // opened before it.
    let node = topology.node(id).filter(|node| node.standing().serves());
    node.zip(node.and_then(|node| node.observation()))
        .is_some_and(|(node, seen)| opened.at < node.instance_since() && seen.instance != opened.greeting.instance)
}

/// The statement that sets the search path of `ConnectOptions`, which SeaORM sets by the hook that we take.
///
/// There is no getter, so it is taken from the `Debug` form; a test pins that it is still found there.
fn search_path(options: &ConnectOptions) -> Option<String> {
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
