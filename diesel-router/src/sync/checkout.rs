//! One server for code that is bound to Diesel's own connection type.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use diesel::{
    PgConnection, QueryResult,
    connection::{Instrumentation, SimpleConnection},
};
use read_router::{
    NodeId, PrimaryReason, Proof, ReadOptions, Session, Token,
    live::{Busy, Call, SharedSession},
    probe,
};

use super::{
    Router, RoutingConnection,
    checked::Checked,
    context::{Attempt, Context, Routed},
    doubt,
    node::Wishes,
};
use crate::{error::Refusal, kinds::Looked};

/// A guard on one server that was proven good enough for a class when it was taken; it dereferences to Diesel's own
/// [`PgConnection`], for code that is bound to that type, and is a connection itself: one choice for a whole request.
///
/// ```no_run
/// use diesel::prelude::*;
/// use diesel_router::{ReadClass, Router};
///
/// # diesel::table! { ride { id -> Integer, } }
/// // Stays as it is.
/// fn rides(conn: &mut PgConnection) -> QueryResult<i64> {
///     ride::table.count().get_result(conn)
/// }
///
/// # fn f(router: &Router) -> QueryResult<()> {
/// let mut conn = router.checkout(ReadClass::Eventual)?;
/// rides(&mut conn)?;
/// # Ok(()) }
/// ```
///
/// # Guaranteed
/// When it was taken, the server had what the class asks for, and a replica only goes forward. It is read-only wherever
/// it leads, the primary included, unless a transaction asks for READ WRITE by name. While it is held, and from then
/// on, the session's strict reads see everything that may have been read through it.
///
/// # Not guaranteed
/// It proves its class when it is taken, not again later: a write of the session that comes after is not covered, and a
/// bound in seconds counts up to the taking. It has no time limit of its own.
///
/// # What it costs, and what is cleaned up
/// A connection that served reads before and has been idle for less than a second is given out, and taken back, without a
/// question to the server; where its last read had a time limit, that is lifted first, in one round trip. What runs on it is told by its instrumentation, and says what the next user would find:
/// - after reads, writes, definitions and transactions, `SET LOCAL` included: nothing;
/// - after a setting, `LISTEN`, a temporary table, a session's advisory lock, a prepared statement, a cursor `WITH HOLD`:
///   the connection is closed, so that settings of the pool's own are not reset, and the next one is opened fresh;
/// - after a call of what is not known to be harmless (a function that is not in the
///   [catalogue](read_router::Catalogue) as such and not pinned, `CALL`, `DO`, several statements in one text): read-only
///   mode and the time limit are set again before it is used again, in one round trip; what else such code has set stays;
///   so after any read while there is no catalogue, as in a router without replicas;
/// - an open transaction is rolled back, since the connection is closed.
///
/// An instrumentation of the caller's own is told through [`set_instrumentation`](diesel::Connection::set_instrumentation)
/// of the guard. Put in our place on the [`PgConnection`] itself it leaves nobody who looks, and the connection is closed.
/// Of a connection on which a pool's own set-up has put one, nothing is known: it is as after an unknown call.
pub struct Checkout {
    router: Router,
    session: SharedSession,
    /// Taken when it is dropped only.
    checked: Option<Checked>,
    place: Place,
}

enum Place {
    Replica { proof: Proof, _busy: Busy },
    Primary,
}

/// A guard on the primary, for code that is bound to [`PgConnection`] and writes.
///
/// While it lives the session's strict reads go to the primary: what it does is not seen statement by statement. When
/// it is dropped the session has seen all of it, and a transaction that is still open is rolled back. What is left on the
/// connection has it closed, as that of a [`Checkout`]; what functions, procedures and triggers do is not seen.
pub struct WriteCheckout {
    router: Router,
    session: SharedSession,
    /// Taken when it is dropped or detached only.
    checked: Option<Checked>,
}

/// A connection that belongs to no session any more, for `LISTEN` and the like. It keeps its place in the primary's
/// pool, and is closed in the end.
pub struct Detached(Checked);

impl RoutingConnection {
    /// One server that is proven good enough for this class now, as Diesel's own connection.
    ///
    /// # Errors
    /// If no server can be reached, or none is good enough and the options want no fallback; within a transaction.
    pub fn checkout(&mut self, options: impl Into<ReadOptions>) -> QueryResult<Checkout> {
        let handle = &mut self.read.handle;
        handle.settle();
        if handle.transaction.is_open() {
            return Err(Refusal::InTransaction.into());
        }
        checkout(&mut handle.context, options.into())
    }

    /// The primary, as Diesel's own connection.
    ///
    /// # Errors
    /// If the primary cannot be reached; within a transaction.
    pub fn checkout_write(&mut self) -> QueryResult<WriteCheckout> {
        let handle = &mut self.read.handle;
        handle.settle();
        if handle.transaction.is_open() {
            return Err(Refusal::InTransaction.into());
        }
        let context = &handle.context;
        let mut checked = context.inner().primary().acquire(&context.wishes)?;
        context.to_primary(None, PrimaryReason::GivenOut, None);
        context.session.with(Session::given_out);
        checked.lend(&context.wishes, &context.inner().watch);
        Ok(WriteCheckout { router: context.router.clone(), session: context.session.clone(), checked: Some(checked) })
    }
}

fn checkout(context: &mut Context, options: ReadOptions) -> QueryResult<Checkout> {
    let mut call = Call::new(options);
    let mut taken = None;
    let routed = context.route(&mut call, &Looked::unseen(), |context, call, node, proof, busy| {
        let mut checked = match context.acquire_proven(call, node, proof) {
            Ok(checked) => checked,
            Err(missed) => return missed,
        };
        if let Err(error) = checked.limit(None) {
            checked.spoil();
            return context.elsewhere(call, node, "no answer", error);
        }
        let served = call.served(context.watch(), node);
        context.session.checked_out(context.watch(), node, proof, served);
        taken = Some((checked, Place::Replica { proof: *proof, _busy: busy }));
        Attempt::Served
    })?;
    let (mut checked, place) = match (taken, routed) {
        (Some(taken), _) => taken,
        (None, Routed::Primary(reason) | Routed::Write(reason)) => {
            (checkout_primary(context, &call, reason)?, Place::Primary)
        }
        (None, Routed::Judge(_) | Routed::Served) => {
            (checkout_primary(context, &call, PrimaryReason::ReplicaFailed)?, Place::Primary)
        }
    };
    checked.lend(&context.wishes, &context.inner().watch);
    let (router, session) = (context.router.clone(), context.session.clone());
    Ok(Checkout { router, session, checked: Some(checked), place })
}

fn checkout_primary(context: &mut Context, call: &Call, reason: PrimaryReason) -> QueryResult<Checked> {
    let router = context.router.clone();
    // Where nothing is known but the application's pool, one of its connections is made read-only and closed in the
    // end.
    let from = router.inner.read_only();
    let (mut checked, reason) =
        context.acquire_primary(Some(from.unwrap_or(router.inner.primary())), Some(call), reason)?;
    if from.is_none() {
        checked.spoil();
        checked.batch_execute(probe::READ_ONLY)?;
    }
    context.to_primary(Some(call.class()), reason, Some(call));
    context.session.with(Session::given_out);
    Ok(checked)
}

/// There is one until the guard is dropped.
const HELD: &str = "a guard holds its connection until it is dropped, finished or detached";

impl Checkout {
    pub(super) fn tell(&mut self, told: impl Instrumentation) {
        self.checked.as_mut().expect(HELD).tell(told);
    }

    /// The server that it leads to.
    #[must_use]
    pub fn node(&self) -> NodeId {
        match self.place {
            Place::Replica { .. } => self.checked.as_ref().map_or(NodeId::PRIMARY, |checked| checked.node),
            Place::Primary => NodeId::PRIMARY,
        }
    }
}

impl Deref for Checkout {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.checked.as_deref().expect(HELD)
    }
}

impl DerefMut for Checkout {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.checked.as_deref_mut().expect(HELD)
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        let Some(mut checked) = self.checked.take() else { return };
        let (watch, opened) = (&self.router.inner.watch, checked.opened);
        checked.end_loan(&Wishes::none(), false);
        match &self.place {
            Place::Replica { proof, .. } => {
                if checked.is_lost(None) {
                    watch.read_failed(checked.node);
                }
                self.session.checked_in(watch, checked.node, proof);
            }
            Place::Primary => {
                self.session.contact(watch, opened);
                self.session.with(Session::taken_back);
            }
        }
    }
}

impl WriteCheckout {
    pub(super) fn tell(&mut self, told: impl Instrumentation) {
        self.checked.as_mut().expect(HELD).tell(told);
    }

    /// Gives the connection back and returns the session's token, which covers what was done on it.
    ///
    /// # Errors
    /// If a transaction is still open, which is rolled back.
    pub fn finish(mut self) -> QueryResult<Token> {
        let is_open = self.checked.as_mut().is_some_and(|checked| end_loan(checked, &self.router));
        let mut connection = self.router.with_session(self.session.clone());
        drop(self);
        if is_open { Err(Refusal::InTransaction.into()) } else { Ok(connection.token()) }
    }

    /// Takes the connection out of the session: what was done with it up to here is covered, what is done from here on
    /// is not.
    ///
    /// # Panics
    /// Never: there is a connection until the guard is gone.
    #[must_use]
    pub fn detach(mut self) -> Detached {
        let mut checked = self.checked.take().expect(HELD);
        checked.spoil();
        self.settle(&mut checked);
        Detached(checked)
    }

    fn settle(&self, checked: &mut Checked) {
        let (inner, opened) = (&self.router.inner, checked.opened);
        if checked.is_lost(None) {
            // Its last statement may have been a write.
            let write = self.session.with(Session::write_sent);
            doubt::settle_later(inner.this.clone(), self.session.clone(), write, opened);
        } else {
            self.session.with(|session| session.wrote_at(read_router::live::now()));
        }
        self.session.contact(&inner.watch, opened);
        self.session.with(Session::taken_back);
    }
}

/// Ends the loan of a connection that may have written; whether a transaction is left open on it.
fn end_loan(checked: &mut Checked, router: &Router) -> bool {
    let returned = checked.end_loan(&Wishes::none(), false);
    returned.tell(&router.inner.watch);
    returned.is_open
}

impl Deref for WriteCheckout {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.checked.as_deref().expect(HELD)
    }
}

impl DerefMut for WriteCheckout {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.checked.as_deref_mut().expect(HELD)
    }
}

impl Drop for WriteCheckout {
    fn drop(&mut self) {
        if let Some(mut checked) = self.checked.take() {
            end_loan(&mut checked, &self.router);
            self.settle(&mut checked);
        }
    }
}

impl Detached {
    pub(super) fn tell(&mut self, told: impl Instrumentation) {
        self.0.tell(told);
    }
}

impl Deref for Detached {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.0
    }
}

impl DerefMut for Detached {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.0
    }
}

impl fmt::Debug for Checkout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkout").field("node", &self.node()).finish()
    }
}

impl fmt::Debug for WriteCheckout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WriteCheckout")
    }
}

impl fmt::Debug for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Detached")
    }
}
