//! One server's pool.

use std::{
    pin::pin,
    sync::{Arc, OnceLock},
};

use read_router::{NodeId, Opened};
use sea_orm::{ConnectOptions, Database, DatabaseConnection, DbErr, SqlxPostgresConnector};
use sqlx::{ConnectOptions as _, Postgres, pool::PoolConnection, postgres::PgConnectOptions};

use crate::{
    Source, clock, error,
    openings::{Openings, acquiring, greet_untracked},
    pool::{Callbacks, Home, Hooks, is_outdated, search_path},
    source::Kind,
    watch::{LOOK_AGAIN, Watch},
};

/// One server of the configuration.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) database: DatabaseConnection,
    /// Whether spans say the text of statements.
    pub(crate) record_statements: bool,
    /// What its pool's hooks do; `None` if it was handed over without any.
    hooks: Option<Hooks>,
    /// The same server for those who take connections past us, where its pool is not read-only by itself.
    guarded: OnceLock<DatabaseConnection>,
    watch: Arc<Watch>,
}

/// A connection with what is known of it.
pub(crate) struct Checked {
    pub(crate) connection: PoolConnection<Postgres>,
    pub(crate) opened: Option<Opened>,
}

/// At least so many connections has the pool that reads on the primary read-only, if the primary's own has as many.
const READ_ONLY_CONNECTIONS: u32 = 5;

impl Node {
    /// The pool of the node. A replica's is lazy, so that a replica that is down does not stop the start, and
    /// read-only, so that a misrouted write fails before and after a promotion.
    pub(crate) async fn connect(
        id: NodeId,
        source: Source,
        callbacks: Callbacks,
        watch: Arc<Watch>,
    ) -> Result<Self, DbErr> {
        let home = Home { id, watch: watch.clone() };
        let mut record_statements = true;
        let (database, hooks) = match source.0 {
            Kind::Options(options) => {
                record_statements = options.get_record_stmt_in_spans();
                let hooks = Hooks {
                    openings: Arc::new(Openings::new(id)),
                    home: Arc::new(OnceLock::from(home)),
                    read_only: !id.is_primary(),
                    search_path: search_path(&options),
                    ping_idle: options.get_test_before_acquire_if_idle_for(),
                    callbacks,
                };
                (open(id, *options, hooks.clone()).await?, Some(hooks))
            }
            Kind::Pool(database, hooks) => {
                if let Some(hooks) = &hooks {
                    // A pool that was given to another connection before goes on telling that one.
                    let _ = hooks.home.set(home);
                }
                (database, hooks)
            }
        };
        Ok(Self { id, database, record_statements, hooks, guarded: OnceLock::new(), watch })
    }

    /// A small lazy pool to the same server, whose connections are read-only: for the primary's part in read-only handles.
    pub(crate) fn read_only(&self) -> Self {
        let theirs = self.pool().options();
        let most = theirs.get_max_connections();
        let connections = (most / 2).max(READ_ONLY_CONNECTIONS.min(most));
        let Some(before) = self.hooks.clone() else {
            // What their hooks set (a search path, a role) counts here too, and we have no hook of our own beside them.
            let pool = theirs.clone().min_connections(0).max_connections(connections);
            let options = (*self.pool().connect_options()).clone().options([("default_transaction_read_only", "on")]);
            let database = SqlxPostgresConnector::from_sqlx_postgres_pool(pool.connect_lazy_with(options));
            return Self {
                id: self.id,
                database,
                record_statements: self.record_statements,
                hooks: None,
                guarded: OnceLock::new(),
                watch: self.watch.clone(),
            };
        };
        let hooks = Hooks {
            openings: Arc::new(Openings::new(self.id)),
            home: Arc::new(OnceLock::from(Home { id: self.id, watch: self.watch.clone() })),
            read_only: true,
            search_path: before.search_path.clone(),
            ping_idle: before.ping_idle,
            callbacks: before.callbacks,
        };
        let pool = theirs.clone().min_connections(0).max_connections(connections);
        let pool = hooks.clone().install(pool).connect_lazy_with((*self.pool().connect_options()).clone());
        let database = SqlxPostgresConnector::from_sqlx_postgres_pool(pool);
        Self {
            id: self.id,
            database,
            record_statements: self.record_statements,
            hooks: Some(hooks),
            guarded: OnceLock::new(),
            watch: self.watch.clone(),
        }
    }

    /// The replica's connection whose every use is read-only: one of a pool that was handed over without hooks is made so
    /// only when we take it.
    pub(crate) fn guarded(&self) -> &DatabaseConnection {
        if self.is_tracked() { &self.database } else { self.guarded.get_or_init(|| self.read_only().database) }
    }

    /// Closes what was opened beside its pool.
    pub(crate) async fn close_guarded(&self) -> Result<(), DbErr> {
        match self.guarded.get() {
            Some(database) => database.close_by_ref().await,
            None => Ok(()),
        }
    }

    pub(crate) fn pool(&self) -> &sqlx::PgPool {
        self.database.get_postgres_connection_pool()
    }

    /// Whether its pool tells whose connections it hands out.
    pub(crate) fn is_tracked(&self) -> bool {
        self.hooks.is_some()
    }

    /// How the node's probe connection is opened. Its statements are not the application's: they stay out of its log.
    pub(crate) fn probe_options(&self) -> PgConnectOptions {
        (*self.pool().connect_options()).clone().disable_statement_logging()
    }

    /// A connection of the pool. One that leads to where the primary's name pointed before is closed: hooks see to that in
    /// our pools, but not in one that was handed over without them, or that told another connection before.
    pub(crate) async fn acquire(&self) -> Result<Checked, DbErr> {
        let mut left = self.pool().options().get_max_connections();
        loop {
            let checked = self.acquire_any().await?;
            if left == 0 || !self.is_outdated(checked.opened) {
                return Ok(checked);
            }
            left -= 1;
            let _ = checked.connection.close().await;
        }
    }

    /// Whether the connection leads to where the name pointed before.
    pub(crate) fn is_outdated(&self, opened: Option<Opened>) -> bool {
        opened.is_some_and(|opened| is_outdated(self.id, &self.watch, &opened))
    }

    /// A connection of the pool. A replica's is not waited for once the replica no longer serves, nor for longer than
    /// `replica_acquire_timeout`: another server may do.
    async fn acquire_any(&self) -> Result<Checked, DbErr> {
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
        let mut connection = connection.map_err(error::acquire)?;
        let opened = match acquired.opened() {
            // Nothing is known of its past: it counts as opened now.
            None if !self.is_tracked() => {
                self.watch.counters.own_sample();
                let greeting = greet_untracked(&mut connection, !self.id.is_primary()).await.map_err(error::acquire)?;
                greeting.map(|greeting| Opened { at: clock::now(), greeting })
            }
            opened => opened,
        };
        if let Some(branch) = opened.and_then(|opened| opened.greeting.branch).filter(|_| self.id.is_primary()) {
            self.watch.branch_seen(branch);
        }
        Ok(Checked { connection, opened })
    }
}

async fn open(id: NodeId, mut options: ConnectOptions, hooks: Hooks) -> Result<DatabaseConnection, DbErr> {
    if !id.is_primary() {
        options.connect_lazy(true);
    }
    options.map_sqlx_postgres_pool_opts(move |pool| {
        let pool = match &hooks.callbacks.map_pool {
            Some(map) => map(pool),
            None => pool,
        };
        hooks.clone().install(pool)
    });
    Database::connect(options).await
}
