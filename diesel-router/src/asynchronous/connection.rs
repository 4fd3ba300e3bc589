//! The connection that an application holds in place of diesel-async's.

use std::{fmt, pin::pin, sync::Arc, task::Poll, time::Duration};

use diesel::{
    QueryResult,
    connection::{Instrumentation, InstrumentationEvent, TransactionManagerStatus},
    pg::PgNotification,
};
use futures_util::{Stream, stream};
use read_router::{
    Ask, Explanation, NodeId, ReadClass, ReadOptions, Served, Stats, Token, Topology, View,
    live::{Export, SharedSession, now},
};
use tokio_postgres::CancelToken;

use super::{
    node::Kept,
    router::AsyncRouter,
    routing::Handle,
    transaction::Pinned,
    transaction_builder::AsyncTransactionBuilder,
    watch::{changed, returned},
};
use crate::instrument::{Forwarder, Listener};

/// A connection to a primary and its replicas that sends each statement where it belongs.
///
/// It implements diesel-async's [`AsyncConnection`](diesel_async::AsyncConnection), so generic code takes it as it takes an
/// [`AsyncPgConnection`](diesel_async::AsyncPgConnection). Writes, transactions, and reads that nobody has decided about go
/// to the primary; a read goes to a replica where the caller says which class it has:
///
/// ```no_run
/// use std::time::Duration;
///
/// use diesel::prelude::*;
/// use diesel_async::RunQueryDsl;
/// use diesel_router::AsyncRouter;
///
/// diesel::table! { ride (id) { id -> Integer, distance -> Integer, } }
///
/// # async fn f(router: AsyncRouter) -> Result<(), diesel::result::Error> {
/// let mut conn = router.session();
/// diesel::insert_into(ride::table).values(ride::distance.eq(12)).execute(&mut conn).await?;
/// // Everything this session wrote or saw:
/// let all: i64 = ride::table.count().get_result(conn.must_see_my_write()).await?;
/// // Everything older than two seconds:
/// let all: i64 = ride::table.count().get_result(conn.seconds_stale(Duration::from_secs(2))).await?;
/// // Not annotated: the primary.
/// let all: i64 = ride::table.count().get_result(&mut conn).await?;
/// # let _ = all;
/// # Ok(()) }
/// ```
///
/// It holds no connection of a pool but while a statement runs, while a transaction is open, and once a statement has left
/// something with it (`SET`, `LISTEN`, a temporary table, an advisory lock), which later statements on the primary find
/// there; such a connection is closed in the end. Make one for each request
/// or job ([`AsyncRouter::session`]), which is a few allocations. What a session is, stands at
/// [`ReadClass::MustSeeMyWrite`].
///
/// # Cancellation
/// A write, `BEGIN` or `COMMIT` whose future is dropped after it was sent is finished in the background; until its
/// outcome is known, the session's strict reads go to the primary. Dropped while it still waits for a connection of the
/// pool, it is never sent. A connection that is dropped with a transaction open rolls it back in the background.
///
/// A transaction whose closure is dropped half-way stays open on its connection, as on Diesel's own: what comes next runs
/// in it, until it is rolled back or the connection is dropped. Drop the connection with the closure's future.
pub struct AsyncRoutingConnection {
    view: AsyncReadConnection,
}

/// A routing connection seen through a class: its reads have that class. Lent by
/// [`AsyncRoutingConnection::read`] and its kin.
///
/// It implements what the connection implements; an open transaction goes before its class.
pub struct AsyncReadConnection {
    pub(crate) handle: Handle,
    pub(crate) router: AsyncRouter,
    /// The connection of the open transaction.
    pub(crate) pinned: Option<Pinned>,
    /// What there is to say of transactions while none is open.
    pub(crate) idle: TransactionManagerStatus,
    /// The same instrumentation as the handle's, to be lent.
    pub(crate) told: Forwarder,
}

impl AsyncRoutingConnection {
    pub(crate) fn new(router: AsyncRouter, session: SharedSession) -> Self {
        let listener = Listener::by_default();
        let told = told(listener.as_ref());
        let inner = router.inner.clone();
        let handle = Handle { inner, session, view: View::Unannotated, listener, caches: true, kept: Kept::default() };
        Self {
            view: AsyncReadConnection { handle, router, pinned: None, idle: TransactionManagerStatus::default(), told },
        }
    }

    /// The connection itself, whose reads have no class.
    pub(crate) fn plain(&mut self) -> &mut AsyncReadConnection {
        self.through(View::Unannotated)
    }

    fn through(&mut self, view: View) -> &mut AsyncReadConnection {
        self.view.handle.view = view;
        &mut self.view
    }

    /// The same connection, whose reads have this class, or these options.
    pub fn read(&mut self, options: impl Into<ReadOptions>) -> &mut AsyncReadConnection {
        self.through(View::Read(options.into()))
    }

    /// The same connection, whose reads see everything that the session has committed or been shown.
    ///
    /// Short for [`read`](Self::read) with [`ReadClass::MustSeeMyWrite`].
    pub fn must_see_my_write(&mut self) -> &mut AsyncReadConnection {
        self.read(ReadClass::MustSeeMyWrite)
    }

    /// The same connection, whose reads see everything committed longer than `bound` ago.
    ///
    /// Short for [`read`](Self::read) with [`ReadClass::SecondsStale`].
    pub fn seconds_stale(&mut self, bound: Duration) -> &mut AsyncReadConnection {
        self.read(ReadClass::SecondsStale(bound))
    }

    /// The same connection, whose reads any replica may serve.
    ///
    /// Short for [`read`](Self::read) with [`ReadClass::Eventual`].
    pub fn eventual(&mut self) -> &mut AsyncReadConnection {
        self.read(ReadClass::Eventual)
    }

    /// The same connection, whose reads go to the primary: for balances, permissions, uniqueness checks and reads that
    /// decide a write.
    pub fn on_primary(&mut self) -> &mut AsyncReadConnection {
        self.through(View::Primary)
    }

    /// Begins a transaction with options of its own, as
    /// [`AsyncPgConnection::build_transaction`](diesel_async::AsyncPgConnection::build_transaction) does.
    pub fn build_transaction(&mut self) -> AsyncTransactionBuilder<'_, Self> {
        AsyncTransactionBuilder::new(self)
    }

    /// The router that it belongs to.
    #[must_use]
    pub fn router(&self) -> &AsyncRouter {
        &self.view.router
    }

    /// A connection of the same router with a session of its own.
    #[must_use]
    pub fn new_session(&self) -> Self {
        self.view.router.session()
    }

    /// Another connection of the same session, for statements that run at the same time.
    #[must_use]
    pub fn same_session(&self) -> Self {
        Self::new(self.view.router.clone(), self.view.handle.session.clone())
    }

    /// The session's token at this moment: everything that it has committed and been shown.
    ///
    /// Waits for an observation of the primary made after the session's last contact with it, which is one round trip
    /// shared by all who ask. If none comes within the probe's time limit, or a write is in doubt, the token is
    /// [unknown](Token::UNKNOWN).
    pub async fn token(&self) -> Token {
        self.view.handle.token().await
    }

    /// Where the session's last statement outside a transaction was served, and why there; `None` before the first.
    ///
    /// `None` also after a read that was served nowhere. With statements of one session running at the same time it is the
    /// last one's to be decided.
    #[must_use]
    pub fn last_served(&self) -> Option<Served> {
        self.view.handle.session.last()
    }

    /// The router's counters since the start and what is known of each node.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.view.router.stats()
    }

    /// What is known of the servers at this moment.
    #[must_use]
    pub fn topology(&self) -> Arc<Topology> {
        self.view.router.topology()
    }

    /// What would be chosen now for a read of this class in this session, why, and why each other replica would not do.
    ///
    /// Waits for nothing and changes nothing. It prints as a few lines of text.
    #[must_use]
    pub fn explain(&self, options: impl Into<ReadOptions>) -> Explanation {
        let session = self.view.handle.session.with(|session| session.clone());
        self.view.handle.inner.explain(options.into(), session)
    }

    /// How long ago the session's last write ended, as far as it counts for
    /// [`AsyncBuilder::primary_window`](crate::AsyncBuilder::primary_window); `None` if it has not written, or there is no
    /// such window.
    #[must_use]
    pub fn last_write(&self) -> Option<Duration> {
        self.view.handle.session.with(|session| session.last_write()).map(|at| now().since(at))
    }

    /// A connection of the same router whose session goes on where `token` stands: see [`AsyncRouter::resume`].
    #[must_use]
    pub fn resume(&self, token: Token) -> Self {
        self.view.router.resume(token)
    }

    /// Tells `callback` of everything that happens on this connection, with the node on which it does. It takes the place of
    /// [`set_instrumentation`](diesel_async::AsyncConnection::set_instrumentation).
    pub fn set_routing_instrumentation(
        &mut self,
        callback: impl FnMut(Option<NodeId>, InstrumentationEvent<'_>) + Send + 'static,
    ) {
        self.view.listen(Listener::with_node(callback));
    }

    /// The notifications of the channels that this connection listens to: it keeps the connection on which it has said
    /// `LISTEN`. Without one there are none.
    pub fn notifications_stream(&mut self) -> impl Stream<Item = QueryResult<PgNotification>> + '_ {
        let mut kept = self.view.handle.kept.clone().try_lock_owned().ok();
        let pinned = self.view.pinned.as_mut();
        let mut pinned = pinned.map(Pinned::lend);
        stream::poll_fn(move |context| {
            let connection = match (&mut pinned, &mut kept) {
                (Some(pinned), _) => &mut **pinned,
                (None, Some(kept)) => match kept.as_mut() {
                    Some(kept) => &mut **kept,
                    None => return Poll::Ready(None),
                },
                (None, None) => return Poll::Ready(None),
            };
            pin!(connection.notifications_stream()).poll_next(context)
        })
    }

    /// What cancels the statement that runs on the connection of this one's open transaction; `None` if there is none.
    pub fn cancel_token(&mut self) -> Option<CancelToken> {
        self.view.pinned.as_mut().map(|pinned| pinned.lend().cancel_token())
    }

    pub(crate) fn has_transaction(&self) -> bool {
        self.view.pinned.is_some()
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.view.handle
    }
}

impl AsyncReadConnection {
    /// Begins a transaction with options of its own. One that is READ ONLY, on a view with a class, runs whole on one
    /// replica that is proven good enough when it begins, or on the primary.
    pub fn build_transaction(&mut self) -> AsyncTransactionBuilder<'_, Self> {
        AsyncTransactionBuilder::new(self)
    }

    pub(crate) fn set_listener(&mut self, instrumentation: impl Instrumentation) {
        self.listen(Listener::new(instrumentation));
    }

    fn listen(&mut self, listener: Listener) {
        self.told = told(Some(&listener));
        self.handle.listener = Some(listener.clone());
        if let Some(pinned) = &mut self.pinned {
            pinned.set_listener(listener);
        }
    }
}

fn told(listener: Option<&Listener>) -> Forwarder {
    listener.map(|listener| listener.on(None)).unwrap_or_default()
}

impl Handle {
    pub(crate) async fn token(&self) -> Token {
        let watch = &self.inner.watch;
        returned(&self.session, now() + watch.config.probe_timeout).await;
        let mut export = Export::new(&self.session);
        loop {
            match export.step(watch) {
                Ok(token) => return token,
                Err(until) => changed(watch, Ask::All, export.started(), until).await,
            }
        }
    }
}

impl fmt::Debug for AsyncRoutingConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncRoutingConnection").field("router", &self.view.router).finish_non_exhaustive()
    }
}

impl fmt::Debug for AsyncReadConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncReadConnection").field("view", &self.handle.view).finish_non_exhaustive()
    }
}
