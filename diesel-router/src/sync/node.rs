//! One server's pool.

use std::{
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use diesel::{
    Connection, PgConnection, QueryResult,
    connection::{
        AnsiTransactionManager, CacheSize, Instrumentation, InstrumentationEvent, SimpleConnection, TransactionManager,
        TransactionManagerStatus, get_default_instrumentation,
    },
    r2d2::{ConnectionManager, PooledConnection, R2D2Connection},
    result::Error,
};
use read_router::{
    NodeId, Opened, Time,
    live::{Watch, now},
    probe,
};

use super::{
    control, question,
    schema::{self, Schema},
    source::Pool,
};
use crate::{
    error::{Fault, unsent},
    instrument::Listener,
};

/// One server of the configuration.
pub(super) struct Node {
    pub(super) id: NodeId,
    pool: Pool,
    /// Whether we built the pool: then its connections tell nobody of what they do unless a handle wants to know.
    is_ours: bool,
    read_only: bool,
    watch: Arc<Watch>,
    closed: AtomicBool,
    times: Times,
    lost: Lost,
}

/// When a connection of the pool was last found to be lost, in nanoseconds: others may be too.
type Lost = Arc<AtomicU64>;

/// How long connections were waited for.
#[derive(Default)]
struct Times {
    taken: AtomicU64,
    waited_us: AtomicU64,
}

/// What is kept with a pooled connection for its life.
struct Notes {
    opened: Option<Opened>,
    /// The schema of its database, and its version when the caches were empty.
    schema: Schema,
    version: u64,
    cache: CacheSize,
    /// The server's own time limit of statements and the one that is set now, in milliseconds; zero means none.
    limit: (u64, u64),
    read_only: bool,
    used: Time,
    /// Nothing of what it has cached can be stale.
    is_new: bool,
}

/// No schema has this version.
const STALE: u64 = u64::MAX;
/// A connection that has been idle for longer is asked whether it is alive.
const PING_IDLE: Duration = Duration::from_secs(1);
/// How often one who waits for a replica's connection looks whether the replica still serves.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What a handle wants of its connections.
#[derive(Clone)]
pub(super) struct Wishes {
    pub(super) cache: CacheSize,
    pub(super) listener: Option<Listener>,
    /// Whether the handle was told to tell somebody, rather than the process.
    pub(super) is_explicit: bool,
}

/// A connection of a pool, with what is known of it. Dropped, it goes back, unless something was left open on it.
pub(super) struct Checked {
    connection: PooledConnection<ConnectionManager<PgConnection>>,
    pub(super) node: NodeId,
    pub(super) opened: Option<Opened>,
    is_ours: bool,
    lost: Lost,
    spoiled: bool,
    dressed: bool,
}

impl Node {
    pub(super) fn new(id: NodeId, pool: Pool, is_ours: bool, watch: Arc<Watch>) -> Self {
        let read_only = !id.is_primary();
        Self {
            id,
            pool,
            is_ours,
            read_only,
            watch,
            closed: AtomicBool::new(false),
            times: Times::default(),
            lost: Lost::default(),
        }
    }

    /// The same server by another pool, whose connections are read-only.
    pub(super) fn read_only(&self, pool: Pool) -> Self {
        Self { read_only: true, ..Self::new(self.id, pool, true, self.watch.clone()) }
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// How many connections were taken, and how long they were waited for in all.
    pub(super) fn times(&self) -> (u64, Duration) {
        let Times { taken, waited_us } = &self.times;
        (taken.load(Ordering::Relaxed), Duration::from_micros(waited_us.load(Ordering::Relaxed)))
    }

    /// No connection is given out any more; idle ones of our own pools are closed.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let mut left = self.pool.max_size();
        while self.is_ours && left > 0 {
            left -= 1;
            match self.pool.try_get() {
                Some(mut connection) => spoil(&mut connection),
                None => break,
            }
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// A connection of the pool; one that leads to where the primary's name pointed before is closed.
    pub(super) fn acquire(&self, wishes: &Wishes) -> QueryResult<Checked> {
        let started = Instant::now();
        let mut left = self.pool.max_size();
        loop {
            let checked = self.acquire_any()?;
            let is_outdated = checked.opened.is_some_and(|opened| self.watch.is_outdated(self.id, &opened));
            if left == 0 || !is_outdated {
                self.times.taken.fetch_add(1, Ordering::Relaxed);
                let waited = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.times.waited_us.fetch_add(waited, Ordering::Relaxed);
                return Ok(self.prepared(checked, wishes));
            }
            left -= 1;
            checked.discard();
        }
    }

    /// A connection that answers, with what is known of it.
    fn acquire_any(&self) -> QueryResult<Checked> {
        let mut left = self.pool.max_size();
        loop {
            let mut checked = self.take()?;
            match self.greeted(&mut checked) {
                Ok(()) => return Ok(checked),
                // It was idle while its server went away; the pool has others, or opens one.
                Err(error) if left == 0 || Fault::of(&error) != Fault::Gone => {
                    checked.discard();
                    return Err(unsent(error));
                }
                Err(_) => {
                    left -= 1;
                    checked.discard();
                }
            }
        }
    }

    /// A connection of the pool. A replica's is not waited for once the replica no longer serves, nor for longer than
    /// `replica_acquire_timeout`: another server may do.
    fn take(&self) -> QueryResult<Checked> {
        if self.is_closed() {
            return Err(unsent("the router is closed"));
        }
        let pooled = if self.id.is_primary() {
            self.pool.get().map_err(unsent)?
        } else {
            let started = now();
            loop {
                let left = self.watch.config.replica_acquire_timeout.saturating_sub(now().since(started));
                match self.pool.get_timeout(left.min(LOOK_AGAIN)) {
                    Ok(pooled) => break pooled,
                    Err(error) if left <= LOOK_AGAIN => return Err(unsent(error)),
                    Err(error) => {
                        let topology = self.watch.topology();
                        if !topology.node(self.id).is_some_and(|node| node.standing().serves()) {
                            return Err(unsent(error));
                        }
                    }
                }
            }
        };
        Ok(Checked {
            connection: pooled,
            node: self.id,
            opened: None,
            is_ours: self.is_ours,
            lost: self.lost.clone(),
            spoiled: false,
            dressed: false,
        })
    }

    /// Finds out whose connection it is, once in its life.
    fn greeted(&self, checked: &mut Checked) -> QueryResult<()> {
        if checked.notes().is_none() {
            if self.is_ours {
                checked.connection.set_instrumentation(Silent);
            }
            let limit = if self.read_only { question::make_read_only(&mut checked.connection)? } else { 0 };
            let greeting = question::greeting(&mut checked.connection)?;
            let opened = greeting.map(|greeting| Opened { at: now(), greeting });
            let schema = greeting.as_ref().map_or_else(Schema::default, Schema::of);
            let notes = Notes {
                opened,
                version: schema.version(),
                schema,
                cache: CacheSize::Unbounded,
                limit: (limit, limit),
                read_only: self.read_only,
                used: now(),
                is_new: true,
            };
            PooledConnection::extensions_mut(&mut checked.connection).insert(notes);
        } else {
            let Checked { connection, .. } = checked;
            let (used, read_only, in_recovery) = match PooledConnection::extensions(connection).get::<Notes>() {
                Some(notes) => {
                    let in_recovery = notes.opened.is_some_and(|opened| opened.greeting.branch.is_none());
                    (notes.used, notes.read_only, in_recovery)
                }
                None => (now(), self.read_only, false),
            };
            let lost = Time::from_nanos(self.lost.load(Ordering::Acquire));
            if used <= lost || now().since(used) > PING_IDLE {
                connection.ping()?;
            }
            // It was given out, and may have been told otherwise.
            if self.read_only && !read_only {
                // The server's own time limit is known since the connection was opened, and set before the next statement.
                connection.batch_execute(probe::READ_ONLY)?;
                if let Some(notes) = PooledConnection::extensions_mut(connection).get_mut::<Notes>() {
                    notes.read_only = true;
                }
            }
            // The primary's name led to a standby, which may have been promoted.
            if self.id.is_primary() && in_recovery {
                let greeting = question::greeting(connection)?;
                if let Some(notes) = PooledConnection::extensions_mut(connection).get_mut::<Notes>() {
                    notes.opened = greeting.map(|greeting| Opened { at: now(), greeting });
                }
            }
        }
        checked.opened = checked.notes().and_then(|notes| notes.opened);
        if let Some(branch) = checked.opened.and_then(|opened| opened.greeting.branch)
            && self.id.is_primary()
        {
            self.watch.branch_seen(branch);
        }
        Ok(())
    }

    fn prepared(&self, mut checked: Checked, wishes: &Wishes) -> Checked {
        let (is_stale, cache) = match checked.notes_mut() {
            Some(notes) => {
                let before = std::mem::replace(&mut notes.version, notes.schema.version());
                (before != notes.version, std::mem::replace(&mut notes.cache, wishes.cache))
            }
            None => (false, wishes.cache),
        };
        if is_stale {
            schema::forget(&mut checked.connection, wishes.cache);
            if let Some(notes) = checked.notes_mut() {
                notes.is_new = true;
            }
        } else if cache != wishes.cache {
            checked.connection.set_prepared_statement_cache_size(wishes.cache);
        }
        if let Some(listener) = wishes.listener.as_ref().filter(|_| self.is_ours || wishes.is_explicit) {
            checked.listen(listener);
        }
        checked
    }
}

impl Checked {
    fn notes(&self) -> Option<&Notes> {
        PooledConnection::extensions(&self.connection).get()
    }

    fn notes_mut(&mut self) -> Option<&mut Notes> {
        PooledConnection::extensions_mut(&mut self.connection).get_mut()
    }

    /// Closes the connection.
    pub(super) fn discard(mut self) {
        self.spoiled = true;
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

    /// It goes to somebody who may change its settings.
    pub(super) fn given_out(&mut self, wishes: &Wishes) {
        if let Some(notes) = self.notes_mut() {
            notes.read_only = false;
            notes.limit.1 = u64::MAX;
        }
        let told: Option<Box<dyn Instrumentation>> = match &wishes.listener {
            Some(listener) if self.dressed => Some(Box::new(listener.on(Some(self.node)))),
            _ if self.is_ours => get_default_instrumentation(),
            _ => return,
        };
        self.connection.set_instrumentation(Looking { told, may_be_open: false });
        self.dressed = true;
    }

    /// Whether a transaction is open, known to Diesel or not, on a connection that was given out: only one whose texts may
    /// have begun one, or were not seen, is asked.
    pub(super) fn is_left_open(&mut self) -> bool {
        let looking: Option<&mut Looking> = Connection::instrumentation(&mut *self.connection).downcast_mut();
        let may_be_open = looking.is_none_or(|looking| looking.may_be_open);
        let wishes = Wishes { cache: CacheSize::Unbounded, listener: None, is_explicit: false };
        !matches!(self.depth(), Ok(None)) || may_be_open && self.has_open_transaction(&wishes)
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
        match &wishes.listener {
            Some(listener) => self.connection.set_instrumentation(listener.on(Some(self.node))),
            None => self.undress(),
        }
        out
    }

    fn undress(&mut self) {
        match self.is_ours {
            true => self.connection.set_instrumentation(Silent),
            false => self.connection.set_instrumentation(get_default_instrumentation()),
        }
    }

    /// How deep the transaction is that Diesel knows of; an error if the connection is lost.
    pub(super) fn depth(&mut self) -> QueryResult<Option<std::num::NonZeroU32>> {
        self.status().transaction_depth()
    }

    pub(super) fn status(&mut self) -> &mut TransactionManagerStatus {
        AnsiTransactionManager::transaction_manager_status_mut(&mut *self.connection)
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
        if let Some(notes) = self.notes_mut() {
            notes.used = now();
            notes.is_new = false;
        }
    }
}

/// Has the pool close the connection in place of keeping it.
fn spoil(connection: &mut PgConnection) {
    AnsiTransactionManager::transaction_manager_status_mut(connection).set_in_error();
}

/// Tells somebody, and looks whether a text begins a transaction, of which Diesel keeps no books.
struct Looking {
    told: Option<Box<dyn Instrumentation>>,
    may_be_open: bool,
}

impl Instrumentation for Looking {
    fn on_connection_event(&mut self, event: InstrumentationEvent<'_>) {
        if let InstrumentationEvent::StartQuery { query, .. } = &event {
            self.may_be_open = control::leaves_open(&query.to_string(), self.may_be_open);
        }
        if let Some(told) = &mut self.told {
            told.on_connection_event(event);
        }
    }
}

/// Tells nobody.
struct Silent;

impl Instrumentation for Silent {
    fn on_connection_event(&mut self, _: InstrumentationEvent<'_>) {}
}
