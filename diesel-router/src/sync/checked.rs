//! A connection of a pool, with what is known of it.

use std::{
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use diesel::{
    Connection, PgConnection, QueryResult,
    connection::{
        AnsiTransactionManager, CacheSize, Instrumentation, InstrumentationEvent, SimpleConnection, TransactionManager,
        TransactionManagerStatus, get_default_instrumentation,
    },
    r2d2::{ConnectionManager, PooledConnection},
    result::Error,
};
use read_router::{
    NodeId, Opened, SchemaChange, Time,
    live::{Watch, now},
};

use super::{
    node::Wishes,
    schema::{self, Schema},
};
use crate::{
    error::Fault,
    instrument::{Listener, Silent, is_default},
    left::Left,
    traces::Traces,
};

/// When a connection of the pool was last found to be lost, in nanoseconds: others may be too.
pub(super) type Lost = Arc<AtomicU64>;

pub(super) type Pooled = PooledConnection<ConnectionManager<PgConnection>>;

/// A connection of a pool, with what is known of it. Dropped, it goes back, unless something was left open on it.
pub(super) struct Checked {
    /// Boxed, since it is handed on from function to function.
    pub(super) connection: Box<Pooled>,
    notes: Option<Box<Notes>>,
    pub(super) node: NodeId,
    pub(super) opened: Option<Opened>,
    /// When it came from the pool.
    pub(super) taken: Time,
    pub(super) is_ours: bool,
    pub(super) lost: Lost,
    pub(super) spoiled: bool,
    pub(super) dressed: bool,
    /// Whether somebody has it to himself, and whether what he does is looked at.
    pub(super) is_lent: bool,
    pub(super) is_looked_at: bool,
}

/// What is kept with a pooled connection for its life. It lies in the pool's extensions while the connection does.
pub(super) struct Notes {
    pub(super) opened: Option<Opened>,
    /// The schema of its database, and its version when the caches were empty.
    pub(super) schema: Schema,
    pub(super) version: u64,
    pub(super) cache: CacheSize,
    /// The server's own time limit of statements and the one that is set now, in milliseconds; zero means none.
    pub(super) limit: (u64, u64),
    /// Whether its settings are as we have set them.
    pub(super) is_set: bool,
    /// When it was last taken from the pool.
    pub(super) used: Time,
    /// Nothing of what it has cached can be stale.
    pub(super) is_new: bool,
}

/// Where a pooled connection's notes lie.
struct Kept(Option<Box<Notes>>);

/// The notes of a connection that comes from the pool; `None` if it is new there.
pub(super) fn notes_of(connection: &mut Pooled) -> Option<Box<Notes>> {
    PooledConnection::extensions_mut(connection).get_mut::<Kept>()?.0.take()
}

/// No schema has this version.
const STALE: u64 = u64::MAX;
/// How a connection came back that somebody had to himself.
pub(super) struct Returned {
    /// A transaction is left open on it, known to Diesel or not.
    pub(super) is_open: bool,
    pub(super) left: Left,
    /// Whether anything that ran may have changed the schema; `None` if nobody looked.
    pub(super) changed_schema: Option<bool>,
}

/// What was seen of a borrower.
pub(super) struct Seen {
    may_be_open: bool,
    pub(super) left: Left,
    /// `None` if nobody looked.
    pub(super) changed_schema: Option<bool>,
}

impl Returned {
    /// Who may have changed the schema unseen has the catalogue read again; for connections that are not read-only.
    pub(super) fn tell(&self, watch: &Watch) {
        if self.changed_schema.is_none() {
            watch.schema_changed(SchemaChange::Tables);
        }
    }
}

impl Checked {
    /// `taken`: when the connection came from the pool.
    pub(super) fn new(
        connection: Box<Pooled>,
        notes: Box<Notes>,
        node: NodeId,
        taken: Time,
        is_ours: bool,
        lost: Lost,
    ) -> Self {
        Self {
            connection,
            node,
            opened: notes.opened,
            notes: Some(notes),
            taken,
            is_ours,
            lost,
            spoiled: false,
            dressed: false,
            is_lent: false,
            is_looked_at: false,
        }
    }

    fn notes(&self) -> Option<&Notes> {
        self.notes.as_deref()
    }

    pub(super) fn notes_mut(&mut self) -> Option<&mut Notes> {
        self.notes.as_deref_mut()
    }

    /// Closes the connection.
    pub(super) fn discard(mut self) {
        self.spoiled = true;
    }

    /// Whether it is closed in the end.
    pub(super) fn is_spoiled(&self) -> bool {
        self.spoiled
    }

    /// It is not to be used again by anybody else.
    pub(super) fn spoil(&mut self) {
        self.spoiled = true;
    }

    /// Whether nothing that it has cached can be stale.
    pub(super) fn is_new(&self) -> bool {
        self.notes().is_some_and(|notes| notes.is_new)
    }

    /// Forgets what may be stale.
    pub(super) fn forget_schema(&mut self) {
        let cache = self.notes().map_or(CacheSize::Unbounded, |notes| notes.cache);
        schema::forget(&mut self.connection, cache);
    }

    /// What it has cached may be stale: it is forgotten before the connection is used again.
    pub(super) fn outdate(&mut self) {
        if let Some(notes) = self.notes_mut() {
            notes.version = STALE;
        }
    }

    /// What has run on it may have changed the schema.
    pub(super) fn schema_changed(&self) {
        if let Some(notes) = self.notes() {
            notes.schema.changed();
        }
    }

    /// The server's own time limit of statements, in milliseconds; zero means none.
    pub(super) fn own_limit(&self) -> u64 {
        self.notes().map_or(0, |notes| notes.limit.0)
    }

    /// Whether statements have a shorter time limit than the server's own.
    pub(super) fn has_limit(&self) -> bool {
        self.notes().is_some_and(|notes| notes.limit.0 != notes.limit.1)
    }

    /// Sets the time limit of statements, if it is not set so. `None` leaves it as it is set by the server; a shorter
    /// one of the server's stays.
    pub(super) fn limit(&mut self, limit: Option<Duration>) -> QueryResult<()> {
        let (own, set) = self.notes().map_or((0, 0), |notes| notes.limit);
        let wanted = match limit.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)) {
            Some(limit) if own == 0 || limit < own => limit.clamp(1, i32::MAX as u64),
            _ => own,
        };
        if wanted != set {
            self.connection.batch_execute(&format!("SET statement_timeout = {wanted}"))?;
            if let Some(notes) = self.notes_mut() {
                notes.limit.1 = wanted;
            }
        }
        Ok(())
    }

    /// It goes to somebody who has it to himself: what he does is looked at, as far as no instrumentation of the pool's own is
    /// in the way.
    pub(super) fn lend(&mut self, wishes: &Wishes, watch: &Arc<Watch>) {
        (self.is_lent, self.is_looked_at) = (true, false);
        let told: Option<Box<dyn Instrumentation>> = match &wishes.listener {
            Some(listener) if self.dressed => Some(Box::new(listener.on(Some(self.node)))),
            _ if is_default(Connection::instrumentation(&mut **self.connection)) => get_default_instrumentation(),
            _ => return,
        };
        self.connection.set_instrumentation(Looking { told, traces: Traces::new(watch.clone()) });
        (self.dressed, self.is_looked_at) = (true, true);
    }

    /// Tells this instrumentation of what the borrower does.
    pub(super) fn tell(&mut self, told: impl Instrumentation) {
        match self.looking() {
            Some(looking) => looking.told = Some(Box::new(told)),
            None => self.connection.set_instrumentation(told),
        }
    }

    /// Ends the loan. A server is asked whether a transaction is open only where a text may have begun one, or was not seen;
    /// not if `is_last`: then the connection is closed.
    ///
    /// Where something of the borrower's is left, the connection is closed when it is given back. Where it is not known
    /// whether there is, what we have set ourselves is set again before the connection is used.
    pub(super) fn end_loan(&mut self, wishes: &Wishes, is_last: bool) -> Returned {
        let Some(Seen { may_be_open, left, changed_schema }) = self.end_looking(wishes) else {
            return Returned { is_open: false, left: Left::Nothing, changed_schema: Some(false) };
        };
        if changed_schema == Some(true) {
            self.schema_changed();
        }
        let is_open = !matches!(self.depth(), Ok(None)) || may_be_open && !is_last && self.has_open_transaction(wishes);
        if is_open || may_be_open && is_last || left == Left::Something {
            self.spoil();
        }
        Returned { is_open, left, changed_schema }
    }

    /// Ends the look at what the borrower does, and returns what was seen; `None` if nobody has borrowed it.
    pub(super) fn end_looking(&mut self, wishes: &Wishes) -> Option<Seen> {
        if !std::mem::take(&mut self.is_lent) {
            return None;
        }
        let is_looked_at = self.is_looked_at;
        let (seen, is_set) = match self.looking() {
            Some(Looking { traces, .. }) => {
                let Traces { may_be_open, left, changed_schema, .. } = *traces;
                let is_set = left != Left::Unknown && !traces.has_unjudged;
                (Seen { may_be_open, left, changed_schema: Some(changed_schema) }, is_set)
            }
            // The borrower has put another instrumentation in its place.
            None if is_looked_at => (Seen { may_be_open: true, left: Left::Something, changed_schema: None }, false),
            None => (Seen { may_be_open: true, left: Left::Unknown, changed_schema: None }, false),
        };
        if !is_set && let Some(notes) = self.notes_mut() {
            notes.is_set = false;
        }
        if is_looked_at {
            self.dress(wishes);
        }
        Some(seen)
    }

    fn looking(&mut self) -> Option<&mut Looking> {
        Connection::instrumentation(&mut **self.connection).downcast_mut()
    }

    /// Tells this listener from here on.
    pub(super) fn listen(&mut self, listener: &Listener) {
        self.connection.set_instrumentation(listener.on(Some(self.node)));
        self.dressed = true;
    }

    /// Sets the size of the cache of prepared statements.
    pub(super) fn set_cache(&mut self, size: CacheSize) {
        self.connection.set_prepared_statement_cache_size(size);
        if let Some(notes) = self.notes_mut() {
            notes.cache = size;
        }
    }

    /// Runs something that nobody is to be told of.
    pub(super) fn quietly<T>(&mut self, wishes: &Wishes, work: impl FnOnce(&mut PgConnection) -> T) -> T {
        self.connection.set_instrumentation(Silent);
        let out = work(&mut self.connection);
        self.dress(wishes);
        out
    }

    fn dress(&mut self, wishes: &Wishes) {
        match &wishes.listener {
            Some(listener) => self.connection.set_instrumentation(listener.on(Some(self.node))),
            None => self.undress(),
        }
    }

    fn undress(&mut self) {
        match get_default_instrumentation().filter(|_| !self.is_ours) {
            Some(default) => self.connection.set_instrumentation(default),
            None => self.connection.set_instrumentation(Silent),
        }
    }

    /// How deep the transaction is that Diesel knows of; an error if the connection is lost.
    pub(super) fn depth(&mut self) -> QueryResult<Option<std::num::NonZeroU32>> {
        self.status().transaction_depth()
    }

    pub(super) fn status(&mut self) -> &mut TransactionManagerStatus {
        AnsiTransactionManager::transaction_manager_status_mut(&mut **self.connection)
    }

    /// Whether the connection is lost, after a statement that ended so.
    pub(super) fn is_lost(&mut self, error: Option<&Error>) -> bool {
        let is_lost = error.is_some_and(|error| Fault::of(error) == Fault::Gone) || self.depth().is_err();
        if is_lost {
            self.lost.store(now().as_nanos(), Ordering::Release);
        }
        is_lost
    }

    /// Asks libpq, by a statement that is empty, whether a transaction is open that Diesel may not know of.
    pub(super) fn has_open_transaction(&mut self, wishes: &Wishes) -> bool {
        use diesel::connection::TransactionDepthChange;
        let mut probe = AnsiTransactionManager::default();
        std::mem::swap(self.connection.transaction_state(), &mut probe);
        if let TransactionManagerStatus::Valid(status) = self.status() {
            // Diesel corrects this to none if there is none.
            let _ = status.change_transaction_depth(TransactionDepthChange::IncreaseDepth);
        }
        let _ = self.quietly(wishes, |connection| connection.batch_execute(""));
        let is_open = !matches!(self.depth(), Ok(None));
        if self.depth().is_ok() {
            std::mem::swap(self.connection.transaction_state(), &mut probe);
        }
        is_open
    }
}

impl Deref for Checked {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Checked {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        // An open transaction, one of a test too, ends with its connection, without a wait for the server.
        if self.spoiled || !matches!(self.depth(), Ok(None)) {
            spoil(&mut self.connection);
            return;
        }
        if self.dressed {
            self.undress();
        }
        if let Some(mut notes) = self.notes.take() {
            (notes.used, notes.is_new) = (self.taken, false);
            let extensions = PooledConnection::extensions_mut(&mut self.connection);
            match extensions.get_mut::<Kept>() {
                Some(kept) => kept.0 = Some(notes),
                None => drop(extensions.insert(Kept(Some(notes)))),
            }
        }
    }
}

/// Has the pool close the connection in place of keeping it.
pub(super) fn spoil(connection: &mut PgConnection) {
    AnsiTransactionManager::transaction_manager_status_mut(connection).set_in_error();
}

/// Tells somebody, and looks what the borrower does.
struct Looking {
    told: Option<Box<dyn Instrumentation>>,
    traces: Traces,
}

impl Instrumentation for Looking {
    fn on_connection_event(&mut self, event: InstrumentationEvent<'_>) {
        self.traces.see(&event);
        if let Some(told) = &mut self.told {
            told.on_connection_event(event);
        }
    }
}
