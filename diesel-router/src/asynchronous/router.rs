//! The pools and what is known of their servers, behind many connections.

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use diesel::QueryResult;
use read_router::{
    Explanation, Misrouted, NodeId, ReadOptions, Session, Sessions, Stats, Token, Topology, Unannotated, explain,
    live::{Call, SharedSession, Watch, now},
};
use tokio::task::AbortHandle;

use super::{
    builder::AsyncBuilder,
    connection::AsyncRoutingConnection,
    node::{Checked, Node},
    schema::Schema,
    source::AsyncSource,
};
use crate::{error::unsent, kinds::QueryKinds};

/// The pools of a primary and its replicas, and what is known of these servers: one for a process, many
/// [`AsyncRoutingConnection`]s upon it. A clone is the same router; with the last one, and the last of its connections, the
/// probes end.
///
/// ```no_run
/// use diesel::prelude::*;
/// use diesel_async::RunQueryDsl;
/// use diesel_router::AsyncRouter;
///
/// diesel::table! { ride (id) { id -> Integer, distance -> Integer, } }
///
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// let router = AsyncRouter::builder("postgres://app@primary/shop")
///     .replica("postgres://app@replica-1/shop")
///     .replica("postgres://app@replica-2/shop")
///     .connect()
///     .await?;
/// let mut conn = router.session();
/// diesel::insert_into(ride::table).values(ride::distance.eq(12)).execute(&mut conn).await?;
/// // On a replica that has this session's write, else on the primary:
/// let rides: i64 = ride::table.count().get_result(conn.must_see_my_write()).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct AsyncRouter {
    pub(crate) inner: Arc<Inner>,
}

/// What all connections of one router share. The tasks hold the watch, not this: with the last connection they end.
pub(crate) struct Inner {
    pub(crate) nodes: Vec<Node>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) schema: Arc<Schema>,
    pub(crate) queries: QueryKinds,
    pub(crate) misrouted: Misrouted,
    pub(crate) sessions: Sessions,
    /// The one of the process, for checkouts taken from the router itself.
    pub(crate) of_process: SharedSession,
    pub(crate) unannotated: Unannotated,
    pub(crate) tasks: Vec<AbortHandle>,
    pub(crate) is_closed: AtomicBool,
    pub(crate) this: Weak<Self>,
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

impl AsyncRouter {
    /// Starts the configuration of a router whose writes go to `primary`: a URL, or a pool that exists already.
    pub fn builder(primary: impl Into<AsyncSource>) -> AsyncBuilder {
        AsyncBuilder::new(primary.into())
    }

    /// A connection with a session of its own, which has neither written nor read: for one request, user or job. Its strict
    /// reads stay on the replica that it read from last as long as that one serves.
    #[must_use]
    pub fn session(&self) -> AsyncRoutingConnection {
        self.with(Session::new(true))
    }

    /// A connection whose session goes on where `token` stands, in this or another process.
    ///
    /// A token is input: authenticate one that comes from a client. One that names a position that the primary does not
    /// have is capped by the next observation of the primary; one of another cluster or of a lost branch sends strict
    /// reads to the primary, which says so.
    #[must_use]
    pub fn resume(&self, token: Token) -> AsyncRoutingConnection {
        self.with(Session::resume(token, now(), true))
    }

    /// As [`session`](Self::session), for someone whose last write elsewhere ended so long ago: for
    /// [`AsyncBuilder::primary_window`](crate::AsyncBuilder::primary_window) only, `MustSeeMyWrite` knows nothing of that
    /// write.
    #[must_use]
    pub fn session_after_write(&self, ago: Duration) -> AsyncRoutingConnection {
        let mut session = Session::new(true);
        session.wrote_at(now().before(ago));
        self.with(session)
    }

    fn with(&self, session: Session) -> AsyncRoutingConnection {
        let session = SharedSession::new(self.inner.sessions.apply(session));
        AsyncRoutingConnection::new(self.clone(), session)
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

    /// How many connections the pools have, the primary's first.
    pub async fn status(&self) -> Vec<PoolStatus> {
        let mut all = Vec::with_capacity(self.inner.nodes.len());
        for node in &self.inner.nodes {
            all.push(node.status().await);
        }
        all
    }

    /// What would be chosen now for a read of this class in a new session, why, and why each other replica would not do.
    ///
    /// Waits for nothing and changes nothing. It prints as a few lines of text.
    #[must_use]
    pub fn explain(&self, options: impl Into<ReadOptions>) -> Explanation {
        self.inner.explain(options.into(), Session::new(true))
    }

    /// Ends the probes and closes the pools, for all connections. What is under way goes on to its end; what comes later is
    /// an error.
    pub fn close(&self) {
        self.inner.is_closed.store(true, Ordering::Release);
        self.inner.stop();
        for node in &self.inner.nodes {
            node.pool.close();
        }
    }
}

impl Inner {
    /// The first node; a builder makes no router without one.
    pub(crate) fn primary(&self) -> &Node {
        &self.nodes[NodeId::PRIMARY.index()]
    }

    /// A connection of the primary.
    pub(crate) async fn acquire_primary(&self) -> QueryResult<Checked> {
        self.check_open()?;
        self.primary().acquire().await
    }

    pub(crate) fn check_open(&self) -> QueryResult<()> {
        if self.is_closed.load(Ordering::Acquire) { Err(unsent("the router is closed")) } else { Ok(()) }
    }

    pub(crate) fn explain(&self, options: ReadOptions, mut session: Session) -> Explanation {
        let topology = self.watch.topology();
        session.resolve(&topology);
        explain(&topology, &Call::new(options).need(&self.watch, &session), now(), rand::random())
    }

    pub(crate) fn downgrade(&self) -> Weak<Self> {
        self.this.clone()
    }

    fn stop(&self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for AsyncRouter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncRouter").field("replicas", &(self.inner.nodes.len() - 1)).finish_non_exhaustive()
    }
}
