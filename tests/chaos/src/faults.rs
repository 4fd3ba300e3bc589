//! What is done to the servers, each fault healed after a short time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use read_router_testkit::{Cluster, Error, Node, Relay};

use crate::{
    clock,
    history::{Fault, History, Operation, Value},
};

mod failover;

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    PauseReplay,
    ApplyDelay,
    FreezeLink,
    FreezeReceiver,
    FreezeStandby,
    CrashStandby,
    RestartStandby,
    KillStandbyBackend,
    CutStandby,
    FreezePrimary,
    CrashPrimary,
    KillPrimaryBackend,
    CutPrimary,
    /// Every connection through the primary's name, at once.
    CutName,
}

impl Kind {
    /// How many of each are in a deck: what costs the run little comes more often.
    const DECK: [(Self, usize); 14] = [
        (Self::PauseReplay, 4),
        (Self::ApplyDelay, 4),
        (Self::FreezeLink, 2),
        (Self::FreezeReceiver, 2),
        (Self::FreezeStandby, 2),
        (Self::CrashStandby, 2),
        (Self::RestartStandby, 1),
        (Self::KillStandbyBackend, 3),
        (Self::CutStandby, 3),
        (Self::FreezePrimary, 1),
        (Self::CrashPrimary, 1),
        (Self::KillPrimaryBackend, 1),
        (Self::CutPrimary, 1),
        (Self::CutName, 1),
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::PauseReplay => "pause_replay",
            Self::ApplyDelay => "apply_delay",
            Self::FreezeLink => "freeze_link",
            Self::FreezeReceiver => "freeze_receiver",
            Self::FreezeStandby => "freeze_standby",
            Self::CrashStandby => "crash_standby",
            Self::RestartStandby => "restart_standby",
            Self::KillStandbyBackend => "kill_standby_backend",
            Self::CutStandby => "cut_standby",
            Self::FreezePrimary => "freeze_primary",
            Self::CrashPrimary => "crash_primary",
            Self::KillPrimaryBackend => "kill_primary_backend",
            Self::CutPrimary => "cut_primary",
            Self::CutName => "cut_name",
        }
    }

    const fn is_of_primary(self) -> bool {
        matches!(
            self,
            Self::FreezePrimary | Self::CrashPrimary | Self::KillPrimaryBackend | Self::CutPrimary | Self::CutName
        )
    }

    /// Whether two servers must talk for it to be done.
    const fn needs_primary(self) -> bool {
        matches!(self, Self::FreezeLink | Self::FreezeReceiver)
    }
}

/// A fault that has been done and not been healed.
struct Active {
    kind: Kind,
    /// 0 is the node made as the primary, 1 the first replica.
    node: usize,
    began: u64,
    heal_at: Instant,
}

/// Does faults to one cluster.
pub(crate) struct Injector {
    cluster: Arc<Cluster>,
    name: Arc<Relay>,
    random: StdRng,
    deck: Vec<Kind>,
    active: Vec<Active>,
    log: Vec<Fault>,
    /// Our own.
    writes: Vec<Operation>,
    /// The node that is the primary.
    primary: usize,
    /// Those that follow it.
    standbys: Vec<usize>,
    /// When the primary changes.
    failovers: Vec<Instant>,
    /// Whether they lose what was acknowledged.
    lossy: bool,
}

impl Injector {
    pub(crate) fn new(
        cluster: Arc<Cluster>,
        name: Arc<Relay>,
        seed: u64,
        failovers: Vec<Instant>,
        lossy: bool,
    ) -> Self {
        let standbys = (1..=cluster.replicas().len()).collect();
        Self {
            cluster,
            name,
            random: StdRng::seed_from_u64(seed),
            deck: Vec::new(),
            active: Vec::new(),
            log: Vec::new(),
            writes: Vec::new(),
            lossy,
            primary: 0,
            standbys,
            failovers,
        }
    }

    /// Does faults until `stop`, and heals what is left; blocks. Returns what was done, with our own writes, and the
    /// index of the node that is the primary in the end.
    pub(crate) fn run(mut self, stop: &AtomicBool) -> Result<(History, usize), Error> {
        while !stop.load(Relaxed) {
            self.heal(Some(Instant::now()))?;
            if self.failovers.first().is_some_and(|at| *at <= Instant::now()) && self.standbys.len() > 1 {
                self.failovers.remove(0);
                self.heal(None)?;
                self.failover()?;
            }
            if self.active.len() < 2 {
                self.inject();
            }
            self.pause(10, 120);
        }
        self.heal(None)?;
        self.log.sort_by_key(|fault| fault.began);
        Ok((History { operations: self.writes, faults: self.log, ..History::default() }, self.primary))
    }

    fn inject(&mut self) {
        if self.deck.is_empty() {
            self.deck = Kind::DECK.iter().flat_map(|&(kind, count)| std::iter::repeat_n(kind, count)).collect();
            self.deck.shuffle(&mut self.random);
        }
        let Some(kind) = self.deck.pop() else { return };
        let node = if kind.is_of_primary() {
            self.primary
        } else {
            self.standbys[self.random.random_range(0..self.standbys.len())]
        };
        let primary_is_hit = self.active.iter().any(|active| active.kind.is_of_primary());
        if self.active.iter().any(|active| active.node == node) || kind.needs_primary() && primary_is_hit {
            // Its turn comes.
            self.deck.insert(0, kind);
            return;
        }
        let began = clock::now();
        if let Err(error) = self.apply(kind, node) {
            // As on a server that another fault has just hit.
            eprintln!("chaos: {} on {}: {error}", kind.as_str(), self.node(node).name());
        }
        // Healed in any case: a fault that failed may have been done half.
        let length = self.length(kind);
        self.active.push(Active { kind, node, began, heal_at: Instant::now() + length });
    }

    fn length(&mut self, kind: Kind) -> Duration {
        let range = match kind {
            // Now and then longer than a probe may take.
            Kind::FreezeStandby if self.random.random_bool(0.3) => 1100..1500,
            Kind::FreezeStandby | Kind::FreezePrimary => 30..400,
            Kind::CrashStandby | Kind::CrashPrimary => 0..300,
            Kind::PauseReplay | Kind::ApplyDelay | Kind::FreezeLink | Kind::FreezeReceiver => 50..800,
            _ => 0..1,
        };
        Duration::from_millis(self.random.random_range(range))
    }

    fn apply(&mut self, kind: Kind, index: usize) -> Result<(), Error> {
        let delay = Duration::from_millis(self.random.random_range(5..250));
        let node = self.node(index);
        match kind {
            Kind::PauseReplay => node.pause_replay(),
            Kind::ApplyDelay => node.set_apply_delay(delay),
            Kind::FreezeLink => self.cluster.freeze_link(index - 1),
            Kind::FreezeReceiver => node.freeze_receiver(),
            Kind::FreezeStandby | Kind::FreezePrimary => node.freeze(),
            Kind::CrashStandby | Kind::CrashPrimary => node.crash(),
            Kind::RestartStandby => node.restart(),
            Kind::KillStandbyBackend | Kind::KillPrimaryBackend => node.kill_backend(),
            Kind::CutStandby | Kind::CutPrimary => cut(node),
            Kind::CutName => {
                self.name.cut();
                Ok(())
            }
        }
    }

    /// Heals what is due, or everything.
    fn heal(&mut self, due: Option<Instant>) -> Result<(), Error> {
        let (over, active) = std::mem::take(&mut self.active)
            .into_iter()
            .partition(|active| due.is_none_or(|due| active.heal_at <= due));
        self.active = active;
        let over: Vec<Active> = over;
        for active in over {
            let node = self.node(active.node);
            match active.kind {
                Kind::PauseReplay => node.resume_replay()?,
                Kind::ApplyDelay => node.set_apply_delay(Duration::ZERO)?,
                Kind::FreezeLink => self.cluster.thaw_link(active.node - 1)?,
                Kind::FreezeReceiver => node.thaw_receiver()?,
                Kind::FreezeStandby | Kind::FreezePrimary => node.thaw()?,
                _ => node.start()?,
            }
            self.done(active.kind.as_str(), active.node, active.began);
        }
        Ok(())
    }

    fn done(&mut self, kind: &str, node: usize, began: u64) {
        let node = self.node(node).name().to_owned();
        self.log.push(Fault { kind: kind.to_owned(), node, began, ended: clock::now(), promotion: None });
    }

    fn pause(&mut self, from: u64, to: u64) {
        thread::sleep(Duration::from_millis(self.random.random_range(from..to)));
    }

    fn node(&self, index: usize) -> &Node {
        node(&self.cluster, index)
    }
}

/// Node 0 is the one made as the primary.
pub(crate) fn node(cluster: &Cluster, index: usize) -> &Node {
    match index.checked_sub(1) {
        None => cluster.primary(),
        Some(replica) => cluster.replica(replica),
    }
}

/// Ends about half of the clients' sessions.
fn cut(node: &Node) -> Result<(), Error> {
    let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND application_name <> 'read-router-testkit' AND random() < 0.5";
    node.sql(sql).map(drop)
}

/// All registers.
pub(crate) const REGISTERS: &str = "SELECT id, version, tag FROM register";

/// The registers that a statement returns.
pub(crate) fn registers(node: &Node, sql: &str) -> Result<Vec<Value>, Error> {
    let number = |text: &Option<String>| text.as_deref().and_then(|text| text.parse().ok()).unwrap_or(u64::MAX);
    let value = |row: &Vec<Option<String>>| Value {
        register: u16::try_from(number(&row[0])).unwrap_or(u16::MAX),
        version: number(&row[1]),
        tag: number(&row[2]),
    };
    Ok(node.sql(sql)?.iter().map(value).collect())
}
