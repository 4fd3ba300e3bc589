//! The threads that put the monitor's questions to the servers.

use std::{
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use diesel::{
    Connection, ConnectionError, PgConnection,
    connection::{AnsiTransactionManager, SimpleConnection, TransactionManager},
    r2d2::{ConnectionManager, PooledConnection},
};
use read_router::{
    Answer, Epoch, Failure, Greeting, NodeId, Time,
    live::{Watch, now},
};

use super::{question, source::Pool, url};
use crate::error::Fault;

/// Where the probes of a node lead.
#[derive(Clone)]
pub(super) enum Target {
    Url(String),
    Pool(Pool),
}

/// A connection that only our own questions use.
pub(super) enum Own {
    Plain(Box<PgConnection>),
    /// One of the application's pool, kept.
    Pooled(PooledConnection<ConnectionManager<PgConnection>>),
}

/// A probe connection with what its server said first.
pub(super) struct First {
    connection: Own,
    pub(super) greeting: Greeting,
    pub(super) sent_at: Time,
    pub(super) answer: Answer,
}

/// Why a node could not be probed.
#[derive(Debug)]
pub(super) struct Failed {
    failure: Failure,
    pub(super) source: ConnectionError,
}

/// What the threads of one router share with it.
pub(super) struct Monitors {
    pub(super) watch: Arc<Watch>,
    stop: AtomicBool,
    /// When the probe that is under way was begun, for each node, in nanoseconds; zero if there is none.
    begun: Box<[AtomicU64]>,
}

/// Sleeps of the thread that looks after probes that hang.
const SHORTEST_LOOK: Duration = Duration::from_millis(20);
/// A thread that nobody wakes looks around this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

impl Monitors {
    pub(super) fn new(watch: Arc<Watch>, nodes: usize) -> Arc<Self> {
        Arc::new(Self { watch, stop: AtomicBool::new(false), begun: (0..nodes).map(|_| AtomicU64::new(0)).collect() })
    }

    /// Starts the node's thread.
    pub(super) fn start(self: &Arc<Self>, node: NodeId, target: Target, first: Result<First, Failed>) {
        let open = match first {
            Ok(first) => {
                let epoch = self.watch.first_answer(node, &first.greeting, first.sent_at, &first.answer);
                Some((first.connection, epoch))
            }
            Err(failed) => {
                self.watch.failed(node, failed.failure, &failed.source);
                None
            }
        };
        let this = self.clone();
        self.spawn(format!("read-router {node}"), move || this.probe_node(node, &target, open));
    }

    /// Starts the thread that notices probes without an answer: a server that hangs holds the node's thread.
    pub(super) fn start_watchdog(self: &Arc<Self>) {
        let this = self.clone();
        self.spawn("read-router watchdog".to_owned(), move || this.look_after());
    }

    /// Without a thread a node counts as not answering once its last answer is old.
    pub(super) fn spawn(&self, name: String, work: impl FnOnce() + Send + 'static) {
        if let Err(error) = thread::Builder::new().name(name).spawn(work) {
            tracing::warn!(target: "read_router::monitor", %error, "no thread for the probes");
        }
    }

    /// Ends the threads, each when its server has answered.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.watch.wake();
        self.wake_catalogue();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn probe_node(&self, node: NodeId, target: &Target, mut open: Option<(Own, Epoch)>) {
        while self.is_due(node) {
            self.begun(node, now());
            let probed = self.probe_once(node, target, &mut open);
            self.begun(node, Time::default());
            if let Err(failed) = probed {
                open = None;
                self.watch.failed(node, failed.failure, &failed.source);
            }
        }
    }

    fn begun(&self, node: NodeId, at: Time) {
        if let Some(begun) = self.begun.get(node.index()) {
            begun.store(at.as_nanos(), Ordering::Release);
        }
    }

    /// Waits until the node's next probe is due; `false` if there will be none.
    fn is_due(&self, node: NodeId) -> bool {
        loop {
            let (due, change) = self.watch.due(node);
            if self.is_stopped() {
                return false;
            }
            match due {
                Some(Duration::ZERO) => return true,
                Some(wait) => change.wait(wait),
                None => change.wait(LONGEST_SLEEP),
            }
        }
    }

    fn probe_once(&self, node: NodeId, target: &Target, open: &mut Option<(Own, Epoch)>) -> Result<(), Failed> {
        let watch = &self.watch;
        // The name may lead elsewhere by now; the old connection would go on answering.
        open.take_if(|(_, epoch)| !watch.is_open(node, *epoch));
        let (connection, epoch) = match open {
            Some(open) => open,
            None => {
                let (connection, greeting) = target.open(watch.config.probe_timeout)?;
                let epoch = watch.opened(node, &greeting);
                open.insert((connection, epoch))
            }
        };
        watch.sent(node);
        let answer = question::position(connection).map_err(Failed::query)?;
        watch.answered(node, *epoch, &answer);
        Ok(())
    }

    fn look_after(&self) {
        let limit = self.watch.config.probe_timeout;
        let pause = (limit / 4).max(SHORTEST_LOOK);
        let mut told = vec![0; self.begun.len()];
        while !self.is_stopped() {
            thread::park_timeout(pause);
            for (index, (begun, told)) in self.begun.iter().zip(&mut told).enumerate() {
                let at = begun.load(Ordering::Acquire);
                let is_late = at != 0 && now().since(Time::from_nanos(at)) > limit;
                if is_late && *told != at {
                    *told = at;
                    let cause = "a probe has had no answer within its time limit";
                    self.watch.failed(NodeId::from_index(index), Failure::Timeout, &cause);
                }
            }
        }
    }
}

impl Target {
    /// Opens a probe connection and asks it once.
    pub(super) fn first(&self, limit: Duration) -> Result<First, Failed> {
        let (mut connection, greeting) = self.open(limit)?;
        let sent_at = now();
        let answer = question::position(&mut connection).map_err(Failed::query)?;
        Ok(First { connection, greeting, sent_at, answer })
    }

    fn open(&self, limit: Duration) -> Result<(Own, Greeting), Failed> {
        let mut connection = self.connect(limit, limit)?;
        match question::greeting(&mut connection).map_err(Failed::query)? {
            Some(greeting) => Ok((connection, greeting)),
            None => Err(Failed {
                failure: Failure::Answer,
                source: ConnectionError::BadConnection("the server would not say which one it is".to_owned()),
            }),
        }
    }

    /// A connection that is nobody else's, waited for so long at most, with this time limit for its statements.
    pub(super) fn connect(&self, wait: Duration, limit: Duration) -> Result<Own, Failed> {
        let mut connection = match self {
            Self::Url(url) => {
                let opened = PgConnection::establish(&url::of_probe(url, limit));
                let opened = opened.map_err(|source| Failed { failure: Failure::Unreachable, source })?;
                Own::Plain(Box::new(opened))
            }
            Self::Pool(pool) => {
                let taken = pool.get_timeout(wait).map_err(|error| Failed {
                    failure: Failure::Timeout,
                    source: ConnectionError::BadConnection(error.to_string()),
                })?;
                Own::Pooled(taken)
            }
        };
        let milliseconds = limit.as_millis().clamp(1, i32::MAX as u128);
        connection.batch_execute(&format!("SET statement_timeout = {milliseconds}")).map_err(Failed::query)?;
        Ok(connection)
    }
}

impl Failed {
    fn query(error: diesel::result::Error) -> Self {
        let failure = if Fault::of(&error) == Fault::Gone { Failure::Unreachable } else { Failure::Answer };
        Self { failure, source: ConnectionError::CouldntSetupConfiguration(error) }
    }
}

impl Deref for Own {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        match self {
            Self::Plain(connection) => connection,
            Self::Pooled(connection) => connection,
        }
    }
}

impl DerefMut for Own {
    fn deref_mut(&mut self) -> &mut PgConnection {
        match self {
            Self::Plain(connection) => connection,
            Self::Pooled(connection) => connection,
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Self::Pooled(connection) = self {
            // Its settings are the probes'.
            AnsiTransactionManager::transaction_manager_status_mut(&mut **connection).set_in_error();
        }
    }
}
