//! Whether one node may serve a read, and why not.

use std::{fmt, time::Duration};

use crate::{
    ClassName, Need, NodeId, PrimaryReason, ReadClass, Route, Session, Standing, Time, Topology,
    floor::Floor,
    mutants::{Rule, is_off},
    select,
    topology::Node,
};

/// Why a node cannot serve a read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unfit {
    /// It does not answer, or not as a replica of this cluster: see its [`Standing`].
    Down,
    /// The call has failed on it already.
    Failed,
    /// It does not serve the class.
    Class,
    /// It is not in the group.
    Group,
    /// Its timeline is not visible to this role.
    Timeline,
    /// The session's last contact with the primary is not resolved yet: a later answer of the primary will tell what the
    /// node must have.
    Unresolved,
    /// The session's last read on another replica is not resolved yet: a later answer of that one, or of the primary,
    /// will tell.
    Moved,
    /// It has not replayed what the session must see, as far as it has said.
    Behind,
    /// The same, and it lags by more than ten times the wait budget, as one whose replay is paused does: it is not waited
    /// for.
    FarBehind,
    /// It is the primary, which may not show yet what a replica has shown the session.
    Unsettled,
    /// Its last answer proves too little by now; a new one may do.
    Freshness,
    /// It lagged by more than the bound when it last answered.
    Lagging,
}

impl Unfit {
    pub(crate) const fn bit(self) -> u16 {
        1 << self as u16
    }

    /// The name in events and statistics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Failed => "failed",
            Self::Class => "class",
            Self::Group => "group",
            Self::Timeline => "timeline",
            Self::Unresolved => "unresolved",
            Self::Moved => "moved",
            Self::Behind => "behind",
            Self::FarBehind => "far_behind",
            Self::Unsettled => "unsettled",
            Self::Freshness => "freshness",
            Self::Lagging => "lagging",
        }
    }

    const fn explain(self) -> &'static str {
        match self {
            Self::Down => "does not serve",
            Self::Failed => "has failed this call already",
            Self::Class => "does not serve this class",
            Self::Group => "is not in the group",
            Self::Timeline => "its timeline is not visible to this role; grant it pg_monitor",
            Self::Unresolved => "the primary has not answered since the session's last statement there",
            Self::Moved => "the session's last read on another replica is not resolved yet",
            Self::Behind => "has not replayed what the session must see",
            Self::FarBehind => "has not replayed what the session must see, and lags too far to be waited for",
            Self::Unsettled => "may not show yet what a replica has shown the session",
            Self::Freshness => "its last answer is too old to prove the bound",
            Self::Lagging => "lags by more than the bound",
        }
    }
}

/// What would be chosen for a read at one moment, and why. It prints as a few lines of text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// What [`select`] answers. Of several nodes that would do it names one that a draw led to.
    pub route: Route,
    /// Each replica.
    pub nodes: Vec<Verdict>,
}

/// What keeps one replica from serving a read, if anything does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// Which.
    pub node: NodeId,
    /// What it may serve at all.
    pub standing: Standing,
    /// Why it cannot serve this read now; `None` if it can, unless the session as a whole is kept on the primary.
    pub unfit: Option<Unfit>,
    /// Everything acknowledged longer ago than this is there; `None` if no kept sample says so.
    pub staleness: Option<Duration>,
}

/// Explains what [`select`] would choose, from the same arguments.
#[must_use]
pub fn explain(topology: &Topology, need: &Need<'_>, now: Time, draw: u64) -> Explanation {
    let nodes = topology.nodes().iter().enumerate().skip(1);
    let nodes = nodes.filter_map(|(index, node)| {
        let id = NodeId(u16::try_from(index).ok()?);
        Some(Verdict {
            node: id,
            standing: node.standing(),
            unfit: judge(topology, node, id, need, now).err(),
            staleness: node.covered().map(|covered| now.since(covered)),
        })
    });
    Explanation { route: select(topology, need, now, draw), nodes: nodes.collect() }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let because = |reason: PrimaryReason| format!("{} ({})", reason.as_str(), reason.explain());
        match self.route {
            Route::Replica(node, _) => write!(f, "{node}: proven good enough")?,
            Route::Primary(reason) => write!(f, "primary: {}", because(reason))?,
            Route::Refused(reason) => write!(f, "an error: {}", because(reason))?,
            Route::Wait { .. } => write!(f, "a wait for newer answers, then a replica or the primary")?,
        }
        for verdict in &self.nodes {
            write!(f, "\n  {}: ", verdict.node)?;
            match verdict.unfit {
                None => write!(f, "would do")?,
                Some(Unfit::Down) => write!(f, "does not serve: {}", verdict.standing.as_str())?,
                Some(unfit) => write!(f, "{}: {}", unfit.as_str(), unfit.explain())?,
            }
            match verdict.staleness {
                Some(staleness) => write!(f, "; at most {} ms stale", staleness.as_millis())?,
                None => write!(f, "; staleness unknown")?,
            }
        }
        Ok(())
    }
}

pub(crate) fn judge(topology: &Topology, node: &Node, id: NodeId, need: &Need<'_>, now: Time) -> Result<(), Unfit> {
    if need.exclude == Some(id) {
        return Err(Unfit::Failed);
    }
    let (config, class) = (node.config(), need.read.class());
    if !config.classes.contains(ClassName::from(Some(class))) {
        return Err(Unfit::Class);
    }
    if need.read.group().is_some_and(|group| config.group.as_deref() != Some(group)) {
        return Err(Unfit::Group);
    }
    let standing = node.standing();
    if standing == Standing::Hidden {
        return Err(Unfit::Timeline);
    }
    if !standing.serves() || now > node.answers_until() {
        return Err(Unfit::Down);
    }
    match class {
        ReadClass::Eventual => Ok(()),
        _ if standing == Standing::Unproven => Err(Unfit::Timeline),
        ReadClass::SecondsStale(_) if standing == Standing::SamePrimary => Ok(()),
        ReadClass::SecondsStale(bound) => is_fresh(topology, node, bound, now),
        ReadClass::MustSeeMyWrite => has_all(topology, node, id, need.session).map_err(|unfit| match unfit {
            Unfit::Behind if is_far_behind(topology, node, need) => Unfit::FarBehind,
            unfit => unfit,
        }),
    }
}

/// Whether the node lags by so many wait budgets that waiting for it would only be added to the read on the primary.
///
/// A guess, and one that costs offload at most: a replica may catch up at once. It is waited for again as soon as it lags
/// by less.
fn is_far_behind(topology: &Topology, node: &Node, need: &Need<'_>) -> bool {
    let far = need.read.budget(need.config).saturating_mul(FAR_BEHIND);
    // Where no kept sample is covered, it lags by more than the oldest is old. Counted up to the newest sample: where nobody
    // has asked for long, an old answer does not say that it lags.
    let since = node.covered().or_else(|| topology.oldest_sample().map(|sample| sample.sent_at));
    let lag = topology.newest_sample().zip(since).map(|(newest, since)| newest.sent_at.since(since));
    node.standing() == Standing::Replica && !far.is_zero() && lag.is_some_and(|lag| lag > far)
}

/// So many wait budgets.
const FAR_BEHIND: u32 = 10;

/// Whether the node has everything acknowledged more than `bound` ago.
fn is_fresh(topology: &Topology, node: &Node, bound: Duration, now: Time) -> Result<(), Unfit> {
    let covered = node.covered().ok_or(Unfit::Lagging)?;
    if now.since(covered) <= bound {
        return Ok(());
    }
    // Was it the observation that is old, or did the node lag when it made it?
    let seen = node.observation().ok_or(Unfit::Down)?;
    let lagged = seen.sent_at.since(covered) > bound
        && topology.newest_sample().is_some_and(|s| s.lsn > seen.lsn && s.sent_at.since(covered) > bound);
    Err(if lagged { Unfit::Lagging } else { Unfit::Freshness })
}

/// Whether the node has everything that the session has committed or been shown.
fn has_all(topology: &Topology, node: &Node, id: NodeId, session: &Session) -> Result<(), Unfit> {
    let seen = node.observation().ok_or(Unfit::Down)?;
    let Some(reached) = node.reached() else { return Err(Unfit::Timeline) };
    if node.standing() == Standing::SamePrimary {
        session.admits(topology, reached.branch).map_err(|_| Unfit::Behind)?;
        return if session.is_settled(topology, reached.branch) { Ok(()) } else { Err(Unfit::Unsettled) };
    }
    if !session.dirty().is_empty() {
        return Err(Unfit::Unresolved);
    }
    let is_life = |epoch| epoch == seen.epoch || is_off(Rule::SameLife);
    let elsewhere = |f: &&Floor| f.node != id || !is_life(f.epoch);
    for floor in session.floors().iter().filter(elsewhere) {
        match floor.passed() {
            Some(at) if topology.covers(reached, at) => {}
            Some(at) if topology.first_sample_after(at.branch, floor.ended_at).is_some() => {
                return Err(Unfit::Behind);
            }
            _ => return Err(Unfit::Moved),
        }
    }
    if session.positions().all(|floor| topology.covers(reached, floor)) { Ok(()) } else { Err(Unfit::Behind) }
}
