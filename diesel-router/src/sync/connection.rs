//! The connection that an application holds in place of Diesel's.

use std::{fmt, time::Duration};

use diesel::{
    PgConnection, QueryResult,
    connection::InstrumentationEvent,
    pg::{PgNotification, TransactionBuilder},
};
use read_router::{
    Ask, Explanation, NodeId, ReadClass, ReadOptions, Served, Stats, Token, View, explain,
    live::{Call, Export, now},
};

use super::{Router, context::Context, handle::Handle, view::ReadConnection};
use crate::instrument::Listener;

/// A connection to a primary and its replicas that sends each statement where it belongs.
///
/// It implements Diesel's connection traits, so that code written for any `C: LoadConnection<Backend = Pg>` takes it as
/// it takes a [`PgConnection`]. Writes, transactions, and reads that nobody has decided about go to the primary; a read
/// goes to a replica where the caller says which class it has, at the connection or at the query
/// ([`read_class`](crate::QueryClass::read_class)):
///
/// ```no_run
/// use std::time::Duration;
///
/// use diesel::prelude::*;
/// use diesel_router::{ReadClass, RoutingConnection};
///
/// # diesel::table! { ride { id -> Integer, distance -> Integer, } }
/// # fn f(conn: &mut RoutingConnection) -> QueryResult<()> {
/// diesel::insert_into(ride::table).values(ride::distance.eq(12)).execute(conn)?;
/// // On a replica that has this session's write, else on the primary:
/// let mine: Vec<(i32, i32)> = ride::table.load(conn.must_see_my_write())?;
/// // On a replica that has everything older than two seconds:
/// let all: i64 = ride::table.count().get_result(conn.seconds_stale(Duration::from_secs(2)))?;
/// # let _ = (mine, all);
/// # Ok(()) }
/// ```
///
/// # What it is
/// A cheap value over the router's pools, to be made for each request, user or job by [`Router::session`]; it costs two
/// allocations and opens nothing. A server's connection is taken from a pool for a statement, and for a transaction to its
/// end.
/// It is the session that [`ReadClass::MustSeeMyWrite`] speaks of; [`same_session`](Self::same_session) gives another
/// connection of it.
///
/// `LISTEN`, `SET`, temporary tables, advisory locks and the like leave something with the server's connection: it is kept
/// for all that is sent to the primary from then on, and closed in the end.
///
/// # When its connection breaks
/// An open transaction has been rolled back by the server; statements fail until the caller rolls back too, as Diesel
/// does by itself where [`transaction`](diesel::Connection::transaction) runs it. Then it goes on with another one of the
/// pool.
pub struct RoutingConnection {
    /// With the class that was said last, which is of no meaning to this type.
    pub(super) read: ReadConnection,
}

impl RoutingConnection {
    pub(super) fn new(context: Context) -> Self {
        Self { read: ReadConnection { handle: Handle::new(context), view: View::Unannotated } }
    }

    /// Starts the configuration of a [`Router`] whose writes go to `primary`.
    pub fn builder(primary: impl Into<super::Source>) -> super::Builder {
        Router::builder(primary)
    }

    fn view(&mut self, view: View) -> &mut ReadConnection {
        self.read.view = view;
        &mut self.read
    }

    /// The connection without a class.
    pub(super) fn plain(&mut self) -> &mut ReadConnection {
        self.view(View::Unannotated)
    }

    /// The same connection, whose reads have this class, or these options, for as long as it is borrowed.
    pub fn read(&mut self, options: impl Into<ReadOptions>) -> &mut ReadConnection {
        self.view(View::Read(options.into()))
    }

    /// The same connection, whose reads see everything that the session has committed or been shown.
    ///
    /// Short for [`read`](Self::read) with [`ReadClass::MustSeeMyWrite`].
    pub fn must_see_my_write(&mut self) -> &mut ReadConnection {
        self.read(ReadClass::MustSeeMyWrite)
    }

    /// The same connection, whose reads see everything committed longer than `bound` ago.
    ///
    /// Short for [`read`](Self::read) with [`ReadClass::SecondsStale`].
    pub fn seconds_stale(&mut self, bound: Duration) -> &mut ReadConnection {
        self.read(ReadClass::SecondsStale(bound))
    }

    /// The same connection, whose reads any replica may serve.
    ///
    /// Short for [`read`](Self::read) with [`ReadClass::Eventual`].
    pub fn eventual(&mut self) -> &mut ReadConnection {
        self.read(ReadClass::Eventual)
    }

    /// The same connection, whose reads go to the primary: for balances, permissions, uniqueness checks and reads that
    /// decide a write.
    pub fn on_primary(&mut self) -> &mut ReadConnection {
        self.view(View::Primary)
    }

    /// Builds a transaction as [`PgConnection::build_transaction`] does. It runs on the primary; one that is READ ONLY
    /// and may run on a replica is built on a [view](Self::read) with a class.
    pub fn build_transaction(&mut self) -> TransactionBuilder<'_, Self> {
        TransactionBuilder::new(self)
    }

    /// The primary's own connection, for what Diesel offers on nothing else: COPY TO, and code that is bound to
    /// [`PgConnection`].
    ///
    /// It is out for as long as it is borrowed. Where something is left on it, as after `LISTEN` or `SET`, it is from then on
    /// what serves this routing connection on the primary. Until that one is used again, or dropped, strict reads of the
    /// session go to the primary. In a transaction it is the transaction's connection; one that is begun here goes on.
    ///
    /// # Errors
    /// If the primary cannot be reached, or a transaction is open on a replica.
    pub fn primary(&mut self) -> QueryResult<&mut PgConnection> {
        self.plain().primary()
    }

    /// The notifications that have come, as [`PgConnection::notifications_iter`] has them; none if this connection has not
    /// said `LISTEN`.
    pub fn notifications_iter(&mut self) -> impl Iterator<Item = QueryResult<PgNotification>> + '_ {
        self.read.handle.kept().into_iter().flat_map(PgConnection::notifications_iter)
    }

    /// Tells `callback` of everything that happens on this connection, with the node on which it does; `None` stands for
    /// the connection itself, which begins and ends transactions. It takes the place of
    /// [`set_instrumentation`](diesel::Connection::set_instrumentation).
    pub fn set_routing_instrumentation(
        &mut self,
        callback: impl FnMut(Option<NodeId>, InstrumentationEvent<'_>) + Send + 'static,
    ) {
        self.read.handle.listen(Some(Listener::with_node(callback)));
    }

    /// Another connection of the same session.
    #[must_use]
    pub fn same_session(&self) -> Self {
        self.router().with_session(self.read.handle.session().clone())
    }

    /// A connection of the same router with a session of its own, which has neither written nor read.
    #[must_use]
    pub fn new_session(&self) -> Self {
        self.router().session()
    }

    /// A connection of the same router whose session goes on where `token` stands: see [`Router::resume`].
    #[must_use]
    pub fn resume(&self, token: Token) -> Self {
        self.router().resume(token)
    }

    /// The router that it was made by.
    #[must_use]
    pub fn router(&self) -> &Router {
        &self.read.handle.context.router
    }

    /// The session's token at this moment: everything that it has committed and been shown.
    ///
    /// Waits for an observation of the primary made after the session's last contact with it, which is one round trip
    /// shared by all who ask. If none comes within the probe's time limit, or a write is in doubt, the token is
    /// [unknown](Token::UNKNOWN).
    pub fn token(&mut self) -> Token {
        let handle = &mut self.read.handle;
        handle.settle();
        let watch = handle.context.watch();
        let mut export = Export::new(handle.session());
        loop {
            match export.step(watch) {
                Ok(token) => return token,
                Err(until) => {
                    let change = watch.changed(Ask::All, export.started());
                    change.wait(until.since(now()));
                }
            }
        }
    }

    /// Where the session's last statement outside a transaction was served, and why there; `None` before the first.
    ///
    /// `None` also after a read that was served nowhere. With statements of one session running at the same time it is
    /// the last one's to be decided.
    #[must_use]
    pub fn last_served(&self) -> Option<Served> {
        self.read.handle.session().last()
    }

    /// The router's counters since the start and what is known of each node.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.router().stats()
    }

    /// What would be chosen now for a read of this class in this session, why, and why each other replica would not do.
    ///
    /// Waits for nothing and changes nothing. It prints as a few lines of text.
    pub fn explain(&self, options: impl Into<ReadOptions>) -> Explanation {
        let call = Call::new(options.into());
        let watch = self.read.handle.context.watch();
        let topology = watch.topology();
        let mut session = self.read.handle.session().with(|session| session.clone());
        session.resolve(&topology);
        explain(&topology, &call.need(watch, &session), now(), rand::random())
    }

    /// How long ago the session's last write ended, as far as it counts for
    /// [`Builder::primary_window`](super::Builder::primary_window); `None` if it has not written, or there is no such
    /// window.
    #[must_use]
    pub fn last_write(&self) -> Option<Duration> {
        self.read.handle.session().with(|session| session.last_write()).map(|at| now().since(at))
    }
}

impl fmt::Debug for RoutingConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RoutingConnection")
    }
}
