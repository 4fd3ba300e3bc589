//! The second process: this program again, with its plan, tokens and records as JSON lines through its pipes.

use std::{
    io::{self, BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    thread,
};

use sea_router::Stats;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::{
    history::Operation,
    plan::Plan,
    workload::{HandOver, Workload},
};

/// The hidden subcommand.
pub const WORKER: &str = "worker";

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ToWorker {
    Start(Plan),
    Token(HandOver),
    Stop,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromWorker {
    Ready,
    Token(HandOver),
    StrictReads(u64),
    Operations(Vec<Operation>),
    Done(Counters, String),
    Failed(String),
}

/// The router's counters that a report names.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Counters {
    pub(crate) branch_lost: u64,
    pub(crate) waits: u64,
    pub(crate) own_samples: u64,
    pub(crate) replica_failures: u64,
    pub(crate) probes: u64,
}

impl From<&Stats> for Counters {
    fn from(stats: &Stats) -> Self {
        Self {
            branch_lost: stats.branch_lost,
            waits: stats.waits,
            own_samples: stats.own_samples,
            replica_failures: stats.replica_failures,
            probes: stats.probes,
        }
    }
}

/// Runs as the second process until the first one says stop, or is gone.
///
/// # Errors
/// If a pipe breaks.
pub fn work() -> io::Result<()> {
    let (sender, receiver) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let message = line.map_err(drop).and_then(|line| serde_json::from_str(&line).map_err(drop));
            if message.and_then(|message| sender.send(message).map_err(drop)).is_err() {
                return;
            }
        }
    });
    let done = tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(obey(receiver));
    match done {
        Ok(()) => Ok(()),
        Err(message) => say(&FromWorker::Failed(message)),
    }
}

async fn obey(mut orders: mpsc::UnboundedReceiver<ToWorker>) -> Result<(), String> {
    let Some(ToWorker::Start(plan)) = orders.recv().await else { return Ok(()) };
    let (sender, mut leaving) = mpsc::unbounded_channel();
    let workload = Workload::start(plan, sender).await.map_err(|error| error.to_string())?;
    let say = |message: &FromWorker| say(message).map_err(|error| error.to_string());
    say(&FromWorker::Ready)?;
    let mut tick = tokio::time::interval(std::time::Duration::from_millis(250));
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(ToWorker::Token(token)) => workload.arrived(token),
                Some(ToWorker::Start(_)) => {}
                Some(ToWorker::Stop) | None => break,
            },
            Some(token) = leaving.recv() => say(&FromWorker::Token(token))?,
            _ = tick.tick() => say(&FromWorker::StrictReads(workload.strict_reads()))?,
        }
    }
    let (operations, stats) = workload.finish().await.map_err(|error| error.to_string())?;
    for chunk in operations.chunks(1000) {
        say(&FromWorker::Operations(chunk.to_vec()))?;
    }
    say(&FromWorker::Done(Counters::from(&stats), format!("{stats:?}")))
}

fn say(message: &FromWorker) -> io::Result<()> {
    let mut text = serde_json::to_vec(message)?;
    text.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&text)?;
    out.flush()
}

/// The second process, as the first one holds it; it ends with this.
pub(crate) struct Worker {
    child: Child,
    orders: ChildStdin,
    messages: mpsc::UnboundedReceiver<FromWorker>,
}

impl Worker {
    /// Starts `program` as the second process.
    pub(crate) fn start(program: &Path, plan: Plan) -> io::Result<Self> {
        let mut child = Command::new(program).arg(WORKER).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(orders), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let (sender, messages) = mpsc::unbounded_channel();
        thread::spawn(move || {
            for line in BufReader::new(out).lines() {
                let message = line.map_err(|error| error.to_string()).and_then(|line| {
                    serde_json::from_str(&line).map_err(|error| format!("the worker said {line:?}: {error}"))
                });
                if sender.send(message.unwrap_or_else(FromWorker::Failed)).is_err() {
                    return;
                }
            }
        });
        let mut worker = Self { child, orders, messages };
        worker.order(&ToWorker::Start(plan))?;
        Ok(worker)
    }

    /// What it says next; an error once it is gone.
    pub(crate) async fn next(&mut self) -> Result<FromWorker, String> {
        match self.messages.recv().await {
            Some(FromWorker::Failed(message)) => Err(format!("the second process failed: {message}")),
            Some(message) => Ok(message),
            None => Err("the second process is gone".into()),
        }
    }

    pub(crate) fn hand_over(&mut self, token: HandOver) -> io::Result<()> {
        self.order(&ToWorker::Token(token))
    }

    pub(crate) fn stop(&mut self) -> io::Result<()> {
        self.order(&ToWorker::Stop)
    }

    fn order(&mut self, order: &ToWorker) -> io::Result<()> {
        let mut text = serde_json::to_vec(order)?;
        text.push(b'\n');
        self.orders.write_all(&text)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It ends by itself once its orders end; this is for one that hangs.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl std::ops::Add for Counters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            branch_lost: self.branch_lost + other.branch_lost,
            waits: self.waits + other.waits,
            own_samples: self.own_samples + other.own_samples,
            replica_failures: self.replica_failures + other.replica_failures,
            probes: self.probes + other.probes,
        }
    }
}
