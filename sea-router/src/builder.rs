//! Configuration, and the checks before the first statement.

use std::sync::{Arc, OnceLock};

use futures_util::future::{BoxFuture, join_all};
use read_router::{
    Config, Known, Misrouted, NodeId, PinError, Pins, Session, Sessions, SetupError, Unannotated, View,
    check_addresses, check_first_answers,
    live::{SharedSession, Watch},
};
use sea_orm::{DbErr, RuntimeErr};
use sqlx::{
    PgConnection, Postgres,
    pool::{PoolConnectionMetadata, PoolOptions},
    postgres::PgConnectOptions,
};

use crate::{
    Error, Replica, RoutingConnection, Source, catalogue, connection::Inner, node::Node, pool::Callbacks, watch,
};

/// Configures a [`RoutingConnection`].
#[must_use = "a builder does nothing until connect()"]
pub struct Builder {
    primary: Source,
    replicas: Vec<Replica>,
    config: Config,
    misrouted: Misrouted,
    sessions: Sessions,
    unannotated: Unannotated,
    callbacks: Callbacks,
    pins: Result<Pins, PinError>,
}

impl Builder {
    pub(crate) fn new(primary: Source) -> Self {
        Self {
            primary,
            replicas: Vec::new(),
            config: Config::default(),
            misrouted: Misrouted::default(),
            sessions: Sessions::default(),
            unannotated: Unannotated::default(),
            callbacks: Callbacks::default(),
            pins: Ok(Pins::new()),
        }
    }

    /// Adds a replica: a URL, [`ConnectOptions`](sea_orm::ConnectOptions), an existing connection or pool, or a [`Replica`]
    /// with a weight, a group, or the classes that it serves. It may be down at the start, and it may be the primary under
    /// another name, as in development; then it is always fresh. Defaults to none: all goes to the primary, as with the
    /// plain connection.
    pub fn replica(mut self, replica: impl Into<Replica>) -> Self {
        self.replicas.push(replica.into());
        self
    }

    /// Adds several replicas.
    pub fn replicas<R: Into<Replica>>(mut self, replicas: impl IntoIterator<Item = R>) -> Self {
        self.replicas.extend(replicas.into_iter().map(Into::into));
        self
    }

    /// Replaces all timings. Defaults to [`Config::default`].
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    read_router::settings!();

    /// Runs `callback` on each connection that a pool opens, before it is used.
    ///
    /// Give it here: the same callback set through [`ConnectOptions::map_sqlx_postgres_pool_opts`](sea_orm::ConnectOptions::map_sqlx_postgres_pool_opts) is replaced by ours.
    pub fn after_connect<F>(mut self, callback: F) -> Self
    where
        F: for<'c> Fn(&'c mut PgConnection, PoolConnectionMetadata) -> BoxFuture<'c, Result<(), sqlx::Error>>
            + Send
            + Sync
            + 'static,
    {
        self.callbacks.after_connect = Some(Arc::new(callback));
        self
    }

    /// Runs `callback` on each idle connection before a pool hands it out; `false` has it closed and another tried.
    ///
    /// Give it here: the same callback set through [`ConnectOptions::map_sqlx_postgres_before_acquire`](sea_orm::ConnectOptions::map_sqlx_postgres_before_acquire) is replaced by
    /// ours.
    pub fn before_acquire<F>(mut self, callback: F) -> Self
    where
        F: for<'c> Fn(&'c mut PgConnection, PoolConnectionMetadata) -> BoxFuture<'c, Result<bool, sqlx::Error>>
            + Send
            + Sync
            + 'static,
    {
        self.callbacks.before_acquire = Some(Arc::new(callback));
        self
    }

    /// Changes the options of every pool; its `after_connect` and `before_acquire` are replaced by ours.
    ///
    /// Give it here: [`ConnectOptions::map_sqlx_postgres_pool_opts`](sea_orm::ConnectOptions::map_sqlx_postgres_pool_opts) has one place, and we take it.
    pub fn map_pool_options<F>(mut self, map: F) -> Self
    where
        F: Fn(PoolOptions<Postgres>) -> PoolOptions<Postgres> + Send + Sync + 'static,
    {
        self.callbacks.map_pool = Some(Arc::new(map));
        self
    }

    /// Makes the pools, asks every node once, and starts the probes. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// If the primary cannot be reached (unless its options say `connect_lazy`) or is a replica, if a replica refuses the
    /// login, belongs to another cluster, is a second primary or is listed twice, or if a setting makes no sense. A
    /// replica that does not answer is no error.
    pub async fn connect(self) -> Result<RoutingConnection, Error> {
        self.config.check()?;
        self.check_list()?;
        let pins = self.pins?;
        let (sources, configs): (Vec<_>, Vec<_>) = self.replicas.into_iter().map(|r| (r.source, r.config)).unzip();
        let has_replicas = !configs.is_empty();
        let watch = Arc::new(Watch::new(configs, self.config));
        watch.kinds.set_known(Known::new(pins));
        let mut nodes = Vec::with_capacity(sources.len() + 1);
        for (index, source) in std::iter::once(self.primary).chain(sources).enumerate() {
            let id = NodeId::from_index(index);
            let url = source.url();
            match Node::connect(id, source, self.callbacks.clone(), watch.clone()).await {
                Ok(node) => nodes.push(node),
                Err(error) => {
                    let source = watch::cause(error, &url, watch.config.probe_timeout).await;
                    return Err(Error::Connect { node: id, source });
                }
            }
        }
        let limit = watch.config.probe_timeout;
        let probes = nodes.iter().map(|node| {
            let options = node.probe_options();
            async move { (watch::first_probe(&options, limit).await.map_err(Arc::new), options) }
        });
        let probes = join_all(probes).await;
        check_answers(&nodes, &probes)?;
        let mut tasks = Vec::with_capacity(nodes.len() + 1);
        for (node, (probe, options)) in nodes.iter().zip(probes) {
            let reads_catalogue = node.id.is_primary() && has_replicas;
            let catalogue_options = reads_catalogue.then(|| options.clone());
            let first = match probe {
                Ok(mut probe) => {
                    if reads_catalogue {
                        catalogue::read_once(&watch, &mut probe.connection).await;
                    }
                    let epoch = watch.first_answer(node.id, &probe.greeting, probe.sent_at, &probe.answer);
                    Some((probe.connection, epoch))
                }
                Err(error) => {
                    watch.failed(node.id, watch::failure(&error), &error);
                    None
                }
            };
            let task = tokio::spawn(watch::probe_node(watch.clone(), node.id, options, first));
            tasks.push(task.abort_handle());
            if let Some(options) = catalogue_options {
                tasks.push(tokio::spawn(catalogue::keep(watch.clone(), options)).abort_handle());
            }
        }
        let (misrouted, sessions, unannotated) = (self.misrouted, self.sessions, self.unannotated);
        let inner = Arc::new_cyclic(|this| Inner {
            nodes,
            watch,
            misrouted,
            sessions,
            unannotated,
            read_only: OnceLock::new(),
            tasks,
            this: this.clone(),
        });
        let session = SharedSession::new(inner.sessions.apply(Session::new(false)));
        Ok(RoutingConnection { inner, session, view: View::Unannotated, metering: None })
    }

    fn check_list(&self) -> Result<(), Error> {
        let urls: Vec<_> = self.replicas.iter().map(|replica| replica.source.url()).collect();
        check_addresses(&urls)?;
        if let Some(second) = self.replicas.iter().position(|replica| replica.source.is_same_pool(&self.primary)) {
            return Err(SetupError::SharedPool { node: NodeId::from_index(second + 1) }.into());
        }
        let sources = std::iter::once(&self.primary).chain(self.replicas.iter().map(|replica| &replica.source));
        for (node, source) in sources.enumerate().map(|(index, source)| (NodeId::from_index(index), source)) {
            if source.is_foreign() {
                return Err(Error::NotPostgres { node });
            }
            let (replica, primary) = ("PoolTracker::for_replica()", "PoolTracker::for_primary()");
            match (source.is_tracked_read_only(), node.is_primary()) {
                (Some(true), true) => return Err(Error::WrongTracker { node, used: replica, wanted: primary }),
                (Some(false), false) => return Err(Error::WrongTracker { node, used: primary, wanted: replica }),
                _ => {}
            }
        }
        Ok(())
    }
}

/// What the first answers of all nodes say together.
fn check_answers(
    nodes: &[Node],
    probes: &[(Result<watch::Probe, Arc<sqlx::Error>>, PgConnectOptions)],
) -> Result<(), Error> {
    let mut primary_answers = false;
    for (node, (probe, _)) in nodes.iter().zip(probes) {
        match probe {
            Ok(_) => primary_answers |= node.id.is_primary(),
            // The primary has a database of this name: the replica has not replayed its creation yet, and will.
            Err(error) if watch::is_no_database(error) && primary_answers && is_same_name(&nodes[0], node) => {}
            Err(error) if watch::is_login(error) => {
                let source = DbErr::Conn(RuntimeErr::SqlxError(error.clone()));
                return Err(Error::Connect { node: node.id, source });
            }
            Err(_) => {}
        }
    }
    let answers = probes.iter().map(|(probe, _)| probe.as_ref().ok().map(|probe| (probe.greeting, probe.answer)));
    Ok(check_first_answers(answers)?)
}

/// Whether both URLs name the same database.
fn is_same_name(primary: &Node, replica: &Node) -> bool {
    let options = [primary, replica].map(|node| node.pool().connect_options());
    // Without a name in the URL it is that of the user.
    let [primary, replica] = options.each_ref().map(|options| options.get_database().unwrap_or(options.get_username()));
    primary == replica
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("replicas", &self.replicas.len())
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
