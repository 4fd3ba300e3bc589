//! The connection that an application holds in place of SeaORM's.

use std::{
    fmt,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use read_router::{
    Ask, Explanation, Misrouted, NodeId, ReadClass, ReadOptions, Served, Session, Sessions, Stats, Token, Topology,
    Unannotated, View, explain,
    live::{Call, Export, SharedSession, Watch, now},
};
use sea_orm::{DatabaseConnection, DbErr};
use tokio::task::AbortHandle;

use crate::{Builder, Source, metric::Metering, node::Node, watch::changed};

/// A connection to a primary and its replicas that sends each statement where it belongs.
///
/// It implements SeaORM's [`ConnectionTrait`](sea_orm::ConnectionTrait),
/// [`StreamTrait`](sea_orm::StreamTrait) and [`TransactionTrait`](sea_orm::TransactionTrait), so generic code takes it as it
/// takes a [`DatabaseConnection`]. Writes, transactions, and reads that nobody has decided about go to the primary; a
/// read goes to a replica where the caller says which class it has:
///
/// ```no_run
/// # use sea_orm::{entity::prelude::*, DbErr};
/// # use std::time::Duration;
/// # use sea_router::{ReadClass, RoutingConnection};
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// let db = RoutingConnection::builder("postgres://app@primary/shop")
///     .replica("postgres://app@replica-1/shop")
///     .replica("postgres://app@replica-2/shop")
///     .connect()
///     .await?;
/// let request = db.new_session();
/// request.execute_unprepared("INSERT INTO ride (distance) VALUES (12)").await?;
/// // On a replica that has this session's write, else on the primary:
/// let stmt = sea_orm::Statement::from_string(sea_orm::DbBackend::Postgres, "SELECT count(*) FROM ride");
/// request.must_see_my_write().query_one_raw(stmt.clone()).await?;
/// // On a replica that has everything older than two seconds:
/// request.seconds_stale(Duration::from_secs(2)).query_one_raw(stmt).await?;
/// # Ok(()) }
/// ```
///
/// # Sessions
/// A session is what [`ReadClass::MustSeeMyWrite`] speaks of. Clones and views of a connection share its session; the
/// one that [`Builder::connect`] returns holds one for the whole process. It keeps every promise, towards all tasks at
/// once: with writes going on anywhere in the process its strict reads wait for a fresh observation, and reads on
/// several replicas at once wait for each other's. Take [`new_session`](Self::new_session) for each request, user or
/// job: it is two allocations.
///
/// # Cancellation
/// A write, `BEGIN` or `COMMIT` whose future is dropped after it was sent is finished in the background; until its
/// outcome is known, the session's strict reads go to the primary. Dropped while it still waits for a connection of the
/// pool, it is never sent.
#[derive(Clone)]
pub struct RoutingConnection {
    pub(crate) inner: Arc<Inner>,
    pub(crate) session: SharedSession,
    pub(crate) view: View,
    /// Who is told of statements; mostly nobody.
    pub(crate) metering: Option<Arc<Metering>>,
}

/// What all connections made by one builder share. The tasks hold the watch, not this: with the last connection they
/// end.
pub(crate) struct Inner {
    pub(crate) nodes: Vec<Node>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) misrouted: Misrouted,
    pub(crate) sessions: Sessions,
    pub(crate) unannotated: Unannotated,
    /// The primary for read-only handles; made when one first needs it.
    pub(crate) read_only: OnceLock<Node>,
    pub(crate) tasks: Vec<AbortHandle>,
    pub(crate) this: Weak<Self>,
}

impl Inner {
    /// The first node; a builder makes no connection without one.
    pub(crate) fn primary(&self) -> &Node {
        &self.nodes[NodeId::PRIMARY.index()]
    }

    /// A small pool to the primary whose connections are read-only.
    pub(crate) fn read_only(&self) -> &Node {
        self.read_only.get_or_init(|| self.primary().read_only())
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

impl RoutingConnection {
    /// Starts the configuration of a connection whose writes go to `primary`: a URL,
    /// [`ConnectOptions`](sea_orm::ConnectOptions), or a connection or pool that exists already.
    pub fn builder(primary: impl Into<Source>) -> Builder {
        Builder::new(primary.into())
    }

    /// The same connection and session, whose reads have this class, or these options.
    pub fn read(&self, options: impl Into<ReadOptions>) -> Self {
        self.view(View::Read(options.into()))
    }

    /// The same connection and session, whose reads see everything that the session has committed or been shown.
    ///
    /// Short for [`read`](Self::read) with [`ReadClass::MustSeeMyWrite`].
    pub fn must_see_my_write(&self) -> Self {
        self.read(ReadClass::MustSeeMyWrite)
    }

    /// The same connection and session, whose reads see everything committed longer than `bound` ago.
    ///
    /// Short for [`read`](Self::read) with [`ReadClass::SecondsStale`].
    pub fn seconds_stale(&self, bound: Duration) -> Self {
        self.read(ReadClass::SecondsStale(bound))
    }

    /// The same connection and session, whose reads any replica may serve.
    ///
    /// Short for [`read`](Self::read) with [`ReadClass::Eventual`].
    pub fn eventual(&self) -> Self {
        self.read(ReadClass::Eventual)
    }

    /// The same connection and session, whose reads go to the primary: for balances, permissions, uniqueness checks
    /// and reads that decide a write.
    pub fn on_primary(&self) -> Self {
        self.view(View::Primary)
    }

    fn view(&self, view: View) -> Self {
        Self { view, ..self.clone() }
    }

    /// The same pools with a session of its own, which has neither written nor read. Its strict reads stay on the
    /// replica that it read from last as long as that one serves.
    pub fn new_session(&self) -> Self {
        self.with_session(Session::new(true))
    }

    /// The same pools with a session that goes on where `token` stands, in this or another process.
    ///
    /// A token is input: authenticate one that comes from a client. One that names a position that the primary does not
    /// have is capped by the next observation of the primary; one of another cluster or of a lost branch sends strict
    /// reads to the primary, which says so.
    pub fn resume(&self, token: Token) -> Self {
        self.with_session(Session::resume(token, now(), true))
    }

    fn with_session(&self, session: Session) -> Self {
        let session = SharedSession::new(self.inner.sessions.apply(session));
        Self { session, ..self.clone() }
    }

    /// The session's token at this moment: everything that it has committed and been shown.
    ///
    /// Waits for an observation of the primary made after the session's last contact with it, which is one round trip
    /// shared by all who ask. If none comes within the probe's time limit, or a write is in doubt, the token is
    /// [unknown](Token::UNKNOWN).
    pub async fn token(&self) -> Token {
        let watch = &self.inner.watch;
        let mut export = Export::new(&self.session);
        loop {
            match export.step(watch) {
                Ok(token) => return token,
                Err(until) => changed(watch, Ask::All, export.started(), until).await,
            }
        }
    }

    /// Where the session's last statement outside a transaction was served, and why there; `None` before the first.
    ///
    /// `None` also after a read that was served nowhere. With statements of one session running at the same time it is the
    /// last one's to be decided.
    pub fn last_served(&self) -> Option<Served> {
        self.session.last()
    }

    /// The counters since the start and what is known of each node.
    pub fn stats(&self) -> Stats {
        self.inner.watch.stats()
    }

    /// What would be chosen now for a read of this class in this session, why, and why each other replica would not do.
    ///
    /// Waits for nothing and changes nothing. It prints as a few lines of text.
    pub fn explain(&self, options: impl Into<ReadOptions>) -> Explanation {
        let call = Call::new(options.into());
        let topology = self.inner.watch.topology();
        let mut session = self.session.with(|session| session.clone());
        session.resolve(&topology);
        explain(&topology, &call.need(&self.inner.watch, &session), now(), rand::random())
    }

    /// How long ago the session's last write ended, as far as it counts for [`Builder::primary_window`]; `None` if it has
    /// not written, or there is no such window.
    pub fn last_write(&self) -> Option<Duration> {
        self.session.with(|session| session.last_write()).map(|at| now().since(at))
    }

    /// As [`new_session`](Self::new_session), for someone whose last write elsewhere ended so long ago: for
    /// [`Builder::primary_window`] only, `MustSeeMyWrite` knows nothing of that write.
    pub fn new_session_after_write(&self, ago: Duration) -> Self {
        let session = self.new_session();
        session.session.with(|session| session.wrote_at(now().before(ago)));
        session
    }

    /// What is known of the servers at this moment.
    pub fn topology(&self) -> Arc<Topology> {
        self.inner.watch.topology().into_inner()
    }

    /// SeaORM's own connection to one node, past all routing; `None` if there is no such node.
    ///
    /// The session does not see what is done there: a write through it is not covered by the session's promise.
    pub fn node(&self, node: NodeId) -> Option<&DatabaseConnection> {
        self.inner.nodes.get(node.index()).map(|node| &node.database)
    }

    /// Checks that the primary answers; another node is asked by [`ping_node`](Self::ping_node).
    ///
    /// # Errors
    /// SeaORM's own, if it does not.
    pub async fn ping(&self) -> Result<(), DbErr> {
        self.inner.primary().database.ping().await
    }

    /// Ends the probes and closes the pools, for all clones. Waits until the connections that are in use have come back.
    ///
    /// # Errors
    /// SeaORM's own.
    pub async fn close(self) -> Result<(), DbErr> {
        self.close_by_ref().await
    }

    /// As [`close`](Self::close), by reference.
    ///
    /// # Errors
    /// SeaORM's own.
    pub async fn close_by_ref(&self) -> Result<(), DbErr> {
        self.inner.stop();
        for node in self.inner.nodes.iter().chain(self.inner.read_only.get()) {
            node.database.close_by_ref().await?;
            node.close_guarded().await?;
        }
        Ok(())
    }
}

impl fmt::Debug for RoutingConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoutingConnection")
            .field("replicas", &(self.inner.nodes.len() - 1))
            .field("view", &self.view)
            .finish_non_exhaustive()
    }
}
