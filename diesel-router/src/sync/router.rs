//! The pools and the picture of the servers, behind many connections.

use std::{
    fmt,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use diesel::{
    PgConnection,
    r2d2::{self, ConnectionManager},
};
use read_router::{
    Misrouted, NodeId, ReadOptions, Session, Sessions, Stats, Token, Topology, Unannotated,
    live::{SharedSession, Watch, now},
};

use super::{
    Builder, RoutingConnection, Source,
    checkout::{Checkout, WriteCheckout},
    context::Context,
    monitor::Monitors,
    node::Node,
    source::Pool,
};
use crate::kinds::QueryKinds;

/// The pools of a primary and its replicas, and what is known of these servers: one for a process, many
/// [`RoutingConnection`]s upon it. A clone is the same router; with the last one, and the last of its connections, the
/// probes end.
///
/// ```no_run
/// use diesel::prelude::*;
/// use diesel_router::{ReadClass, Router};
///
/// # diesel::table! { ride { id -> Integer, distance -> Integer, } }
/// # fn f() -> Result<(), Box<dyn std::error::Error>> {
/// let router = Router::builder("postgres://app@primary/shop").replica("postgres://app@replica/shop").connect()?;
/// // For each request, user or job:
/// let mut conn = router.session();
/// diesel::insert_into(ride::table).values(ride::distance.eq(12)).execute(&mut conn)?;
/// // On a replica that has this session's write, else on the primary:
/// let rides: i64 = ride::table.count().get_result(conn.read(ReadClass::MustSeeMyWrite))?;
/// # let _ = rides;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Router {
    pub(super) inner: Arc<Inner>,
}

/// What all connections of one router share. The threads hold the watch, not this.
pub(super) struct Inner {
    pub(super) nodes: Vec<Node>,
    pub(super) watch: Arc<Watch>,
    pub(super) monitors: Arc<Monitors>,
    pub(super) queries: QueryKinds,
    pub(super) misrouted: Misrouted,
    pub(super) sessions: Sessions,
    /// The one of the process, for checkouts taken from the router itself.
    pub(super) of_process: SharedSession,
    pub(super) unannotated: Unannotated,
    /// The primary for read-only guards; made when one first needs it.
    pub(super) read_only: OnceLock<Node>,
    /// How that pool is opened; of a pool that the application built it is known only if it said so.
    pub(super) primary_url: Option<String>,
    pub(super) this: Weak<Self>,
}

/// Connections in that pool, at most.
const READ_ONLY_CONNECTIONS: u32 = 5;

impl Inner {
    /// The first node; a builder makes no router without one.
    pub(super) fn primary(&self) -> &Node {
        &self.nodes[NodeId::PRIMARY.index()]
    }

    /// A small pool to the primary whose connections are read-only; `None` if nothing is known but a pool.
    pub(super) fn read_only(&self) -> Option<&Node> {
        let url = self.primary_url.as_ref()?;
        let node = self.read_only.get_or_init(|| {
            let most = self.primary().pool().max_size().min(READ_ONLY_CONNECTIONS);
            let timeout = self.primary().pool().connection_timeout();
            let builder = Pool::builder().max_size(most).connection_timeout(timeout);
            self.primary().read_only(lazy(builder, url))
        });
        // It may have been made after the others were closed, or while they were.
        if self.primary().is_closed() && !node.is_closed() {
            node.close();
        }
        Some(node)
    }

    pub(super) fn session(&self, session: Session) -> SharedSession {
        SharedSession::new(self.sessions.apply(session))
    }
}

/// A pool that opens connections when they are wanted: a server that is down does not keep it busy.
pub(super) fn lazy(builder: r2d2::Builder<ConnectionManager<PgConnection>>, url: &str) -> Pool {
    builder.min_idle(Some(0)).test_on_check_out(false).build_unchecked(ConnectionManager::new(super::url::of_pool(url)))
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.monitors.stop();
    }
}

/// How many connections one node's pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStatus {
    /// Which node.
    pub node: NodeId,
    /// Connections that are open.
    pub connections: u32,
    /// Of these, those that nobody uses.
    pub idle: u32,
    /// As many as there may be.
    pub max_size: u32,
    /// Connections taken since the start.
    pub taken: u64,
    /// How long they were waited for in all, with what was asked of them first.
    pub waited: Duration,
}

impl Router {
    /// Starts the configuration of a router whose writes go to `primary`: a URL, or a pool that exists already.
    pub fn builder(primary: impl Into<Source>) -> Builder {
        Builder::new(primary.into())
    }

    /// A connection with a session of its own, which has neither written nor read: for one request, user or job. Its
    /// strict reads stay on the replica that it read from last as long as that one serves.
    #[must_use]
    pub fn session(&self) -> RoutingConnection {
        self.with_session(self.inner.session(Session::new(true)))
    }

    /// A connection whose session goes on where `token` stands, in this or another process.
    ///
    /// A token is input: authenticate one that comes from a client. One that names a position that the primary does not
    /// have is capped by the next observation of the primary; one of another cluster or of a lost branch sends strict
    /// reads to the primary, which says so.
    #[must_use]
    pub fn resume(&self, token: Token) -> RoutingConnection {
        self.with_session(self.inner.session(Session::resume(token, now(), true)))
    }

    /// As [`session`](Self::session), for someone whose last write elsewhere ended so long ago: for
    /// [`Builder::primary_window`] only, `MustSeeMyWrite` knows nothing of that write.
    #[must_use]
    pub fn session_after_write(&self, ago: Duration) -> RoutingConnection {
        let session = self.inner.session(Session::new(true));
        session.with(|session| session.wrote_at(now().before(ago)));
        self.with_session(session)
    }

    pub(super) fn with_session(&self, session: SharedSession) -> RoutingConnection {
        RoutingConnection::new(Context::new(self.clone(), session))
    }

    /// One server that is proven good enough for this class now, for the session of the process: see [`Checkout`].
    ///
    /// All checkouts from the router itself share that session: with writes going on anywhere in the process its strict
    /// reads wait for a fresh observation. Take [`RoutingConnection::checkout`] for a session of one's own.
    ///
    /// # Errors
    /// If no server can be reached, or none is good enough and the options want no fallback.
    pub fn checkout(&self, options: impl Into<ReadOptions>) -> diesel::QueryResult<Checkout> {
        self.of_process().checkout(options)
    }

    /// The primary, as Diesel's own connection, for the session of the process: see [`WriteCheckout`].
    ///
    /// # Errors
    /// If the primary cannot be reached.
    pub fn checkout_write(&self) -> diesel::QueryResult<WriteCheckout> {
        self.of_process().checkout_write()
    }

    /// The token of the process's session.
    #[must_use]
    pub fn token(&self) -> Token {
        self.of_process().token()
    }

    fn of_process(&self) -> RoutingConnection {
        self.with_session(self.inner.of_process.clone())
    }

    /// The counters since the start and what is known of each node.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.watch.stats()
    }

    /// What is known of the servers at this moment.
    #[must_use]
    pub fn topology(&self) -> Arc<Topology> {
        self.inner.watch.topology().into_inner()
    }

    /// How many connections the pools have, the primary's first; last, once there is one, its pool of read-only checkouts.
    #[must_use]
    pub fn status(&self) -> Vec<PoolStatus> {
        self.inner.nodes.iter().chain(self.inner.read_only.get()).map(status).collect()
    }

    /// Ends the probes and closes the idle connections of the pools that the router built, for all clones. From here on
    /// no connection is given out; those in use are closed when they come back and the last clone is gone.
    pub fn close(&self) {
        self.inner.monitors.stop();
        self.inner.nodes.iter().chain(self.inner.read_only.get()).for_each(Node::close);
    }
}

fn status(node: &Node) -> PoolStatus {
    let (state, (taken, waited)) = (node.pool().state(), node.times());
    PoolStatus {
        node: node.id,
        connections: state.connections,
        idle: state.idle_connections,
        max_size: node.pool().max_size(),
        taken,
        waited,
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router").field("replicas", &(self.inner.nodes.len() - 1)).finish_non_exhaustive()
    }
}
