//! What one process does: tasks that use sessions of their own, sessions that they share, the process-wide one, and
//! sessions that go on where a token of this or the other process stands.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use sea_router::{Error, RoutingConnection, Stats};
use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc, task::JoinHandle};

use crate::{history::Operation, plan::Plan};

mod calls;
mod session;
mod task;

use self::{session::Handle, task::Task};

/// A token on its way from one session to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HandOver {
    /// The call that asked for it.
    pub(crate) export: u64,
    pub(crate) token: String,
}

/// One process at work.
pub(crate) struct Workload {
    client: Arc<Client>,
    tasks: Vec<JoinHandle<Vec<Operation>>>,
}

/// What its tasks share.
pub(crate) struct Client {
    pub(crate) db: RoutingConnection,
    pub(crate) plan: Plan,
    next: AtomicU64,
    stop: AtomicBool,
    strict_reads: AtomicU64,
    /// Sessions that several tasks use at once.
    shared: Mutex<Vec<Handle>>,
    arrived: Mutex<VecDeque<HandOver>>,
    /// Tokens for the other process.
    leaving: mpsc::UnboundedSender<HandOver>,
}

/// More tokens than that are not kept waiting: the oldest go.
const MOST_ARRIVED: usize = 64;

impl Workload {
    /// Connects and lets the tasks go. Tokens for the other process come out of `leaving`.
    pub(crate) async fn start(plan: Plan, leaving: mpsc::UnboundedSender<HandOver>) -> Result<Self, Error> {
        let client = Arc::new(Client {
            db: plan.connect().await?,
            // The first number is the process-wide session's.
            next: AtomicU64::new((u64::from(plan.process) << 48) + 1),
            stop: AtomicBool::new(false),
            strict_reads: AtomicU64::new(0),
            shared: Mutex::new(Vec::new()),
            arrived: Mutex::new(VecDeque::new()),
            leaving,
            plan,
        });
        for _ in 0..3 {
            let handle = client.new_session();
            client.shared().push(handle);
        }
        let mut seeds = StdRng::seed_from_u64(client.plan.seed);
        let tasks = (0..client.plan.tasks)
            .map(|task| tokio::spawn(Task::new(client.clone(), task, seeds.random()).run()))
            .collect();
        Ok(Self { client, tasks })
    }

    /// A token of the other process has come.
    pub(crate) fn arrived(&self, token: HandOver) {
        self.client.arrived(token);
    }

    /// Strict reads that were answered so far.
    pub(crate) fn strict_reads(&self) -> u64 {
        self.client.strict_reads.load(Relaxed)
    }

    /// Lets every task end its call; returns what all have done, and the router's counters.
    ///
    /// # Errors
    /// If a task panicked.
    pub(crate) async fn finish(self) -> Result<(Vec<Operation>, Stats), tokio::task::JoinError> {
        self.client.stop.store(true, Relaxed);
        let mut operations = Vec::new();
        for task in self.tasks {
            operations.append(&mut task.await?);
        }
        let stats = self.client.db.stats();
        // The servers are about to go: whether the pools close well is of no interest.
        let closing = self.client.db.close_by_ref();
        let _ = tokio::time::timeout(std::time::Duration::from_secs(2), closing).await;
        Ok((operations, stats))
    }
}

impl Client {
    /// The number of the next call, or session.
    pub(crate) fn next(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Relaxed)
    }

    pub(crate) fn arrived(&self, token: HandOver) {
        let mut arrived = lock(&self.arrived);
        arrived.push_back(token);
        if arrived.len() > MOST_ARRIVED {
            arrived.pop_front();
        }
    }

    pub(crate) fn shared(&self) -> MutexGuard<'_, Vec<Handle>> {
        lock(&self.shared)
    }

    /// The session of the connection itself.
    pub(crate) fn process_wide(&self) -> Handle {
        Handle { session: u64::from(self.plan.process) << 48, db: self.db.clone() }
    }

    pub(crate) fn new_session(&self) -> Handle {
        Handle { session: self.next(), db: self.db.new_session() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
