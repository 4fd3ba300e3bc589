//! One cluster's life: two processes at work while faults are injected.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use read_router_testkit::{Cluster, Error, Node, Relay};
use tokio::sync::mpsc;

use crate::{
    clock,
    faults::{self, Injector},
    history::{self, Action, History, Operation, Promise, Server},
    plan::{Gate, Plan, SCHEMA, Timing},
    run::Failure,
    worker::{Counters, FromWorker, Worker},
    workload::Workload,
};

/// What came of an episode.
pub(crate) struct Outcome {
    pub(crate) history: History,
    pub(crate) counters: Counters,
    /// What each process's router says of itself in the end.
    pub(crate) stats: [String; 2],
}

/// What is drawn for one episode.
pub(crate) struct Episode {
    pub(crate) length: Duration,
    pub(crate) tasks: u32,
    pub(crate) gate: Gate,
    replicas: usize,
    failovers: usize,
    /// Whether the one failover loses what was acknowledged.
    lossy: bool,
    timing: Timing,
    promise: Promise,
    random: StdRng,
}

impl Episode {
    pub(crate) fn draw(length: Duration, tasks: u32, gate: Gate, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let replicas = if random.random_bool(0.75) { 3 } else { 2 };
        let timing = Timing {
            probe_interval_ms: [20, 100, 100][random.random_range(0..3)],
            probe_timeout_ms: [300, 1000][random.random_range(0..2)],
            strict_wait_ms: [10, 30, 100][random.random_range(0..3)],
        };
        let (failovers, lossy) = match random.random_range(0..10) {
            0..6 => (random.random_range(1..replicas), false),
            6..8 => (1, true),
            _ => (0, false),
        };
        let promise = Promise { monotonic_on_primary: random.random_bool(0.5) };
        Self { length, tasks, gate, replicas, failovers, lossy, timing, promise, random }
    }

    fn plan(&mut self, name: &Relay, cluster: &Cluster, process: u32) -> Plan {
        Plan {
            primary: name.url(),
            replicas: cluster.replicas().iter().map(Node::url).collect(),
            process,
            seed: self.random.random(),
            tasks: self.tasks,
            gate: self.gate,
            timing: self.timing,
            promise: self.promise,
        }
    }

    /// Runs it. `progress` is told, now and then, how many strict reads were answered.
    pub(crate) async fn run(mut self, program: &Path, mut progress: impl FnMut(u64)) -> Result<Outcome, Failure> {
        let (replicas, durable) = (self.replicas, self.failovers > 0 && !self.lossy);
        let cluster = blocking(move || start(replicas, durable)).await?;
        let name = Arc::new(Relay::to(cluster.primary()).map_err(Failure::run)?);
        let (sender, mut leaving) = mpsc::unbounded_channel();
        let plan = self.plan(&name, &cluster, 2);
        let mut worker = Worker::start(program, plan).map_err(Failure::run)?;
        let workload = Workload::start(self.plan(&name, &cluster, 1), sender).await.map_err(Failure::run)?;
        while !matches!(worker.next().await.map_err(Failure::run)?, FromWorker::Ready) {}

        let began = Instant::now();
        // Late: afterwards there is a replica less.
        let places = [[6, 10], [5, 8]][usize::from(self.failovers > 1)];
        let failovers = places.iter().take(self.failovers).map(|place| began + self.length * *place / 10).collect();
        let injector = Injector::new(cluster.clone(), name, self.random.random(), failovers, self.lossy);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let faults = tokio::task::spawn_blocking(move || injector.run(&stopped));

        let mut tick = tokio::time::interval(Duration::from_millis(250));
        let mut theirs = 0;
        while began.elapsed() < self.length && !faults.is_finished() {
            tokio::select! {
                message = worker.next() => match message.map_err(Failure::run)? {
                    FromWorker::Token(token) => workload.arrived(token),
                    FromWorker::StrictReads(reads) => theirs = reads,
                    _ => {}
                },
                Some(token) = leaving.recv() => worker.hand_over(token).map_err(Failure::run)?,
                _ = tick.tick() => progress(workload.strict_reads() + theirs),
            }
        }
        stop.store(true, Relaxed);
        let (mut injected, primary) = faults.await.map_err(Failure::run)?.map_err(Failure::run)?;
        let mut outcome = finish(workload, worker).await?;
        outcome.history.operations.append(&mut injected.operations);
        outcome.history.faults = injected.faults;
        outcome.history.promise = self.promise;
        let end = blocking(move || last_look(faults::node(&cluster, primary))).await?;
        outcome.history.operations.push(end);
        Ok(outcome)
    }
}

/// Starts the servers. In a durable cluster a commit waits for one standby.
fn start(replicas: usize, durable: bool) -> Result<Arc<Cluster>, Error> {
    let cluster = Cluster::builder().replicas(replicas).start()?;
    if durable {
        for index in 0..=replicas {
            faults::node(&cluster, index).set("synchronous_standby_names", "ANY 1 (*)")?;
        }
    }
    cluster.primary().sql(SCHEMA)?;
    cluster.wait_caught_up(Duration::from_secs(30))?;
    Ok(Arc::new(cluster))
}

/// Ends both processes' work; returns what they did.
async fn finish(workload: Workload, mut worker: Worker) -> Result<Outcome, Failure> {
    worker.stop().map_err(Failure::run)?;
    let (mut operations, stats) = workload.finish().await.map_err(Failure::run)?;
    loop {
        match worker.next().await.map_err(Failure::run)? {
            FromWorker::Operations(mut theirs) => operations.append(&mut theirs),
            FromWorker::Done(theirs, text) => {
                return Ok(Outcome {
                    history: History { operations, ..History::default() },
                    counters: Counters::from(&stats) + theirs,
                    stats: [format!("{stats:?}"), text],
                });
            }
            _ => {}
        }
    }
}

/// What the primary has in the end.
fn last_look(primary: &Node) -> Result<Operation, Error> {
    let started = clock::now();
    let values = faults::registers(primary, faults::REGISTERS)?;
    Ok(Operation {
        id: 1,
        task: 0,
        session: 0,
        started,
        ended: clock::now(),
        action: Action::Final,
        outcome: history::Outcome::Done,
        values,
        server: Some(Server { port: primary.port(), standby: false }),
        reason: None,
    })
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(Failure::run)?.map_err(Failure::run)
}
