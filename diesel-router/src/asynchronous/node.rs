//! One server's pool.

use std::{
    mem,
    ops::{Deref, DerefMut},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use diesel::{QueryResult, connection::get_default_instrumentation};
use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncPgConnection, SimpleAsyncConnection, TransactionManager,
};
use read_router::{
    NodeId, Opened,
    live::{Watch, now},
};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::{
    card::{Card, forget_statements},
    pool::{Lease, Pool},
    router::PoolStatus,
    runtime::{spawn, timeout},
    schema::Schema,
    source::{Server, timed_out},
    text,
};
use crate::{error::Fault, instrument::Forwarder, left::Left};

/// One server of the configuration.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) pool: Pool,
    pub(crate) server: Server,
    /// How long one of our own pools is waited for; the application's know it themselves.
    wait: Option<Duration>,
    watch: Arc<Watch>,
    schema: Arc<Schema>,
    taken: AtomicU64,
    waited_ns: AtomicU64,
}

/// A connection with what is known of it. Dropped it goes back to its pool.
pub(crate) struct Checked {
    /// Boxed, since it is handed on from future to future.
    lease: Option<Box<Lease>>,
    pub(crate) opened: Option<Opened>,
    /// Where it goes in place of its pool.
    home: Option<OwnedMutexGuard<Option<Checked>>>,
    /// Whether a statement has left something with it, which is nobody else's.
    is_kept: bool,
    /// A read runs on it, or ran when its caller went away.
    is_reading: bool,
    /// What its borrower does is looked at.
    is_looked_at: bool,
}

/// The place of a connection that a handle keeps.
pub(crate) type Kept = Arc<Mutex<Option<Checked>>>;

/// As long is a connection of our own pools waited for.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How often one who waits for a replica's connection looks whether the replica still serves.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// As long may a read go on whose caller went away: less than others wait for its connection.
const RECOVERY: Duration = Duration::from_millis(500);
/// No pool has so many outdated connections.
const MOST_OUTDATED: usize = 1024;

impl Node {
    pub(crate) fn new(id: NodeId, server: Server, pool: Pool, watch: Arc<Watch>, schema: Arc<Schema>) -> Self {
        let wait = matches!(server, Server::Target(_)).then_some(LONGEST_WAIT);
        Self { id, pool, server, wait, watch, schema, taken: AtomicU64::new(0), waited_ns: AtomicU64::new(0) }
    }

    /// A connection of the pool. One that leads to where the node's name pointed before is closed.
    pub(crate) async fn acquire(&self) -> QueryResult<Checked> {
        let mut left = MOST_OUTDATED;
        loop {
            let checked = self.acquire_any().await?;
            let is_outdated = checked.opened.is_some_and(|opened| self.watch.is_outdated(self.id, &opened));
            if left == 0 || !is_outdated {
                return Ok(checked);
            }
            left -= 1;
            checked.discard();
        }
    }

    /// Its pool at this moment.
    pub(crate) async fn status(&self) -> PoolStatus {
        let [connections, idle, max_size] = self.pool.count().await;
        let taken = self.taken.load(Ordering::Relaxed);
        let waited = Duration::from_nanos(self.waited_ns.load(Ordering::Relaxed));
        PoolStatus { node: self.id, connections, idle, max_size, taken, waited }
    }

    async fn acquire_any(&self) -> QueryResult<Checked> {
        let started = now();
        let mut lease = Box::new(self.lease().await?);
        let checked = match self.known(&mut lease) {
            Ok(opened) => Checked::new(lease, opened, false),
            Err(is_new) => Box::pin(self.identify(lease, is_new)).await?,
        };
        self.taken.fetch_add(1, Ordering::Relaxed);
        let waited = u64::try_from(now().since(started).as_nanos()).unwrap_or(u64::MAX);
        self.waited_ns.fetch_add(waited, Ordering::Relaxed);
        if let Some(branch) = checked.opened.and_then(|opened| opened.greeting.branch).filter(|_| self.id.is_primary())
        {
            self.watch.branch_seen(branch);
        }
        Ok(checked)
    }

    /// A connection as the pool hands it out. A replica's is not waited for once the replica no longer serves, nor for
    /// longer than `replica_acquire_timeout`: another server may do.
    async fn lease(&self) -> QueryResult<Lease> {
        let mut lease = pin!(self.pool.lease());
        if self.id.is_primary() {
            return match self.wait {
                Some(wait) => timeout(wait, lease).await.unwrap_or_else(|_| Err(timed_out())),
                None => lease.await,
            };
        }
        let mut left = self.watch.config.replica_acquire_timeout;
        loop {
            let pause = left.min(LOOK_AGAIN);
            if let Ok(done) = timeout(pause, &mut lease).await {
                return done;
            }
            left -= pause;
            let serves = self.watch.topology().node(self.id).is_some_and(|node| node.standing().serves());
            if left.is_zero() || !serves {
                return Err(timed_out());
            }
        }
    }

    /// What is known of the connection. An error if it is to be asked; whether it is a new one.
    fn known(&self, lease: &mut Lease) -> Result<Option<Opened>, bool> {
        let version = self.schema.version();
        let card = Card::of(lease).ok_or(true)?;
        let is_stale = mem::replace(&mut card.schema, version) != version;
        let opened = card.opened;
        // One of the primary's that had no branch when it was opened, since its server was a standby, may have been promoted.
        let may_be_promoted = self.id.is_primary() && opened.is_some_and(Opened::is_in_recovery);
        if may_be_promoted || !self.id.is_primary() && !card.is_read_only {
            return Err(false);
        }
        if is_stale {
            forget_statements(lease);
        }
        Ok(opened)
    }

    /// Asks the connection whose it is.
    async fn identify(&self, mut lease: Box<Lease>, is_new: bool) -> QueryResult<Checked> {
        let version = self.schema.version();
        let wants_read_only = !self.id.is_primary();
        // Nothing is known of its past, or it has served as a primary's up to now: it counts as opened now.
        let greeted = text::greet(&lease, wants_read_only);
        let greeting = match wants_read_only {
            false => greeted.await,
            true => match timeout(self.watch.config.probe_timeout, greeted).await {
                Ok(greeting) => greeting,
                Err(_) => Err(timed_out()),
            },
        };
        let greeting = match greeting {
            Ok(greeting) => greeting,
            Err(error) => {
                lease.discard();
                return Err(error);
            }
        };
        let opened = greeting.map(|greeting| Opened { at: now(), greeting });
        if !is_new {
            forget_statements(&mut lease);
        }
        match Card::of(&mut lease) {
            Some(card) => (card.opened, card.is_read_only) = (opened, wants_read_only),
            None => Card::leave(&mut lease, opened, version, wants_read_only),
        }
        if Card::of(&mut lease).is_none() {
            self.watch.counters.own_sample();
        }
        Ok(Checked::new(lease, opened, false))
    }
}

impl Checked {
    fn new(lease: Box<Lease>, opened: Option<Opened>, is_kept: bool) -> Self {
        Self { lease: Some(lease), opened, home: None, is_kept, is_reading: false, is_looked_at: false }
    }

    /// Closes the connection in place of giving it back.
    pub(crate) fn discard(mut self) {
        if let Some(lease) = self.lease.take() {
            lease.discard();
        }
    }

    /// Goes here in place of its pool, from now on.
    pub(crate) fn keep(&mut self, kept: &Kept) {
        self.is_kept = true;
        if self.home.is_none()
            && let Ok(home) = kept.clone().try_lock_owned()
        {
            self.home = Some(home);
        }
    }

    /// Goes back there.
    pub(crate) fn come_back_to(&mut self, home: OwnedMutexGuard<Option<Checked>>) {
        self.home = Some(home);
    }

    /// A read begins or is over: in between the connection is nobody else's, for the read may take long.
    pub(crate) fn reading(&mut self, is_reading: bool) {
        self.is_reading = is_reading;
    }

    /// Tells this listener of the statements that follow; `query` is how the next one reads.
    pub(crate) fn listen(&mut self, listener: Option<Forwarder>, query: Option<String>) {
        if let Some(card) = self.card() {
            card.listen(listener, query);
        }
    }

    /// Whether the last statement may have been prepared before.
    pub(crate) fn was_prepared_before(&mut self) -> bool {
        self.card().is_none_or(|card| !card.has_prepared())
    }

    /// Forgets the prepared statements.
    pub(crate) fn forget_statements(&mut self) {
        forget_statements(self);
    }

    /// Looks from here on at what the borrower does, as far as no instrumentation of the pool's own is in the way.
    pub(crate) fn look(&mut self, watch: &Arc<Watch>) {
        let card = self.card();
        if let Some(card) = card {
            card.look(watch);
            self.is_looked_at = true;
        }
    }

    /// What the borrower leaves with it.
    pub(crate) fn left(&mut self) -> Left {
        let is_looked_at = self.is_looked_at;
        match self.card().and_then(|card| card.traces()) {
            Some(traces) => traces.left,
            // The borrower has put another instrumentation in its place.
            None if is_looked_at => Left::Something,
            None => Left::Unknown,
        }
    }

    /// Whether a transaction may be open on it, known to diesel-async or not.
    pub(crate) fn may_be_open(&mut self) -> bool {
        let is_idle =
            AnsiTransactionManager::transaction_manager_status_mut(&mut **self).transaction_depth() == Ok(None);
        !is_idle || self.card().and_then(|card| card.traces()).is_none_or(|traces| traces.may_be_open)
    }

    /// Ends what is open on it, known to diesel-async or not, and runs `then`.
    pub(crate) async fn end_open(&mut self, then: &str) -> QueryResult<()> {
        // Where nothing is open a ROLLBACK alone is a warning in the server's log. Where one has failed it is all that the
        // server accepts.
        let done = self.batch_execute(&format!("BEGIN; ROLLBACK{then}")).await;
        if matches!(&done, Err(error) if Fault::of(error) != Fault::Gone) {
            self.batch_execute(&format!("ROLLBACK{then}")).await?;
        } else {
            done?;
        }
        *AsyncConnection::transaction_state(&mut **self) = AnsiTransactionManager::default();
        Ok(())
    }

    /// Whether the borrower has done anything that may have changed the schema; `None` if nobody looked.
    pub(crate) fn has_changed_schema(&mut self) -> Option<bool> {
        self.card().and_then(|card| card.traces()).map(|traces| traces.changed_schema)
    }

    /// Takes the connection out of its pool for good, where the pool lets it go; else it goes back.
    pub(crate) fn detach(mut self) -> Option<AsyncPgConnection> {
        let mut connection = self.lease.take()?.detach()?;
        connection.set_instrumentation(get_default_instrumentation());
        Some(connection)
    }

    fn card(&mut self) -> Option<&mut Card> {
        Card::of(self.lease.as_mut()?)
    }
}

const TAKEN: &str = "only drop and discard take the connection, and they are the last to see it";

impl Deref for Checked {
    type Target = AsyncPgConnection;

    fn deref(&self) -> &AsyncPgConnection {
        self.lease.as_ref().expect(TAKEN)
    }
}

impl DerefMut for Checked {
    fn deref_mut(&mut self) -> &mut AsyncPgConnection {
        self.lease.as_mut().expect(TAKEN)
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        if let Some(card) = self.card() {
            card.listen(None, None);
        }
        if self.is_reading && self.home.is_none() {
            if let Some(lease) = self.lease.take() {
                recover_later(Self::new(lease, self.opened, true));
            }
            return;
        }
        match (self.home.take(), self.lease.take()) {
            (Some(mut home), Some(lease)) => {
                *home = Some(Self::new(lease, self.opened, true));
            }
            (None, Some(lease)) if self.is_kept => lease.discard(),
            _ => {}
        }
    }
}

/// Gives the connection back once it answers, if that is soon; else it is closed.
///
/// The read that runs on it is of no interest to anybody any more, and whoever took the connection next would wait for it.
fn recover_later(mut connection: Checked) {
    spawn(async move {
        let answered = timeout(RECOVERY, connection.batch_execute("SELECT 1")).await;
        // Up to here it is closed if this is dropped.
        connection.is_kept = !matches!(answered, Ok(Ok(())));
        drop(connection);
    });
}
