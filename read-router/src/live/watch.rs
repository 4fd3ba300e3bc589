//! What is known of the servers, shared by all calls and by the loops that learn it.

use std::{
    future::Future,
    ops::Deref,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use arc_swap::ArcSwap;
use event_listener::{Event, EventListener, Listener};

use super::{now, schema::Schema};
use crate::{
    Answer, Ask, Branch, BranchLost, Config, Counters, Epoch, Failure, Greeting, InFlight, Monitor, NodeId, Opened,
    PrimaryReason, ReadClass, ReplicaConfig, SchemaChange, Served, Standing, StatementKinds, StatementTally, Stats,
    Time, Topology, events, live::SharedSession,
};

/// One picture of the servers, what is counted, and who waits for what.
pub struct Watch {
    monitor: Mutex<Monitor>,
    topology: ArcSwap<Topology>,
    changed: Event,
    due: Box<[Event]>,
    /// The timings.
    pub config: Config,
    /// What is counted.
    pub counters: Counters,
    /// The reads under way.
    pub in_flight: InFlight,
    /// The kinds of statements.
    pub kinds: StatementKinds,
    /// Reads that nobody has decided about, and statements that a replica refused.
    unannotated: Mutex<StatementTally>,
    misrouted: Mutex<StatementTally>,
    pub(super) schema: Schema,
}

/// The picture at one moment.
pub struct Current(arc_swap::Guard<Arc<Topology>>);

impl Current {
    /// Kept for longer.
    #[must_use]
    pub fn into_inner(self) -> Arc<Topology> {
        arc_swap::Guard::into_inner(self.0)
    }
}

impl Deref for Current {
    type Target = Topology;

    fn deref(&self) -> &Topology {
        &self.0
    }
}

/// The next change; none is missed from its making on. To be awaited, or waited for.
#[must_use = "nothing waits until it is awaited or waited for"]
pub struct Change(EventListener);

impl Change {
    pub(super) fn new(listener: EventListener) -> Self {
        Self(listener)
    }

    /// Blocks until the change comes, for so long at most.
    pub fn wait(self, limit: Duration) {
        let _ = self.0.wait_timeout(limit);
    }
}

impl Future for Change {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context)
    }
}

/// Why a read on a replica was not waited for any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GaveUp {
    /// The read's time limit is over.
    TimeLimit,
    /// The node no longer answers probes.
    NodeDown,
}

impl Watch {
    /// Nothing is known yet of the primary and these replicas.
    #[must_use]
    pub fn new(replicas: Vec<ReplicaConfig>, config: Config) -> Self {
        let nodes = replicas.len() + 1;
        let monitor = Monitor::with_replicas(replicas, config.clone());
        Self {
            topology: ArcSwap::from_pointee(monitor.topology().clone()),
            monitor: Mutex::new(monitor),
            changed: Event::new(),
            due: (0..nodes).map(|_| Event::new()).collect(),
            config,
            counters: Counters::new(nodes),
            in_flight: InFlight::new(nodes),
            kinds: StatementKinds::with_key(rand::random()),
            unannotated: Mutex::new(StatementTally::with_key(rand::random())),
            misrouted: Mutex::new(StatementTally::with_key(rand::random())),
            schema: Schema::default(),
        }
    }

    /// The newest picture, without keeping it from being replaced.
    #[must_use]
    pub fn topology(&self) -> Current {
        Current(self.topology.load())
    }

    /// Asks for a newer picture on behalf of one who has waited since `since`: the change that it brings.
    pub fn changed(&self, ask: Ask, since: Time) -> Change {
        let changed = Change(self.changed.listen());
        self.monitor().ask(ask, since, now());
        self.wake();
        changed
    }

    /// Whether the node no longer answers.
    #[must_use]
    pub fn gave_up(&self, node: NodeId) -> Option<GaveUp> {
        let standing = self.topology().node(node).map(crate::Node::standing);
        matches!(standing, Some(Standing::Down(_))).then_some(GaveUp::NodeDown)
    }

    /// Whether a connection leads to where its node's name pointed before: a new one may lead to the right server.
    #[must_use]
    pub fn is_outdated(&self, node: NodeId, opened: &Opened) -> bool {
        let topology = self.topology();
        if node.is_primary() {
            let behind = opened.greeting.branch.zip(topology.surviving());
            let is_old = behind.is_some_and(|(mine, now)| mine.system == now.system && mine < now);
            // Where the name itself is still behind, a new connection would be no better.
            let name_is_right = topology.node(node).is_some_and(|node| node.standing() == Standing::SamePrimary);
            return is_old && (name_is_right || opened.at < topology.highest_since());
        }
        // Behind a balancer one name leads to several servers: only a change of the server that is watched outdates what
        // was opened before it.
        let node = topology.node(node).filter(|node| node.standing().serves());
        node.zip(node.and_then(|node| node.observation()))
            .is_some_and(|(node, seen)| opened.at < node.instance_since() && seen.instance != opened.greeting.instance)
    }

    /// A connection of the application's leads to a primary on this branch.
    pub fn branch_seen(&self, branch: Branch) {
        if self.topology().surviving().is_none_or(|known| known < branch) {
            self.learn(|monitor| monitor.branch_seen(branch, now()));
            self.wake();
        }
    }

    /// A read failed on the node in a way that says that it is going down.
    pub fn read_failed(&self, node: NodeId) {
        self.learn(|monitor| monitor.read_failed(node, now()));
        self.wake();
    }

    /// When the node's next probe is due: at once if the time is zero, not by itself if there is none, and else when the
    /// time is over or the change comes.
    pub fn due(&self, node: NodeId) -> (Option<Duration>, Change) {
        let change = Change(self.due[node.index()].listen());
        let due = self.monitor().due(node);
        (due.map(|due| due.since(now())), change)
    }

    /// A probe connection to the node is open.
    pub fn opened(&self, node: NodeId, greeting: &Greeting) -> Epoch {
        self.learn(|monitor| monitor.opened(node, greeting))
    }

    /// Whether the epoch's connection is still of use: the name may lead elsewhere by now, and the old connection would go
    /// on answering.
    #[must_use]
    pub fn is_open(&self, node: NodeId, epoch: Epoch) -> bool {
        self.monitor().is_open(node, epoch)
    }

    /// A probe is about to be sent to the node.
    pub fn sent(&self, node: NodeId) {
        self.monitor().sent(node, now(), rand::random());
        self.counters.probe();
    }

    /// The node answered the probe sent last.
    pub fn answered(&self, node: NodeId, epoch: Epoch, answer: &Answer) {
        self.learn(|monitor| monitor.answered(node, epoch, answer, now()));
    }

    /// A first answer that came before the node's loop runs.
    pub fn first_answer(&self, node: NodeId, greeting: &Greeting, sent_at: Time, answer: &Answer) -> Epoch {
        self.learn(|monitor| {
            let epoch = monitor.opened(node, greeting);
            monitor.sent(node, sent_at, rand::random());
            monitor.answered(node, epoch, answer, now());
            epoch
        })
    }

    /// The node could not be probed: the first time it is told with its cause.
    pub fn failed(&self, node: NodeId, failure: Failure, cause: &dyn std::fmt::Display) {
        let was_down = self.topology().node(node).is_some_and(|n| matches!(n.standing(), Standing::Down(_)));
        if !was_down {
            events::unreachable(node, cause);
        }
        self.learn(|monitor| monitor.failed(node, failure, now()));
    }

    /// Changes the monitor, publishes what it then knows, and wakes who waits for it.
    fn learn<T>(&self, change: impl FnOnce(&mut Monitor) -> T) -> T {
        let mut monitor = self.monitor();
        let out = change(&mut monitor);
        let before = self.topology.swap(Arc::new(monitor.topology().clone()));
        for (index, (old, new)) in before.nodes().iter().zip(monitor.topology().nodes()).enumerate() {
            if old.standing() != new.standing() {
                events::standing(NodeId::from_index(index), old.standing(), new.standing());
            }
        }
        drop(monitor);
        self.changed.notify(usize::MAX);
        out
    }

    /// A statement goes to the primary.
    pub fn to_primary(
        &self,
        session: &SharedSession,
        class: Option<ReadClass>,
        reason: PrimaryReason,
        waited: Duration,
    ) {
        let count = self.counters.primary(class, reason);
        events::to_primary(class, reason, count);
        session.served(Served::by_primary(class, reason, waited));
    }

    /// Tells of what a session may have lost.
    pub fn report(&self, lost: Option<BranchLost>) {
        let Some(lost) = lost else { return };
        // A token from elsewhere is no loss of ours.
        if !matches!(lost, BranchLost::OtherCluster { .. }) {
            self.counters.branch_lost();
        }
        events::branch_lost(&lost);
    }

    /// A statement was run outside of transactions: what of the schema its text may have changed is learnt anew.
    pub fn was_run(&self, sql: &str) {
        if let Some(change) = SchemaChange::of(sql) {
            self.schema_changed(change);
        }
    }

    /// A read without a class was run.
    pub fn count_unannotated(&self, sql: &str) {
        locked(&self.unannotated).count(sql);
    }

    /// A replica refused the statement as a write: if it is to be remembered it is not asked again. Returns whether it is
    /// the first of its shape.
    pub(crate) fn refused_by_replica(&self, sql: &str, remember: bool) -> bool {
        if remember {
            self.kinds.refuse(sql);
        }
        self.counters.misrouted();
        locked(&self.misrouted).count(sql)
    }

    /// The counters and what is known of each node.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.counters.snapshot(&self.topology(), &self.in_flight, now());
        stats.unannotated = locked(&self.unannotated).counts();
        stats.misrouted_statements = locked(&self.misrouted).counts();
        stats
    }

    /// Lets every node's loop look again when it is due.
    pub fn wake(&self) {
        for due in &self.due {
            due.notify(usize::MAX);
        }
    }

    fn monitor(&self) -> MutexGuard<'_, Monitor> {
        locked(&self.monitor)
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("topology", &*self.topology()).finish_non_exhaustive()
    }
}

/// Each change is one call, which does not panic half-way.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a read as under way on a node for as long as it lives.
#[derive(Debug)]
pub struct Busy {
    watch: Arc<Watch>,
    node: NodeId,
}

impl Busy {
    /// A read on the node begins.
    #[must_use]
    pub fn begin(watch: &Arc<Watch>, node: NodeId) -> Self {
        watch.in_flight.begin(node);
        Self { watch: watch.clone(), node }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.watch.in_flight.end(self.node);
    }
}
