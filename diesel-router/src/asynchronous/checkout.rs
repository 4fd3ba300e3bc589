//! One connection of one server, for code that is bound to diesel-async's own type.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    time::Duration,
};

use diesel::QueryResult;
use diesel_async::{AnsiTransactionManager, AsyncPgConnection, SimpleAsyncConnection, TransactionManager};
use read_router::{
    NodeId, PrimaryReason, Proof, ReadOptions, SchemaChange, Token, View, WriteId,
    live::{Busy, Call},
    probe,
};

use super::{
    clean::clean_later,
    connection::AsyncRoutingConnection,
    doubt,
    finish::finish,
    node::{Checked, Kept},
    router::AsyncRouter,
    routing::{Attempt, Handle, Missed, Outcome},
    runtime::spawn,
};
use crate::{
    error::{Fault, Refusal, unsent},
    left::Left,
};

/// A guard on one server that was proven good enough for a class when it was taken; it dereferences to
/// diesel-async's own [`AsyncPgConnection`], for code that is bound to that type: one choice for a whole request.
///
/// # Guaranteed
/// When it was taken, the server had what the class asks for, and it is the same server to the end. It is read-only
/// wherever it leads, unless a transaction asks for READ WRITE by name. While it is held, and from then on, the session's
/// strict reads see everything that may have been read through it.
///
/// # Not guaranteed
/// It proves its class when it is taken, not again later: a write of the session that comes after is not covered, and a
/// bound in seconds counts up to the taking. Keep it for one request, not in a state.
///
/// # What it costs, and what is cleaned up
/// On a replica it adds no statement; on the primary one that makes it read-only, and one in the background that undoes that.
/// What runs on it is told by its instrumentation, and says what the next user would find:
/// - after reads, writes, definitions and transactions, `SET LOCAL` included: nothing;
/// - after a setting, `LISTEN`, a temporary table, a session's advisory lock, a prepared statement, a cursor `WITH HOLD`:
///   the connection is closed, so that settings of the pool's own are not reset, and the next one is opened fresh;
/// - after a call of what is not known to be harmless (a function that is not in the
///   [catalogue](read_router::Catalogue) as such and not pinned, `CALL`, `DO`, several statements in one text): read-only
///   mode is set again in the background before the pool has it back; what else such code has set stays;
/// - an open transaction is rolled back in the background.
///
/// An instrumentation of the caller's own in place of ours leaves nobody who looks: the connection is closed. Of one on which
/// a pool's own set-up has put an instrumentation nothing is known: it is as after an unknown call.
pub struct AsyncCheckout {
    /// Taken by the drop only.
    connection: Option<Checked>,
    handle: Handle,
    place: Place,
}

enum Place {
    Replica { node: NodeId, proof: Proof, _busy: Busy },
    Primary,
}

/// A guard on a connection of the primary, for writes and for all else that a routing connection cannot do itself; it
/// dereferences to diesel-async's own [`AsyncPgConnection`].
///
/// While it lives, its session counts as writing: strict reads go to the primary. Dropped, it settles the session in the
/// background, once the connection has answered a last statement; [`finish`](Self::finish) does the same and waits. Where
/// something is left on the connection it is closed, as that of an [`AsyncCheckout`]; what functions, procedures and
/// triggers do is not seen.
pub struct AsyncWriteCheckout {
    /// Taken by the end only.
    connection: Option<Checked>,
    handle: Handle,
    write: WriteId,
}

const TAKEN: &str = "only the end of the checkout takes the connection, and nothing comes after it";

impl AsyncRouter {
    /// One server that is proven good enough for this class now, for the session of the process: see [`AsyncCheckout`].
    ///
    /// All checkouts from the router itself share that session: with writes going on anywhere in the process its strict
    /// reads wait for a fresh observation. Take [`AsyncRoutingConnection::checkout`] for a session of one's own.
    ///
    /// # Errors
    /// If no server can be reached, or none is good enough and the options want no fallback.
    pub async fn checkout(&self, options: impl Into<ReadOptions>) -> QueryResult<AsyncCheckout> {
        self.handle().checkout(options.into()).await
    }

    /// The primary, as diesel-async's own connection, for the session of the process: see [`AsyncWriteCheckout`].
    ///
    /// # Errors
    /// If the primary cannot be reached.
    pub async fn checkout_write(&self) -> QueryResult<AsyncWriteCheckout> {
        self.handle().checkout_write().await
    }

    /// The token of the process's session.
    pub async fn token(&self) -> Token {
        self.handle().token().await
    }

    fn handle(&self) -> Handle {
        let (inner, session) = (self.inner.clone(), self.inner.of_process.clone());
        Handle { inner, session, view: View::Unannotated, listener: None, caches: true, kept: Kept::default() }
    }
}

impl AsyncRoutingConnection {
    /// One server that is proven good enough for this class now, as diesel-async's own connection.
    ///
    /// # Errors
    /// If no server can be reached, or none is good enough and the options want no fallback; within a transaction.
    pub async fn checkout(&self, options: impl Into<ReadOptions>) -> QueryResult<AsyncCheckout> {
        self.free()?.checkout(options.into()).await
    }

    /// The primary, as diesel-async's own connection.
    ///
    /// # Errors
    /// If the primary cannot be reached; within a transaction.
    pub async fn checkout_write(&self) -> QueryResult<AsyncWriteCheckout> {
        self.free()?.checkout_write().await
    }

    /// What it does not do within a transaction, whose connection it would not be.
    fn free(&self) -> QueryResult<&Handle> {
        if self.has_transaction() { Err(Refusal::InTransaction.into()) } else { Ok(self.handle()) }
    }

    /// The same as [`checkout_write`](Self::checkout_write), under the name that says what it is for: work that this
    /// connection has no method for, such as `COPY` or a cancel token.
    ///
    /// # Errors
    /// If the primary cannot be reached.
    pub async fn primary(&self) -> QueryResult<AsyncWriteCheckout> {
        self.checkout_write().await
    }
}

impl Handle {
    async fn checkout(&self, options: ReadOptions) -> QueryResult<AsyncCheckout> {
        self.inner.check_open()?;
        let mut call = Call::new(options);
        match self.serve(&mut call, &mut CheckoutOnce).await? {
            Outcome::Served(checkout) => Ok(checkout),
            Outcome::Primary(reason) | Outcome::Misrouted(reason) => self.checkout_primary(&call, reason).await,
        }
    }

    async fn checkout_primary(&self, call: &Call, reason: PrimaryReason) -> QueryResult<AsyncCheckout> {
        let (mut connection, reason) = self.acquire_primary(Some(call), reason).await?;
        self.inner.watch.to_primary(&self.session, Some(call.class()), reason, call.waited());
        self.session.with(read_router::Session::given_out);
        self.listen(&mut connection, NodeId::PRIMARY, None);
        connection.look(&self.inner.watch);
        // From here on the drop sees to it that the connection does not go back read-only.
        let mut checkout = AsyncCheckout { connection: Some(connection), handle: self.clone(), place: Place::Primary };
        checkout.batch_execute(probe::READ_ONLY).await?;
        Ok(checkout)
    }

    async fn checkout_write(&self) -> QueryResult<AsyncWriteCheckout> {
        self.inner.watch.to_primary(&self.session, None, PrimaryReason::Asked, Duration::ZERO);
        let mut connection = self.inner.acquire_primary().await?;
        self.listen(&mut connection, NodeId::PRIMARY, None);
        connection.look(&self.inner.watch);
        let write = self.session.with(|session| {
            session.given_out();
            session.write_sent()
        });
        Ok(AsyncWriteCheckout { connection: Some(connection), handle: self.clone(), write })
    }
}

struct CheckoutOnce;

impl Attempt for CheckoutOnce {
    type Out = AsyncCheckout;

    fn sql(&self) -> &str {
        ""
    }

    async fn attempt(
        &mut self,
        handle: &Handle,
        call: &Call,
        node: NodeId,
        proof: &Proof,
        busy: Busy,
    ) -> Result<AsyncCheckout, Missed> {
        let mut connection = handle.acquire_proven(call, node, proof).await?;
        let served = call.served(&handle.inner.watch, node);
        handle.session.checked_out(&handle.inner.watch, node, proof, served);
        handle.listen(&mut connection, node, None);
        connection.look(&handle.inner.watch);
        let place = Place::Replica { node, proof: *proof, _busy: busy };
        Ok(AsyncCheckout { connection: Some(connection), handle: handle.clone(), place })
    }
}

impl AsyncCheckout {
    /// The server that it leads to.
    #[must_use]
    pub fn node(&self) -> NodeId {
        match self.place {
            Place::Replica { node, .. } => node,
            Place::Primary => NodeId::PRIMARY,
        }
    }
}

impl Deref for AsyncCheckout {
    type Target = AsyncPgConnection;

    fn deref(&self) -> &AsyncPgConnection {
        self.connection.as_ref().expect(TAKEN)
    }
}

impl DerefMut for AsyncCheckout {
    fn deref_mut(&mut self) -> &mut AsyncPgConnection {
        self.connection.as_mut().expect(TAKEN)
    }
}

impl Drop for AsyncCheckout {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        let (session, inner) = (&self.handle.session, &self.handle.inner);
        let (may_be_open, left) = (connection.may_be_open(), connection.left());
        if connection.has_changed_schema() == Some(true) {
            inner.schema.changed();
        }
        match &self.place {
            Place::Replica { node, proof, .. } => session.checked_in(&inner.watch, *node, proof),
            Place::Primary => {
                session.contact(&inner.watch, connection.opened);
                session.with(read_router::Session::taken_back);
            }
        }
        match (&self.place, left) {
            (_, Left::Something) => connection.discard(),
            (Place::Primary, _) => clean_later(connection, "; RESET default_transaction_read_only"),
            (Place::Replica { .. }, Left::Unknown) => clean_later(connection, READ_ONLY_AGAIN),
            (Place::Replica { .. }, Left::Nothing) if may_be_open => clean_later(connection, ""),
            (Place::Replica { .. }, Left::Nothing) => {}
        }
    }
}

impl AsyncWriteCheckout {
    /// Gives the connection back and returns the session's token, which covers what was done on it.
    ///
    /// # Errors
    /// If a transaction is still open, or if the connection broke; what was done on it is then in doubt.
    pub async fn finish(mut self) -> QueryResult<Token> {
        let connection = self.connection.as_mut().expect(TAKEN);
        if !is_idle(connection) || connection.may_be_open() && is_open(connection).await? {
            return Err(Refusal::InTransaction.into());
        }
        let handle = self.handle.clone();
        if let Some(work) = self.settle() {
            finish(work, || {}).await?;
        }
        Ok(handle.token().await)
    }

    /// Takes the connection out of its pool for good, for `LISTEN`. What is done on it from here on is not part of the
    /// session.
    ///
    /// # Errors
    /// If the connection broke. A pool of bb8 lets none go, so that another one is opened, which may fail.
    pub async fn detach(mut self) -> QueryResult<AsyncPgConnection> {
        let mut connection = self.connection.take().expect(TAKEN);
        let (handle, write) = (self.handle.clone(), self.write);
        let answered = connection.batch_execute(LAST).await;
        settled(&handle, write, &mut connection, answered.is_ok());
        answered?;
        match connection.detach() {
            Some(connection) => Ok(connection),
            None => handle.inner.primary().server.open().await.map_err(|(_, error)| unsent(error)),
        }
    }

    /// What settles the session, as long as the connection is here.
    fn settle(&mut self) -> Option<impl Future<Output = QueryResult<()>> + Send + 'static> {
        let mut connection = self.connection.take()?;
        let (handle, write) = (self.handle.clone(), self.write);
        let returning = handle.session.returning();
        Some(async move {
            // The server goes on with what was sent: its answer to this one comes after all of that.
            let answered = match connection.may_be_open() {
                true => connection.end_open("").await,
                false => connection.batch_execute(LAST).await,
            };
            settled(&handle, write, &mut connection, answered.is_ok());
            drop(returning);
            if answered.is_err() || connection.left() == Left::Something {
                connection.discard();
            }
            answered
        })
    }
}

/// What a replica's connection is told after code that may have told it otherwise.
const READ_ONLY_AGAIN: &str = "; SET default_transaction_read_only = on";

/// A statement that does nothing.
const LAST: &str = "SELECT 1";

/// The write checkout's connection has answered its last statement, or broken.
fn settled(handle: &Handle, write: WriteId, connection: &mut Checked, has_answered: bool) {
    let (session, opened) = (&handle.session, connection.opened);
    let changed_schema = connection.has_changed_schema();
    if changed_schema.unwrap_or(true) {
        handle.inner.schema.changed();
    }
    if changed_schema.is_none() {
        handle.inner.watch.schema_changed(SchemaChange::Tables);
    }
    if has_answered {
        session.acknowledged(&handle.inner.watch, write, opened);
    } else {
        doubt::settle_later(handle.inner.downgrade(), session.clone(), write, opened);
    }
    session.with(read_router::Session::taken_back);
}

/// Whether a text has left a transaction open; it has then failed.
async fn is_open(connection: &mut AsyncPgConnection) -> QueryResult<bool> {
    // Of a transaction these are the times of its first statement and of this one. Only a batch is one message, with one
    // time, and its answer is an error or none.
    let sql = "SELECT 1 OPERATOR(pg_catalog./)
        (pg_catalog.now() OPERATOR(pg_catalog.=) pg_catalog.statement_timestamp())::pg_catalog.int4";
    match connection.batch_execute(sql).await {
        Ok(()) => Ok(false),
        Err(error) if Fault::of(&error) == Fault::Gone => Err(error),
        Err(_) => Ok(true),
    }
}

fn is_idle(connection: &mut AsyncPgConnection) -> bool {
    let status = AnsiTransactionManager::transaction_manager_status_mut(connection);
    matches!(status.transaction_depth(), Ok(None))
}

impl Deref for AsyncWriteCheckout {
    type Target = AsyncPgConnection;

    fn deref(&self) -> &AsyncPgConnection {
        self.connection.as_ref().expect(TAKEN)
    }
}

impl DerefMut for AsyncWriteCheckout {
    fn deref_mut(&mut self) -> &mut AsyncPgConnection {
        self.connection.as_mut().expect(TAKEN)
    }
}

impl Drop for AsyncWriteCheckout {
    fn drop(&mut self) {
        let Some(work) = self.settle() else { return };
        // Without a runtime nothing can be settled: the session stays on the primary.
        spawn(work);
    }
}

impl fmt::Debug for AsyncCheckout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncCheckout").field("node", &self.node()).finish_non_exhaustive()
    }
}

impl fmt::Debug for AsyncWriteCheckout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AsyncWriteCheckout")
    }
}
