//! The decision.

use std::time::Duration;

use crate::{
    Ask, BranchLost, Config, Fallback, InFlight, NodeId, PrimaryReason, Proof, ReadClass, ReadOptions, Route, Session,
    Standing, Time, Topology,
    choice::TwoChoices,
    topology::Node,
    verdict::{Unfit, judge},
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
    if let Some(reason) = need.blocked(now) {
        return need.primary(reason);
    }
    let mut best = TwoChoices::new(draw, topology.weighs_alike());
    let mut shortfall = Shortfall::default();
    let mut last = None;
    for (index, node) in topology.nodes().iter().enumerate().skip(1) {
        let id = NodeId::from_index(index);
        let config = node.config();
        match judge(topology, node, id, need, now) {
            Ok(()) if need.session.preferred().is_some_and(|p| is_same_life(node, id, p)) => {
                if topology.serves_alike() {
                    return replica(node, id, need.session);
                }
                last = Some((id, node, config.classes.len()));
            }
            Ok(()) => best.offer(id, config.classes.len(), config.weight, need.in_flight),
            Err(unfit) => shortfall.add(unfit),
        }
    }
    if let Some((id, node, _)) = last.filter(|(.., rank)| *rank <= best.rank()) {
        return replica(node, id, need.session);
    }
    match best.winner().and_then(|id| Some((id, topology.node(id)?))) {
        Some((id, node)) => replica(node, id, need.session),
        None => need.without_replica(topology, shortfall, now),
    }
}

impl Need<'_> {
    pub(crate) fn is_strict(&self) -> bool {
        matches!(self.read.class(), ReadClass::MustSeeMyWrite)
    }

    /// What keeps the read from every replica.
    pub(crate) fn blocked(&self, now: Time) -> Option<PrimaryReason> {
        if !self.is_strict() {
            return self.session.has_just_written(now).then_some(PrimaryReason::RecentWrite);
        }
        if self.session.is_unknown() {
            Some(PrimaryReason::UnknownSession)
        } else if self.session.has_doubts() {
            Some(PrimaryReason::InDoubt)
        } else if self.session.has_given_out() {
            Some(PrimaryReason::GivenOut)
        } else {
            None
        }
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
        // No observation is of this very moment.
        let is_hopeless = self.read.class() == ReadClass::SecondsStale(Duration::ZERO);
        match shortfall.ask().filter(|_| !is_hopeless) {
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
            lsn: node.reached().map_or(seen.lsn, |reached| reached.lsn),
            covered: node.covered(),
            is_primary: node.standing() == Standing::SamePrimary,
            same_life: session.floors().iter().any(|f| (f.node, f.epoch) == (id, seen.epoch)),
        },
    )
}

/// What the nodes together lacked: the one that came nearest says the reason.
#[derive(Clone, Copy, Debug, Default)]
struct Shortfall(u16);

impl Shortfall {
    fn add(&mut self, unfit: Unfit) {
        self.0 |= unfit.bit();
    }

    fn has(self, unfit: Unfit) -> bool {
        self.0 & unfit.bit() != 0
    }

    fn is_behind(self) -> bool {
        self.has(Unfit::Behind) || self.has(Unfit::FarBehind)
    }

    /// Whose observation may help; `None` if none can.
    fn ask(self) -> Option<Ask> {
        if self.has(Unfit::Freshness) || self.has(Unfit::Unsettled) {
            Some(Ask::All)
        } else if self.has(Unfit::Unresolved) {
            Some(Ask::Primary)
        } else if self.has(Unfit::Moved) {
            // The node's next answer, or, if its life is over, the primary's.
            Some(Ask::All)
        } else if self.has(Unfit::Behind) {
            Some(Ask::Replicas)
        } else {
            None
        }
    }

    fn reason(self) -> PrimaryReason {
        if self.has(Unfit::Freshness) || self.has(Unfit::Lagging) {
            PrimaryReason::TooStale
        } else if self.has(Unfit::Unresolved) || self.has(Unfit::Moved) && !self.is_behind() {
            PrimaryReason::Unresolved
        } else if self.is_behind() {
            PrimaryReason::Behind
        } else if self.has(Unfit::Unsettled) {
            PrimaryReason::Unsettled
        } else if self.has(Unfit::Timeline) {
            PrimaryReason::Unproven
        } else if self.has(Unfit::Down) || self.has(Unfit::Failed) {
            PrimaryReason::NoneUp
        } else {
            PrimaryReason::NoReplica
        }
    }
}
