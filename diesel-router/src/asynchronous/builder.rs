//! Configuration, and the checks before the first statement.

use std::sync::{Arc, atomic::AtomicBool};

use futures_util::future::join_all;
use read_router::{
    Config, Failure, Known, Misrouted, NodeId, PinError, Pins, Session, Sessions, SetupError, Unannotated,
    check_addresses, check_first_answers,
    live::{SharedSession, Watch},
};

use super::{
    catalogue,
    node::Node,
    router::{AsyncRouter, Inner},
    schema::Schema,
    source::{AsyncReplica, AsyncSource},
    watch::{self, Failed, Probe},
};
use crate::{Error, kinds::QueryKinds};

/// Configures an [`AsyncRouter`].
#[must_use = "a builder does nothing until connect()"]
pub struct AsyncBuilder {
    primary: AsyncSource,
    replicas: Vec<AsyncReplica>,
    config: Config,
    misrouted: Misrouted,
    sessions: Sessions,
    unannotated: Unannotated,
    pins: Result<Pins, PinError>,
    connections: usize,
}

impl AsyncBuilder {
    pub(crate) fn new(primary: AsyncSource) -> Self {
        Self {
            primary,
            replicas: Vec::new(),
            config: Config::default(),
            misrouted: Misrouted::default(),
            sessions: Sessions::default(),
            unannotated: Unannotated::default(),
            pins: Ok(Pins::new()),
            connections: 10,
        }
    }

    /// Adds a replica: a URL, an existing pool, or an [`AsyncReplica`] with a weight, a group, or the classes that it serves.
    /// It may be down at the start, and it may be the primary under another name, as in development; then it is always
    /// fresh. Defaults to none: all goes to the primary, as with the plain connection.
    pub fn replica(mut self, replica: impl Into<AsyncReplica>) -> Self {
        self.replicas.push(replica.into());
        self
    }

    /// Adds several replicas.
    pub fn replicas<R: Into<AsyncReplica>>(mut self, replicas: impl IntoIterator<Item = R>) -> Self {
        self.replicas.extend(replicas.into_iter().map(Into::into));
        self
    }

    /// Replaces all timings. Defaults to [`Config::default`].
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    read_router::settings!();

    /// How many connections each pool opens that is made for a URL, at most. Defaults to 10; zero is taken for 1.
    pub fn pool_size(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// Makes the pools, asks every node once, and starts the probes. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// If the primary cannot be reached or is a replica, if a replica refuses the login, belongs to another cluster, is a
    /// second primary or is listed twice, or if a setting makes no sense. A replica that does not answer is no error. Of a
    /// pool that the application built, a refused login looks like a server that is down.
    pub async fn connect(self) -> Result<AsyncRouter, Error> {
        self.config.check()?;
        self.check_list()?;
        let pins = self.pins?;
        let (sources, configs): (Vec<_>, Vec<_>) = self.replicas.into_iter().map(|r| (r.source, r.config)).unzip();
        let has_replicas = !configs.is_empty();
        let watch = Arc::new(Watch::new(configs, self.config));
        watch.kinds.set_known(Known::new(pins));
        let schema = Arc::new(Schema::new());
        let mut nodes = Vec::with_capacity(sources.len() + 1);
        for (index, source) in std::iter::once(self.primary).chain(sources).enumerate() {
            let id = NodeId::from_index(index);
            let connected = source.connect(self.connections);
            let (server, pool) = connected.map_err(|source| Error::Connect { node: id, source })?;
            nodes.push(Node::new(id, server, pool, watch.clone(), schema.clone()));
        }
        let limit = watch.config.probe_timeout;
        let probes = join_all(nodes.iter().map(|node| watch::first_probe(&node.server, limit))).await;
        let probes = check_answers(&nodes, probes)?;
        let mut tasks = Vec::with_capacity(nodes.len() + 1);
        if let Some(primary) = nodes.first().filter(|_| has_replicas) {
            catalogue::read_once(&watch, &primary.server).await;
            tasks.push(tokio::spawn(catalogue::keep(watch.clone(), primary.server.clone())).abort_handle());
        }
        for (node, probe) in nodes.iter().zip(probes) {
            let first = match probe {
                Ok(probe) => {
                    let epoch = watch.first_answer(node.id, &probe.greeting, probe.sent_at, &probe.answer);
                    Some((probe.connection, epoch))
                }
                Err((failure, error)) => {
                    watch.failed(node.id, failure, &error);
                    None
                }
            };
            let task = tokio::spawn(watch::probe_node(watch.clone(), node.id, node.server.clone(), first));
            tasks.push(task.abort_handle());
        }
        let (misrouted, sessions, unannotated) = (self.misrouted, self.sessions, self.unannotated);
        let of_process = SharedSession::new(sessions.apply(Session::new(false)));
        let inner = Arc::new_cyclic(|this| Inner {
            nodes,
            watch,
            schema,
            queries: QueryKinds::default(),
            misrouted,
            sessions,
            of_process,
            unannotated,
            tasks,
            is_closed: AtomicBool::new(false),
            this: this.clone(),
        });
        Ok(AsyncRouter { inner })
    }

    fn check_list(&self) -> Result<(), Error> {
        let addresses: Vec<_> = self.replicas.iter().filter_map(|replica| replica.source.address()).collect();
        check_addresses(&addresses)?;
        if let Some(second) = self.replicas.iter().position(|replica| replica.source.is_same_pool(&self.primary)) {
            return Err(SetupError::SharedPool { node: NodeId::from_index(second + 1) }.into());
        }
        Ok(())
    }
}

/// What the first answers of all nodes say together.
fn check_answers(nodes: &[Node], probes: Vec<Result<Probe, Failed>>) -> Result<Vec<Result<Probe, Failed>>, Error> {
    let answers = probes.iter().map(|probe| probe.as_ref().ok().map(|probe| (probe.greeting, probe.answer)));
    let answers: Vec<_> = answers.collect();
    let mut kept = Vec::with_capacity(probes.len());
    for (node, probe) in nodes.iter().zip(probes) {
        // A replica that has not replayed the creation of its database will.
        let is_same_name = nodes[0].server.database() == node.server.database();
        match probe {
            Err((_, source)) if node.id.is_primary() => return Err(Error::Connect { node: node.id, source }),
            Err((Failure::Login, source)) => return Err(Error::Connect { node: node.id, source }),
            Err((Failure::Answer, source)) if !is_same_name => return Err(Error::Connect { node: node.id, source }),
            probe => kept.push(probe),
        }
    }
    check_first_answers(answers)?;
    Ok(kept)
}

impl std::fmt::Debug for AsyncBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AsyncBuilder")
            .field("replicas", &self.replicas.len())
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
