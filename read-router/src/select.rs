//! The decision.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use crate::{
    Ask, BranchLost, Config, Fallback, NodeId, PrimaryReason, Proof, ReadClass, ReadOptions, Route, Session, Standing,
    Time, Topology,
    mutants::{Rule, is_off},
    topology::Node,
};

#[cfg(test)]
mod tests;

/// What one read needs.
#[derive(Clone, Copy, Debug)]
pub struct Need<'a> {
    /// The class, its wait budget and its fallback.
    pub read: ReadOptions,
    /// The session that reads, [resolved](Session::resolve) against the same topology.
    pub session: &'a Session,
    /// When the call came: the wait budget counts from here.
    pub started: Time,
    /// A node on which this call has failed already.
    pub exclude: Option<NodeId>,
    /// How busy each node is.
    pub in_flight: &'a InFlight,
    /// The default wait budgets.
    pub config: &'a Config,
}

/// Chooses where a read goes, from plain values alone.
///
/// A replica is chosen only if it is proven to have what the need asks for. Of the proven ones the session's
/// last is kept if the session is sticky; else two are drawn and the less busy one is taken, which spreads
/// the load evenly without a shared counter. `draw` is any random number.
#[must_use]
pub fn select(topology: &Topology, need: &Need<'_>, now: Time, draw: u64) -> Route {
    if topology.nodes().len() < 2 {
        return need.primary(PrimaryReason::NoReplica);
    }
    if need.is_strict()
        && let Some(reason) = blocked(need.session)
    {
        return need.primary(reason);
    }
    let mut best = TwoChoices::new(draw);
    let mut shortfall = Shortfall::default();
    for (index, node) in topology.nodes().iter().enumerate().skip(1) {
        let id = NodeId(u16::try_from(index).unwrap_or(u16::MAX));
        if need.exclude == Some(id) {
            continue;
        }
        match judge(topology, node, id, need, now) {
            Ok(()) if need.session.preferred().is_some_and(|p| is_same_life(node, id, p)) => {
                return replica(node, id, need.session);
            }
            Ok(()) => best.offer(id, need.in_flight),
            Err(missing) => shortfall.add(missing),
        }
    }
    match best.winner().and_then(|id| Some((id, topology.node(id)?))) {
        Some((id, node)) => replica(node, id, need.session),
        None => need.without_replica(topology, shortfall, now),
    }
}

impl Need<'_> {
    fn is_strict(&self) -> bool {
        matches!(self.read.class(), ReadClass::MustSeeMyWrite)
    }

    fn primary(&self, reason: PrimaryReason) -> Route {
        match self.read.fallback() {
            Fallback::Primary => Route::Primary(reason),
            Fallback::Error => Route::Refused(reason),
        }
    }

    fn without_replica(&self, topology: &Topology, shortfall: Shortfall, now: Time) -> Route {
        let until = self.started + self.read.budget(self.config);
        if let Some(reason) = self.lost(topology) {
            return self.primary(reason);
        }
        match shortfall.ask() {
            // The primary may have to serve in the end.
            Some(_) if now < until && !self.is_settled(topology) => Route::Wait { until, ask: Ask::All },
            Some(ask) if now < until => Route::Wait { until, ask },
            _ => self.primary(shortfall.reason()),
        }
    }

    fn is_settled(&self, topology: &Topology) -> bool {
        topology.surviving().is_none_or(|surviving| self.session.is_settled(topology, surviving))
    }

    /// Why the session waits for what no server of the surviving branch can ever prove, if it does.
    fn lost(&self, topology: &Topology) -> Option<PrimaryReason> {
        let surviving = topology.surviving().filter(|_| self.is_strict())?;
        match self.session.admits(topology, surviving).err()? {
            BranchLost::OtherCluster { .. } => Some(PrimaryReason::ForeignToken),
            BranchLost::Discarded { .. } => Some(PrimaryReason::BranchLost),
            // The newer branch may yet be seen.
            BranchLost::OldPrimary { .. } => None,
        }
    }
}

/// What keeps a session's strict reads from every replica.
fn blocked(session: &Session) -> Option<PrimaryReason> {
    if session.is_unknown() {
        Some(PrimaryReason::UnknownSession)
    } else if session.has_doubts() {
        Some(PrimaryReason::InDoubt)
    } else if session.has_given_out() {
        Some(PrimaryReason::GivenOut)
    } else {
        None
    }
}

/// Why one node cannot serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// It is not up, or not one of ours.
    Node,
    /// Its timeline.
    Timeline,
    /// A primary sample after the session's last contact.
    Sample,
    /// An observation of the node on which the session has read, sent after that read.
    Floor,
    /// Replay.
    Replay,
    /// What replicas have shown, on the primary itself.
    Settled,
    /// A fresher proof; a newer observation may bring it.
    Freshness,
    /// It was behind by more than the bound when it last answered.
    Lagging,
}

fn judge(topology: &Topology, node: &Node, id: NodeId, need: &Need<'_>, now: Time) -> Result<(), Missing> {
    let standing = node.standing();
    if standing == Standing::Hidden {
        return Err(Missing::Timeline);
    }
    if !standing.serves() || now > node.answers_until() {
        return Err(Missing::Node);
    }
    match need.read.class() {
        ReadClass::Eventual => Ok(()),
        _ if standing == Standing::Unproven => Err(Missing::Timeline),
        ReadClass::SecondsStale(_) if standing == Standing::SamePrimary => Ok(()),
        ReadClass::SecondsStale(bound) => is_fresh(topology, node, bound, now),
        ReadClass::MustSeeMyWrite => has_all(topology, node, id, need.session),
    }
}

/// Whether the node has everything acknowledged more than `bound` ago.
fn is_fresh(topology: &Topology, node: &Node, bound: Duration, now: Time) -> Result<(), Missing> {
    let covered = node.covered().ok_or(Missing::Lagging)?;
    if now.since(covered) <= bound {
        return Ok(());
    }
    // Was it the observation that is old, or did the node lag when it made it?
    let seen = node.observation().ok_or(Missing::Node)?;
    let lagged = seen.sent_at.since(covered) > bound
        && topology.newest_sample().is_some_and(|s| s.lsn > seen.lsn && s.sent_at.since(covered) > bound);
    Err(if lagged { Missing::Lagging } else { Missing::Freshness })
}

/// Whether the node has everything that the session has committed or been shown.
fn has_all(topology: &Topology, node: &Node, id: NodeId, session: &Session) -> Result<(), Missing> {
    let seen = node.observation().ok_or(Missing::Node)?;
    let Some(reached) = seen.position() else { return Err(Missing::Timeline) };
    if node.standing() == Standing::SamePrimary {
        session.admits(topology, reached.branch).map_err(|_| Missing::Replay)?;
        return if session.is_settled(topology, reached.branch) { Ok(()) } else { Err(Missing::Settled) };
    }
    if !session.dirty().is_empty() {
        return Err(Missing::Sample);
    }
    let is_life = |epoch| epoch == seen.epoch || is_off(Rule::SameLife);
    let elsewhere = |f: &&crate::session::Floor| f.node != id || !is_life(f.epoch);
    for floor in session.floors().iter().filter(elsewhere) {
        match floor.passed() {
            Some(at) if topology.covers(reached, at) => {}
            Some(at) if topology.first_sample_after(at.branch, floor.ended_at).is_some() => {
                return Err(Missing::Replay);
            }
            _ => return Err(Missing::Floor),
        }
    }
    if session.positions().all(|floor| topology.covers(reached, floor)) { Ok(()) } else { Err(Missing::Replay) }
}

fn is_same_life(node: &Node, id: NodeId, preferred: (NodeId, crate::Epoch)) -> bool {
    id == preferred.0 && node.observation().is_some_and(|o| o.epoch == preferred.1)
}

fn replica(node: &Node, id: NodeId, session: &Session) -> Route {
    let Some(seen) = node.observation() else {
        // A node without an observation is never judged good.
        return Route::Primary(PrimaryReason::NoneUp);
    };
    Route::Replica(
        id,
        Proof {
            epoch: seen.epoch,
            instance: seen.instance,
            sent_at: seen.sent_at,
            branch: seen.branch(),
            lsn: seen.lsn,
            covered: node.covered(),
            is_primary: node.standing() == Standing::SamePrimary,
            same_life: session.floors().iter().any(|f| (f.node, f.epoch) == (id, seen.epoch)),
        },
    )
}

/// What the nodes together lacked: the one that came nearest says the reason.
#[derive(Clone, Copy, Debug, Default)]
struct Shortfall {
    timeline: bool,
    sample: bool,
    floor: bool,
    replay: bool,
    settled: bool,
    freshness: bool,
    lagging: bool,
}

impl Shortfall {
    fn add(&mut self, missing: Missing) {
        match missing {
            Missing::Node => {}
            Missing::Timeline => self.timeline = true,
            Missing::Sample => self.sample = true,
            Missing::Floor => self.floor = true,
            Missing::Replay => self.replay = true,
            Missing::Settled => self.settled = true,
            Missing::Freshness => self.freshness = true,
            Missing::Lagging => self.lagging = true,
        }
    }

    /// Whose observation may help; `None` if none can.
    fn ask(self) -> Option<Ask> {
        if self.freshness || self.settled {
            Some(Ask::All)
        } else if self.sample {
            Some(Ask::Primary)
        } else if self.floor {
            // The node's next answer, or, if its life is over, the primary's.
            Some(Ask::All)
        } else if self.replay {
            Some(Ask::Replicas)
        } else {
            None
        }
    }

    fn reason(self) -> PrimaryReason {
        if self.freshness || self.lagging {
            PrimaryReason::TooStale
        } else if self.sample || self.floor && !self.replay {
            PrimaryReason::Unresolved
        } else if self.replay {
            PrimaryReason::Behind
        } else if self.settled {
            PrimaryReason::Unsettled
        } else if self.timeline {
            PrimaryReason::Unproven
        } else {
            PrimaryReason::NoneUp
        }
    }
}

/// Reads under way on each node, counted by whoever runs them.
#[derive(Debug, Default)]
pub struct InFlight(Box<[AtomicU32]>);

impl InFlight {
    /// Counters for as many nodes as the topology has.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        Self((0..nodes).map(|_| AtomicU32::new(0)).collect())
    }

    /// A read on the node begins.
    pub fn begin(&self, node: NodeId) {
        if let Some(count) = self.0.get(node.index()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A read on the node that [began](Self::begin) is over.
    pub fn end(&self, node: NodeId) {
        if let Some(count) = self.0.get(node.index()) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Reads under way on the node.
    #[must_use]
    pub fn count(&self, node: NodeId) -> u32 {
        self.0.get(node.index()).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

/// The power of two choices in one pass: two of the offered nodes, each pair as likely as any other, of
/// which the less busy wins.
struct TwoChoices {
    random: u64,
    offered: u64,
    first: Option<(NodeId, u32)>,
    second: Option<(NodeId, u32)>,
}

impl TwoChoices {
    fn new(draw: u64) -> Self {
        Self { random: draw, offered: 0, first: None, second: None }
    }

    /// Reservoir sampling: the n-th offer takes one of the two places with probability 2/n.
    fn offer(&mut self, node: NodeId, busy: &InFlight) {
        self.offered += 1;
        let offer = Some((node, busy.count(node)));
        if self.first.is_none() {
            self.first = offer;
        } else if self.second.is_none() {
            self.second = offer;
        } else {
            match self.below(self.offered) {
                0 => self.first = offer,
                1 => self.second = offer,
                _ => {}
            }
        }
    }

    fn winner(mut self) -> Option<NodeId> {
        let (Some(first), Some(second)) = (self.first, self.second) else {
            return self.first.map(|(node, _)| node);
        };
        let take_first = match first.1.cmp(&second.1) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Greater => false,
            std::cmp::Ordering::Equal => self.below(2) == 0,
        };
        Some(if take_first { first.0 } else { second.0 })
    }

    /// A number below `bound`, by a multiplication where a division would cost most of the choice.
    fn below(&mut self, bound: u64) -> u64 {
        ((self.next_random() >> 32) * bound) >> 32
    }

    /// SplitMix64: one draw is stretched into as many as there are nodes.
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}
