//! The loops that put the monitor's questions to the servers.

use std::{
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use read_router::{
    Answer, Ask, Branch, Config, Counters, Epoch, Failure, Greeting, InFlight, Monitor, NodeId, ReplicaConfig,
    Standing, StatementKinds, StatementTally, Stats, Time, Topology, events,
};
use sea_orm::{DbErr, RuntimeErr};
use sqlx::{Connection, PgConnection, postgres::PgConnectOptions};
use tokio::sync::Notify;

use crate::{clock, error, openings};

/// What is known of the servers, shared by readers and by the loops that learn it.
pub(crate) struct Watch {
    monitor: Mutex<Monitor>,
    topology: ArcSwap<Topology>,
    changed: Notify,
    due: Box<[Notify]>,
    pub(crate) config: Config,
    pub(crate) counters: Counters,
    pub(crate) in_flight: InFlight,
    pub(crate) kinds: StatementKinds,
    /// Reads that nobody has decided about, and statements that a replica refused.
    unannotated: Mutex<StatementTally>,
    misrouted: Mutex<StatementTally>,
}

/// How often one who waits for a replica, for a connection or for rows, looks whether it still answers.
///
/// Not more often than servers are probed: a timer that is due before all others wakes the runtime, which costs each read a
/// system call or two.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Why a read on a replica was not waited for any longer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GaveUp {
    TimeLimit,
    NodeDown,
}

impl GaveUp {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::TimeLimit => "it took longer than replica_read_timeout",
            Self::NodeDown => "the replica no longer answers",
        }
    }
}

/// A probe connection with what its server said first.
pub(crate) struct Probe {
    pub(crate) connection: PgConnection,
    pub(crate) greeting: Greeting,
    pub(crate) sent_at: Time,
    pub(crate) answer: Answer,
}

impl Watch {
    pub(crate) fn new(replicas: Vec<ReplicaConfig>, config: Config) -> Self {
        let nodes = replicas.len() + 1;
        let monitor = Monitor::with_replicas(replicas, config.clone());
        Self {
            topology: ArcSwap::from_pointee(monitor.topology().clone()),
            monitor: Mutex::new(monitor),
            changed: Notify::new(),
            due: (0..nodes).map(|_| Notify::new()).collect(),
            config,
            counters: Counters::new(nodes),
            in_flight: InFlight::new(nodes),
            kinds: StatementKinds::with_key(rand::random()),
            unannotated: Mutex::new(StatementTally::with_key(rand::random())),
            misrouted: Mutex::new(StatementTally::with_key(rand::random())),
        }
    }

    /// The newest picture, without keeping it from being replaced.
    pub(crate) fn topology(&self) -> arc_swap::Guard<Arc<Topology>> {
        self.topology.load()
    }

    /// Asks for a newer picture on behalf of one who has waited since `since`, and waits for it, until `until` at most.
    pub(crate) async fn changed(&self, ask: Ask, since: Time, until: Time) {
        let mut changed = pin!(self.changed.notified());
        // From here on no change is missed.
        changed.as_mut().enable();
        self.monitor().ask(ask, since, clock::now());
        self.wake();
        let _ = tokio::time::timeout(until.since(clock::now()), changed).await;
    }

    /// Runs a read on a replica, within `limit` if there is one, and for no longer than the replica answers: a host that
    /// hangs would hold its readers until the network gives it up.
    pub(crate) async fn while_serving<T>(
        &self,
        node: NodeId,
        limit: Option<Duration>,
        work: impl Future<Output = T>,
    ) -> Result<T, GaveUp> {
        let mut work = pin!(work);
        let mut left = limit.unwrap_or(Duration::MAX);
        loop {
            let pause = left.min(LOOK_AGAIN);
            if let Ok(done) = tokio::time::timeout(pause, &mut work).await {
                return Ok(done);
            }
            left -= pause;
            if left.is_zero() {
                return Err(GaveUp::TimeLimit);
            }
            if let Some(gave_up) = self.gave_up(node) {
                return Err(gave_up);
            }
        }
    }

    /// Whether the node no longer answers.
    pub(crate) fn gave_up(&self, node: NodeId) -> Option<GaveUp> {
        let standing = self.topology().node(node).map(read_router::Node::standing);
        matches!(standing, Some(Standing::Down(_))).then_some(GaveUp::NodeDown)
    }

    /// A connection of the application's leads to a primary on this branch.
    pub(crate) fn branch_seen(&self, branch: Branch) {
        if self.topology().surviving().is_none_or(|known| known < branch) {
            self.learn(|monitor| monitor.branch_seen(branch, clock::now()));
            self.wake();
        }
    }

    /// A read failed on the node in a way that says that it is going down.
    pub(crate) fn read_failed(&self, node: NodeId) {
        self.learn(|monitor| monitor.read_failed(node, clock::now()));
        self.wake();
    }

    /// A first answer that came before the node's loop runs.
    pub(crate) fn first_answer(&self, node: NodeId, probe: &Probe) -> Epoch {
        self.learn(|monitor| {
            let epoch = monitor.opened(node, &probe.greeting);
            monitor.sent(node, probe.sent_at, rand::random());
            monitor.answered(node, epoch, &probe.answer, clock::now());
            epoch
        })
    }

    /// A first attempt that failed before the node's loop runs.
    pub(crate) fn first_failure(&self, node: NodeId, error: &sqlx::Error) {
        self.failed(node, error);
    }

    /// The node could not be probed: the first time it is told with its cause.
    fn failed(&self, node: NodeId, error: &sqlx::Error) {
        let was_down = self.topology().node(node).is_some_and(|n| matches!(n.standing(), Standing::Down(_)));
        if !was_down {
            events::unreachable(node, error);
        }
        self.learn(|monitor| monitor.failed(node, failure(error), clock::now()));
    }

    /// Changes the monitor, publishes what it then knows, and wakes who waits for it.
    fn learn<T>(&self, change: impl FnOnce(&mut Monitor) -> T) -> T {
        let mut monitor = self.monitor();
        let out = change(&mut monitor);
        let before = self.topology.swap(Arc::new(monitor.topology().clone()));
        for (index, (old, new)) in before.nodes().iter().zip(monitor.topology().nodes()).enumerate() {
            if old.standing() != new.standing() {
                events::standing(NodeId(u16::try_from(index).unwrap_or(u16::MAX)), old.standing(), new.standing());
            }
        }
        drop(monitor);
        self.changed.notify_waiters();
        out
    }

    /// A read without a class was run.
    pub(crate) fn count_unannotated(&self, sql: &str) {
        locked(&self.unannotated).count(sql);
    }

    /// A replica refused the statement as a write: it is not asked again. Returns whether it is the first of its shape.
    pub(crate) fn refused_by_replica(&self, sql: &str, remember: bool) -> bool {
        if remember {
            self.kinds.refuse(sql);
        }
        self.counters.misrouted();
        locked(&self.misrouted).count(sql)
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = self.counters.snapshot(&self.topology(), &self.in_flight, clock::now());
        stats.unannotated = locked(&self.unannotated).counts();
        stats.misrouted_statements = locked(&self.misrouted).counts();
        stats
    }

    /// Lets every node's loop look again when it is due.
    fn wake(&self) {
        for due in &self.due {
            due.notify_one();
        }
    }

    fn monitor(&self) -> MutexGuard<'_, Monitor> {
        locked(&self.monitor)
    }

    /// Waits until the node's next probe is due.
    async fn due(&self, node: NodeId) {
        let wake = &self.due[node.index()];
        loop {
            let due = self.monitor().due(node);
            match due.map(|due| due.since(clock::now())) {
                Some(Duration::ZERO) => return,
                Some(wait) => {
                    let _ = tokio::time::timeout(wait, wake.notified()).await;
                }
                None => wake.notified().await,
            }
        }
    }
}

/// Each change is one call, which does not panic half-way.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Probes one node for as long as the task lives. A node that hangs holds up no other.
pub(crate) async fn probe_node(
    watch: Arc<Watch>,
    node: NodeId,
    options: PgConnectOptions,
    first: Option<(PgConnection, Epoch)>,
) {
    let mut open = first;
    loop {
        watch.due(node).await;
        if let Err(error) = probe_once(&watch, node, &options, &mut open).await {
            open = None;
            watch.failed(node, &error);
        }
    }
}

async fn probe_once(
    watch: &Watch,
    node: NodeId,
    options: &PgConnectOptions,
    open: &mut Option<(PgConnection, Epoch)>,
) -> Result<(), sqlx::Error> {
    let limit = watch.config.probe_timeout;
    // The name may lead elsewhere by now; the old connection would go on answering.
    open.take_if(|(_, epoch)| !watch.monitor().is_open(node, *epoch));
    let (connection, epoch) = match open {
        Some(open) => open,
        None => {
            let (connection, greeting) = within(limit, connect(options)).await?;
            let epoch = watch.learn(|monitor| monitor.opened(node, &greeting));
            open.insert((connection, epoch))
        }
    };
    watch.monitor().sent(node, clock::now(), rand::random());
    watch.counters.probe();
    let answer = within(limit, openings::position(connection)).await?;
    watch.learn(|monitor| monitor.answered(node, *epoch, &answer, clock::now()));
    Ok(())
}

/// Why a pool could not connect: it says only that it timed out, since it takes a refused connection for a server that
/// is still starting.
pub(crate) async fn cause(error: DbErr, url: &str, limit: Duration) -> DbErr {
    let timed_out = matches!(error::driver(&error), Some(sqlx::Error::PoolTimedOut));
    let Some(options) = timed_out.then(|| url.parse::<PgConnectOptions>().ok()).flatten() else { return error };
    match within(limit, PgConnection::connect_with(&options)).await {
        Ok(_) => error,
        Err(cause) => DbErr::Conn(RuntimeErr::SqlxError(cause.into())),
    }
}

/// Opens a probe connection and asks it once.
pub(crate) async fn first_probe(options: &PgConnectOptions, limit: Duration) -> Result<Probe, sqlx::Error> {
    within(limit, async {
        let (mut connection, greeting) = connect(options).await?;
        let sent_at = clock::now();
        let answer = openings::position(&mut connection).await?;
        Ok(Probe { connection, greeting, sent_at, answer })
    })
    .await
}

async fn connect(options: &PgConnectOptions) -> Result<(PgConnection, Greeting), sqlx::Error> {
    let mut connection = PgConnection::connect_with(options).await?;
    let greeting = openings::greeting(&mut connection).await?;
    Ok((connection, greeting))
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, sqlx::Error> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
    }
}

fn failure(error: &sqlx::Error) -> Failure {
    match error {
        sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => Failure::Timeout,
        sqlx::Error::Database(_) if is_login(error) => Failure::Login,
        sqlx::Error::Database(error) if error.code().is_some_and(|c| !c.starts_with("57P") && !c.starts_with("08")) => {
            Failure::Answer
        }
        sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_) | sqlx::Error::ColumnDecode { .. } => Failure::Answer,
        _ => Failure::Unreachable,
    }
}

/// Whether the server refuses this user or has no such database: waiting does not help.
pub(crate) fn is_login(error: &sqlx::Error) -> bool {
    is_no_database(error) || code(error).is_some_and(|code| code.starts_with("28"))
}

/// Whether the server has no such database.
pub(crate) fn is_no_database(error: &sqlx::Error) -> bool {
    code(error).is_some_and(|code| code == "3D000")
}

fn code(error: &sqlx::Error) -> Option<std::borrow::Cow<'_, str>> {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code)
}
