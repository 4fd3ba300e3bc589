//! Configuration, and the checks before the first statement.

use std::{fmt, sync::Arc, sync::OnceLock, thread, time::Duration};

use diesel::{
    ConnectionError, PgConnection,
    r2d2::{self, ConnectionManager},
};
use read_router::{
    Config, Known, Misrouted, NodeId, PinError, Pins, Session, Sessions, Unannotated, check_addresses,
    check_first_answers,
    live::{SharedSession, Watch},
};

use super::{
    Replica, Router, Source, catalogue,
    monitor::{Failed, First, Monitors, Target},
    node::Node,
    router::{Inner, lazy},
    source::{Kind, Pool},
};
use crate::{Error, kinds::QueryKinds};

type PoolBuilder = r2d2::Builder<ConnectionManager<PgConnection>>;
type MapPool = Arc<dyn Fn(PoolBuilder) -> PoolBuilder + Send + Sync>;

/// Configures a [`Router`].
#[must_use = "a builder does nothing until connect()"]
pub struct Builder {
    primary: Source,
    replicas: Vec<Replica>,
    config: Config,
    misrouted: Misrouted,
    sessions: Sessions,
    unannotated: Unannotated,
    pins: Result<Pins, PinError>,
    pool_size: u32,
    map_pool: Option<MapPool>,
}

/// Connections of a pool, if nobody says otherwise.
const POOL_SIZE: u32 = 10;

impl Builder {
    pub(super) fn new(primary: Source) -> Self {
        Self {
            primary,
            replicas: Vec::new(),
            config: Config::default(),
            misrouted: Misrouted::default(),
            sessions: Sessions::default(),
            unannotated: Unannotated::default(),
            pins: Ok(Pins::new()),
            pool_size: POOL_SIZE,
            map_pool: None,
        }
    }

    /// Adds a replica: a URL, an existing pool, or a [`Replica`] with a weight, a group, or the classes that it serves.
    /// It may be down at the start, and it may be the primary under another name, as in development; then it is always
    /// fresh. Defaults to none: all goes to the primary, as with the plain connection.
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
    ///
    /// libpq blocks, so that two of them are not exact here. `replica_read_timeout` is the server's
    /// `statement_timeout`: a server that hangs altogether, or a host that vanishes, is noticed by the TCP settings
    /// that the connection string has, which are 15 seconds where it has none. `probe_timeout` takes such a node out
    /// for reads to come; it does not end a read that is on its way there.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    read_router::settings!();

    /// How many connections each pool opens that is made for a URL, at most. Defaults to 10; zero is taken for 1.
    pub fn pool_size(mut self, size: u32) -> Self {
        self.pool_size = size.max(1);
        self
    }

    /// Changes the options of every pool that is given by a URL: timeouts, a customizer, an event handler. Connections
    /// are opened when they are wanted, and asked whether they are alive after a second of idleness, whatever it says.
    pub fn map_pool_options(mut self, map: impl Fn(PoolBuilder) -> PoolBuilder + Send + Sync + 'static) -> Self {
        self.map_pool = Some(Arc::new(map));
        self
    }

    /// Makes the pools, asks every node once, and starts the probes: a thread for each node, and with replicas one that reads
    /// the primary's [catalogue](read_router::Catalogue).
    ///
    /// # Errors
    /// If the primary cannot be reached or is a replica, if a replica belongs to another cluster, is a second primary
    /// or is listed twice, or if a setting makes no sense. A replica that does not answer is no error; nor is one that
    /// refuses the login, which libpq does not tell apart: the event says so.
    pub fn connect(self) -> Result<Router, Error> {
        self.config.check()?;
        let pins = self.pins?;
        let urls: Vec<_> = self.replicas.iter().filter_map(|replica| replica.source.url()).collect();
        check_addresses(&urls)?;
        let primary_url = self.primary.url().map(ToOwned::to_owned);
        let (pool_size, map_pool) = (self.pool_size, self.map_pool);
        let (sources, configs): (Vec<_>, Vec<_>) = self.replicas.into_iter().map(|r| (r.source, r.config)).unzip();
        let watch = Arc::new(Watch::new(configs, self.config));
        watch.kinds.set_known(Known::new(pins));
        let sources: Vec<_> = std::iter::once(self.primary).chain(sources).collect();
        let mut targets = Vec::with_capacity(sources.len());
        for (index, source) in sources.iter().enumerate() {
            let target = target(source).ok_or(Error::PoolTooSmall { node: NodeId::from_index(index) })?;
            targets.push(target);
        }
        let firsts = first_answers(&targets, watch.config.probe_timeout);
        let answers = firsts.iter().map(|first| first.as_ref().ok().map(|first| (first.greeting, first.answer)));
        check_first_answers(answers)?;
        let monitors = Monitors::new(watch.clone(), targets.len());
        let mut nodes = Vec::with_capacity(targets.len());
        for (index, source) in sources.into_iter().enumerate() {
            let (pool, is_ours) = match source.kind {
                Kind::Pool(pool) => (pool, false),
                Kind::Url(url) => {
                    let builder = Pool::builder().max_size(pool_size);
                    let builder =
                        map_pool.as_ref().map_or_else(|| Pool::builder().max_size(pool_size), |map| map(builder));
                    (lazy(builder, &url), true)
                }
            };
            nodes.push(Node::new(NodeId::from_index(index), pool, is_ours, watch.clone()));
        }
        if let Some(Err(_)) = firsts.first() {
            let source = match firsts.into_iter().next() {
                Some(Err(failed)) => failed.source,
                _ => ConnectionError::BadConnection("the primary did not answer".to_owned()),
            };
            return Err(Error::Connect { node: NodeId::PRIMARY, source });
        }
        let has_replicas = targets.len() > 1;
        let (misrouted, sessions, unannotated) = (self.misrouted, self.sessions, self.unannotated);
        let inner = Arc::new_cyclic(|this| Inner {
            nodes,
            watch,
            monitors: monitors.clone(),
            queries: QueryKinds::default(),
            misrouted,
            of_process: SharedSession::new(sessions.apply(Session::new(false))),
            sessions,
            unannotated,
            read_only: OnceLock::new(),
            primary_url,
            this: this.clone(),
        });
        if let Some(target) = targets.first().filter(|_| has_replicas) {
            catalogue::read_once(&inner.watch, target, inner.watch.config.probe_timeout);
            monitors.start_catalogue(target.clone());
        }
        for (index, (target, first)) in targets.into_iter().zip(firsts).enumerate() {
            monitors.start(NodeId::from_index(index), target, first);
        }
        if has_replicas {
            monitors.start_watchdog();
        }
        Ok(Router { inner })
    }
}

/// Where the probes of a source lead; `None` if its pool has nothing to spare.
fn target(source: &Source) -> Option<Target> {
    match (&source.probe_url, &source.kind) {
        (Some(url), _) | (None, Kind::Url(url)) => Some(Target::Url(url.clone())),
        (None, Kind::Pool(pool)) => (pool.max_size() > 1).then(|| Target::Pool(pool.clone())),
    }
}

/// Asks all nodes at once. One that hangs holds up the start for as long as it takes to connect to it, at most.
fn first_answers(targets: &[Target], limit: Duration) -> Vec<Result<First, Failed>> {
    thread::scope(|scope| {
        let asked: Vec<_> = targets.iter().map(|target| scope.spawn(move || target.first(limit))).collect();
        asked.into_iter().map(|asked| asked.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("replicas", &self.replicas.len())
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
