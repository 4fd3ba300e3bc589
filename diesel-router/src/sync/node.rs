//! One server's pool.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use diesel::{
    Connection, PgConnection, QueryResult,
    connection::{CacheSize, SimpleConnection},
    r2d2::R2D2Connection,
};
use read_router::{
    NodeId, Opened, Time,
    live::{Watch, now},
    probe,
};

use super::{
    checked::{Checked, Lost, Notes, Pooled, notes_of, spoil},
    question,
    schema::{self, Schema},
    source::Pool,
};
use crate::{
    error::{Fault, unsent},
    instrument::{Listener, Silent},
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

/// How long connections were waited for.
#[derive(Default)]
struct Times {
    taken: AtomicU64,
    waited_us: AtomicU64,
}

/// A connection that was last taken longer ago is asked whether it is alive: it may have been idle all the time.
const PING_IDLE: Duration = Duration::from_secs(1);
/// How often one who waits for a connection asks for it anew, and looks whether the replica still serves.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What a handle wants of its connections.
#[derive(Clone)]
pub(super) struct Wishes {
    pub(super) cache: CacheSize,
    pub(super) listener: Option<Listener>,
    /// Whether the handle was told to tell somebody, rather than the process.
    pub(super) is_explicit: bool,
}

impl Wishes {
    /// Of one who wants nothing.
    pub(super) fn none() -> Self {
        Self { cache: CacheSize::Unbounded, listener: None, is_explicit: false }
    }
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
        let started = now();
        let mut left = self.pool.max_size();
        loop {
            let checked = self.acquire_any(started)?;
            let is_outdated = checked.opened.is_some_and(|opened| self.watch.is_outdated(self.id, &opened));
            if left == 0 || !is_outdated {
                self.times.taken.fetch_add(1, Ordering::Relaxed);
                let waited = u64::try_from(checked.taken.since(started).as_micros()).unwrap_or(u64::MAX);
                self.times.waited_us.fetch_add(waited, Ordering::Relaxed);
                return Ok(self.prepared(checked, wishes));
            }
            left -= 1;
            checked.discard();
        }
    }

    /// A connection that answers, with what is known of it.
    fn acquire_any(&self, started: Time) -> QueryResult<Checked> {
        let mut left = self.pool.max_size();
        loop {
            let mut connection = self.take(started)?;
            let taken = now();
            match self.greeted(&mut connection, taken) {
                Ok(notes) => {
                    return Ok(Checked::new(connection, notes, self.id, taken, self.is_ours, self.lost.clone()));
                }
                Err(error) => {
                    spoil(&mut connection);
                    if left == 0 || Fault::of(&error) != Fault::Gone {
                        return Err(unsent(error));
                    }
                    // It was idle while its server went away; the pool has others, or opens one.
                    left -= 1;
                }
            }
        }
    }

    /// A connection of the pool. A replica's is not waited for once the replica no longer serves, nor for longer than
    /// `replica_acquire_timeout`: another server may do.
    ///
    /// It is asked for again and again: who waits in r2d2 is not told of a broken connection that comes back, in whose place
    /// another one might be opened.
    fn take(&self, started: Time) -> QueryResult<Box<Pooled>> {
        if self.is_closed() {
            return Err(unsent("the router is closed"));
        }
        let limit = match self.id.is_primary() {
            true => self.pool.connection_timeout(),
            false => self.watch.config.replica_acquire_timeout,
        };
        let serves = || {
            let topology = self.watch.topology();
            self.id.is_primary() || topology.node(self.id).is_some_and(|node| node.standing().serves())
        };
        let mut left = limit;
        loop {
            match self.pool.get_timeout(left.min(LOOK_AGAIN)) {
                Ok(pooled) => return Ok(Box::new(pooled)),
                Err(error) if left <= LOOK_AGAIN || self.is_closed() || !serves() => return Err(unsent(error)),
                Err(_) => left = limit.saturating_sub(now().since(started)),
            }
        }
    }

    /// What is known of a connection that comes from the pool, which is asked whose it is once in its life.
    fn greeted(&self, connection: &mut Pooled, taken: Time) -> QueryResult<Box<Notes>> {
        let notes = match notes_of(connection) {
            Some(notes) => self.looked_after(connection, notes, taken)?,
            None => self.introduced(connection)?,
        };
        if let Some(branch) = notes.opened.and_then(|opened| opened.greeting.branch)
            && self.id.is_primary()
        {
            self.watch.branch_seen(branch);
        }
        Ok(notes)
    }

    /// A connection that is new.
    fn introduced(&self, connection: &mut PgConnection) -> QueryResult<Box<Notes>> {
        if self.is_ours {
            connection.set_instrumentation(Silent);
        }
        let limit = if self.read_only { question::make_read_only(connection)? } else { 0 };
        let greeting = question::greeting(connection)?;
        let opened = greeting.map(|greeting| Opened { at: now(), greeting });
        let schema = greeting.as_ref().map_or_else(Schema::default, Schema::of);
        Ok(Box::new(Notes {
            opened,
            version: schema.version(),
            schema,
            cache: CacheSize::Unbounded,
            limit: (limit, limit),
            is_set: true,
            used: now(),
            is_new: true,
        }))
    }

    /// A connection that lay in the pool, and that somebody may have had to himself before.
    fn looked_after(
        &self,
        connection: &mut PgConnection,
        mut notes: Box<Notes>,
        taken: Time,
    ) -> QueryResult<Box<Notes>> {
        if self.read_only && !notes.is_set {
            let own_limit = notes.limit.0;
            connection.batch_execute(&format!("{}; SET statement_timeout = {own_limit}", probe::READ_ONLY))?;
            (notes.is_set, notes.limit.1) = (true, own_limit);
        } else if notes.used <= Time::from_nanos(self.lost.load(Ordering::Acquire))
            || taken.since(notes.used) > PING_IDLE
        {
            connection.ping()?;
        }
        // The primary's name led to a standby, which may have been promoted.
        if self.id.is_primary() && notes.opened.is_some_and(|opened| opened.greeting.branch.is_none()) {
            notes.opened = question::greeting(connection)?.map(|greeting| Opened { at: now(), greeting });
        }
        Ok(notes)
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
