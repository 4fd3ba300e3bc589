//! What the router has done, and what it knows.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::{InFlight, Lsn, NodeId, PrimaryReason, ReadClass, Standing, StatementCount, Time, Timeline, Topology};

/// The class of a read without its parameter, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClassName {
    /// No class: a write, or a read that nobody has decided about.
    None,
    /// [`ReadClass::MustSeeMyWrite`].
    MustSeeMyWrite,
    /// [`ReadClass::SecondsStale`].
    SecondsStale,
    /// [`ReadClass::Eventual`].
    Eventual,
}

impl ClassName {
    /// All of them, in the order of their values.
    pub const ALL: [Self; 4] = [Self::None, Self::MustSeeMyWrite, Self::SecondsStale, Self::Eventual];

    /// The name in events and statistics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::MustSeeMyWrite => "must_see_my_write",
            Self::SecondsStale => "seconds_stale",
            Self::Eventual => "eventual",
        }
    }
}

impl From<Option<ReadClass>> for ClassName {
    fn from(class: Option<ReadClass>) -> Self {
        match class {
            None => Self::None,
            Some(ReadClass::MustSeeMyWrite) => Self::MustSeeMyWrite,
            Some(ReadClass::SecondsStale(_)) => Self::SecondsStale,
            Some(ReadClass::Eventual) => Self::Eventual,
        }
    }
}

/// A snapshot of the counters since the start, and of the topology at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Calls served by the primary, by class and reason; only those that occurred.
    pub primary: Vec<PrimaryCount>,
    /// Each node, the configured primary first.
    pub nodes: Vec<NodeStats>,
    /// Reads that waited for an observation before they were sent.
    pub waits: u64,
    /// How long they waited in all.
    pub waited: Duration,
    /// Reads with a class that the primary served because no replica could.
    pub fallbacks: u64,
    /// Reads that got an error because no replica could serve them and the caller wanted no fallback.
    pub refused: u64,
    /// Statements that passed for reads and that a replica refused as writes.
    pub misrouted: u64,
    /// Reads that failed on a replica in a way that another server may not.
    pub replica_failures: u64,
    /// Reads whose proof came from a sample on their own connection, since it was younger than the last
    /// observation.
    pub own_samples: u64,
    /// Times that a session was told of commits that a failover may have lost.
    pub branch_lost: u64,
    /// Probes sent.
    pub probes: u64,
    /// Reads that nobody has decided about, by shape, the most frequent first: what to annotate next.
    pub unannotated: Vec<StatementCount>,
    /// Statements that passed for reads and that a replica refused as writes, by shape: they go to the primary from then
    /// on; call them with `on_primary()`, or pin what of their [`names`](StatementCount::names) is at fault.
    pub misrouted_statements: Vec<StatementCount>,
}

/// Calls of one class that the primary served for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrimaryCount {
    /// The class asked for.
    pub class: ClassName,
    /// Why the primary.
    pub reason: PrimaryReason,
    /// How many.
    pub count: u64,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStats {
    /// Which.
    pub node: NodeId,
    /// What it may serve, or why it is out.
    pub standing: Standing,
    /// Reads that it served as a replica, by class in the order of [`ClassName::ALL`].
    pub reads: [u64; 4],
    /// Reads under way on it.
    pub in_flight: u32,
    /// Its last known position.
    pub position: Option<Lsn>,
    /// Its last known timeline.
    pub timeline: Option<Timeline>,
    /// Bytes of log that it was behind the newest primary sample at its last answer.
    pub bytes_behind: Option<u64>,
    /// Everything acknowledged longer ago than this is there.
    pub staleness: Option<Duration>,
    /// Time since its last answer.
    pub last_answer: Option<Duration>,
}

impl NodeStats {
    /// Reads of this class that the node served as a replica.
    #[must_use]
    pub fn reads_of(&self, class: ClassName) -> u64 {
        self.reads[class as usize]
    }
}

impl Stats {
    /// Reads served by replicas.
    #[must_use]
    pub fn replica_reads(&self) -> u64 {
        self.nodes.iter().flat_map(|n| n.reads).sum()
    }

    /// Calls of any class that the primary served for this reason.
    #[must_use]
    pub fn primary_for(&self, reason: PrimaryReason) -> u64 {
        self.primary.iter().filter(|p| p.reason == reason).map(|p| p.count).sum()
    }

    /// Reads of this class that the primary served, for whatever reason.
    #[must_use]
    pub fn primary_of(&self, class: ClassName) -> u64 {
        self.primary.iter().filter(|p| p.class == class).map(|p| p.count).sum()
    }
}

const CLASSES: usize = ClassName::ALL.len();
const REASONS: usize = PrimaryReason::ALL.len();

/// The counters behind [`Stats`]; counting allocates nothing and takes no lock.
#[derive(Debug)]
pub struct Counters {
    primary: [[AtomicU64; REASONS]; CLASSES],
    nodes: Box<[[AtomicU64; CLASSES]]>,
    waits: AtomicU64,
    waited_nanos: AtomicU64,
    refused: AtomicU64,
    misrouted: AtomicU64,
    replica_failures: AtomicU64,
    own_samples: AtomicU64,
    branch_lost: AtomicU64,
    probes: AtomicU64,
}

impl Counters {
    /// Counters for as many nodes as the topology has.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        Self {
            primary: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            nodes: (0..nodes).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect(),
            waits: AtomicU64::new(0),
            waited_nanos: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            misrouted: AtomicU64::new(0),
            replica_failures: AtomicU64::new(0),
            own_samples: AtomicU64::new(0),
            branch_lost: AtomicU64::new(0),
            probes: AtomicU64::new(0),
        }
    }

    /// The primary serves a call; returns how many it has served for this class and reason.
    pub fn primary(&self, class: Option<ReadClass>, reason: PrimaryReason) -> u64 {
        self.primary[ClassName::from(class) as usize][reason as usize].fetch_add(1, Relaxed) + 1
    }

    /// A replica served a read.
    pub fn replica(&self, class: Option<ReadClass>, node: NodeId) {
        if let Some(counts) = self.nodes.get(node.index()) {
            counts[ClassName::from(class) as usize].fetch_add(1, Relaxed);
        }
    }

    /// A read waited this long for an observation.
    pub fn waited(&self, time: Duration) {
        self.waits.fetch_add(1, Relaxed);
        self.waited_nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// A read got an error in place of a fallback.
    pub fn refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// A replica refused a statement as a write.
    pub fn misrouted(&self) {
        self.misrouted.fetch_add(1, Relaxed);
    }

    /// A read failed on a replica.
    pub fn replica_failed(&self) {
        self.replica_failures.fetch_add(1, Relaxed);
    }

    /// A sample was taken on a read's own connection.
    pub fn own_sample(&self) {
        self.own_samples.fetch_add(1, Relaxed);
    }

    /// A session was told of a possible loss.
    pub fn branch_lost(&self) {
        self.branch_lost.fetch_add(1, Relaxed);
    }

    /// A probe was sent.
    pub fn probe(&self) {
        self.probes.fetch_add(1, Relaxed);
    }

    /// The numbers at this moment, each for itself: they are not cut at one instant. The statements are not counted here:
    /// see [`StatementTally`](crate::StatementTally).
    #[must_use]
    pub fn snapshot(&self, topology: &Topology, in_flight: &InFlight, now: Time) -> Stats {
        let primary: Vec<_> = ClassName::ALL
            .iter()
            .flat_map(|class| PrimaryReason::ALL.iter().map(move |reason| (*class, *reason)))
            .map(|(class, reason)| PrimaryCount {
                class,
                reason,
                count: self.primary[class as usize][reason as usize].load(Relaxed),
            })
            .filter(|p| p.count > 0)
            .collect();
        Stats {
            fallbacks: primary.iter().filter(|p| is_fallback(p)).map(|p| p.count).sum(),
            primary,
            nodes: (0..topology.nodes().len())
                .filter_map(|index| self.node(NodeId(u16::try_from(index).ok()?), topology, in_flight, now))
                .collect(),
            waits: self.waits.load(Relaxed),
            waited: Duration::from_nanos(self.waited_nanos.load(Relaxed)),
            refused: self.refused.load(Relaxed),
            misrouted: self.misrouted.load(Relaxed),
            replica_failures: self.replica_failures.load(Relaxed),
            own_samples: self.own_samples.load(Relaxed),
            branch_lost: self.branch_lost.load(Relaxed),
            probes: self.probes.load(Relaxed),
            unannotated: Vec::new(),
            misrouted_statements: Vec::new(),
        }
    }

    fn node(&self, id: NodeId, topology: &Topology, in_flight: &InFlight, now: Time) -> Option<NodeStats> {
        let node = topology.node(id)?;
        let seen = node.observation();
        let newest = topology.newest_sample();
        let comparable = newest.zip(seen).filter(|(sample, seen)| seen.branch() == Some(sample.branch));
        Some(NodeStats {
            node: id,
            standing: node.standing(),
            reads: std::array::from_fn(|class| self.nodes.get(id.index()).map_or(0, |n| n[class].load(Relaxed))),
            in_flight: in_flight.count(id),
            position: seen.map(|o| o.lsn),
            timeline: seen.and_then(|o| o.timeline),
            bytes_behind: comparable.map(|(sample, seen)| seen.lsn.bytes_behind(sample.lsn)),
            staleness: node.covered().map(|covered| now.since(covered)),
            last_answer: seen.map(|o| now.since(o.received_at)),
        })
    }
}

fn is_fallback(count: &PrimaryCount) -> bool {
    use PrimaryReason as R;
    let by_nature = [R::NotARead, R::Unannotated, R::Asked, R::Transaction];
    count.class != ClassName::None && !by_nature.contains(&count.reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_at_their_own_place() {
        for (index, reason) in PrimaryReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index, "{reason:?}");
        }
        for (index, class) in ClassName::ALL.iter().enumerate() {
            assert_eq!(*class as usize, index, "{class:?}");
        }
    }
}
