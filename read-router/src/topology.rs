//! What is known of all servers at one moment.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    Branch, Config, Epoch, Failure, Instance, Lsn, NodeId, Observation, Position, ReplicaConfig, Role, Sample,
    SystemId, Time, Timeline,
    mutants::{Rule, is_off},
    samples::Samples,
    visible::Visible,
};

/// An immutable picture of all servers, made of observations that are never wrong, only old.
///
/// The [`Monitor`](crate::Monitor) makes the next one from each answer; readers share the newest. A stale
/// picture costs offload, never correctness.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    nodes: Vec<Node>,
    weighs_alike: bool,
    serves_alike: bool,
    system: Option<SystemId>,
    highest: Option<Timeline>,
    highest_since: Time,
    highest_seen: Time,
    samples: Samples,
    switches: Vec<Switch>,
    visible: Visible,
    observation_lifetime: Duration,
}

/// What is known of one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    config: ReplicaConfig,
    observation: Option<Observation>,
    epoch: Option<Epoch>,
    database: Option<u32>,
    failure: Option<(Failure, Time)>,
    suspect_since: Option<Time>,
    quarantined: Option<Branch>,
    /// The last position of this life of which it is known on which line of history it lies.
    reached: Option<(Epoch, Position)>,
    covered: Option<Time>,
    answers_until: Time,
    instance_since: Time,
    standing: Standing,
}

/// What a node may serve at all, whatever the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Standing {
    /// A replica on the surviving line of history, known to be there.
    Replica,
    /// A replica that may be there, but whose timeline is not proven: `Eventual` only.
    Unproven,
    /// The primary itself under another name: the same cluster, branch and instance.
    SamePrimary,
    /// Not probed yet.
    Unseen,
    /// Not answering.
    Down(Failure),
    /// A read failed on it since the last answer.
    Suspect,
    /// A server of another cluster.
    ForeignCluster,
    /// Another database of the cluster than the primary's URL names.
    OtherDatabase,
    /// A primary, but not the one that the configuration names.
    OtherPrimary,
    /// A replica that may have replayed what the surviving line of history does not have.
    Discarded,
    /// A replica of which only the control file says that it is on an older timeline, which lags behind a
    /// promotion: it may or may not be discarded. A role with `pg_monitor` would see.
    Hidden,
    /// A replica that was ahead of its primary, which is impossible on one history.
    Quarantined,
}

impl Standing {
    /// The name in events and statistics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Replica => "replica",
            Self::Unproven => "unproven_timeline",
            Self::SamePrimary => "same_primary",
            Self::Unseen => "unseen",
            Self::Down(failure) => failure.as_str(),
            Self::Suspect => "suspect",
            Self::ForeignCluster => "foreign_cluster",
            Self::OtherDatabase => "other_database",
            Self::OtherPrimary => "other_primary",
            Self::Discarded => "discarded_branch",
            Self::Hidden => "hidden_timeline",
            Self::Quarantined => "quarantined",
        }
    }

    /// Whether reads of some class may go there.
    #[must_use]
    pub const fn serves(self) -> bool {
        matches!(self, Self::Replica | Self::Unproven | Self::SamePrimary)
    }
}

/// A newer timeline that nobody has answered on for this long, while the configured primary answers on an older one,
/// was a stray.
const STRAY_TIMELINE: Duration = Duration::from_secs(10);

/// A node that was a replica at `reached` on one timeline and later, in the same life, stood on another:
/// the second branched off the first at or after that position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Switch {
    from: Timeline,
    to: Timeline,
    reached: Lsn,
}

impl Node {
    fn new(config: ReplicaConfig) -> Self {
        Self {
            config,
            observation: None,
            epoch: None,
            database: None,
            failure: None,
            suspect_since: None,
            quarantined: None,
            reached: None,
            covered: None,
            answers_until: Time::default(),
            instance_since: Time::default(),
            standing: Standing::Unseen,
        }
    }

    /// What it serves; of the primary it says nothing.
    pub(crate) fn config(&self) -> &ReplicaConfig {
        &self.config
    }

    /// The last answer; still there when the node went down since.
    #[must_use]
    pub fn observation(&self) -> Option<&Observation> {
        self.observation.as_ref()
    }

    /// The life of the node that is watched now; `None` while no probe connection to it is open.
    #[must_use]
    pub fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    /// What the node may serve.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// When the server that answered last was first seen here: a connection to another one that was opened before
    /// leads to where the name pointed then.
    #[must_use]
    pub fn instance_since(&self) -> Time {
        self.instance_since
    }

    /// Where the node certainly is, or was: what counts for what it has.
    ///
    /// A replica whose own word on its timeline is not to be had may say a position of a timeline that nobody has heard of.
    /// That is behind [`observation`](Self::observation) while no primary answers.
    #[must_use]
    pub fn reached(&self) -> Option<Position> {
        if is_off(Rule::OwnWord) {
            return self.observation?.position();
        }
        self.reached.map(|(_, position)| position)
    }

    /// When the last answer is too old to say that the node answers: the monitor has then stopped.
    pub(crate) fn answers_until(&self) -> Time {
        self.answers_until
    }

    /// The sending of the newest primary sample that the node has replayed: everything acknowledged
    /// before it is there. `None` if no kept sample is covered.
    #[must_use]
    pub fn covered(&self) -> Option<Time> {
        self.covered
    }
}

impl Topology {
    pub(crate) fn new(replicas: impl IntoIterator<Item = ReplicaConfig>, config: &Config) -> Self {
        let nodes: Vec<_> = std::iter::once(ReplicaConfig::new()).chain(replicas).map(Node::new).collect();
        let mut weights = nodes.iter().skip(1).map(|node| node.config.weight);
        let first = weights.next();
        let mut classes = nodes.iter().skip(1).map(|node| node.config.classes);
        let these = classes.next();
        Self {
            weighs_alike: weights.all(|weight| Some(weight) == first),
            serves_alike: classes.all(|classes| Some(classes) == these),
            nodes,
            system: None,
            highest: None,
            highest_since: Time::default(),
            highest_seen: Time::default(),
            samples: Samples::default(),
            switches: Vec::new(),
            visible: Visible::default(),
            observation_lifetime: config.observation_lifetime(),
        }
    }

    /// All nodes, the one that the configuration calls the primary first.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Whether all replicas have the same weight.
    pub(crate) fn weighs_alike(&self) -> bool {
        self.weighs_alike
    }

    /// Whether all replicas serve the same classes.
    pub(crate) fn serves_alike(&self) -> bool {
        self.serves_alike
    }

    /// One node; `None` if the configuration has no such place.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.index())
    }

    /// The groups that replicas belong to.
    #[must_use]
    pub fn groups(&self) -> BTreeSet<&str> {
        self.nodes.iter().filter_map(|node| node.config.group.as_deref()).collect()
    }

    /// The cluster: the primary's, or, before the primary has answered, the first replica's.
    #[must_use]
    pub fn system(&self) -> Option<SystemId> {
        self.system
    }

    /// The newest timeline that a server has been seen on. It counts until no server has answered on it for ten
    /// seconds while the configured primary answers on an older one: a stray promotion passes.
    #[must_use]
    pub fn highest_timeline(&self) -> Option<Timeline> {
        self.highest
    }

    /// When the [newest timeline](Self::highest_timeline) was first seen: a connection opened before may lead to
    /// where a name pointed then.
    #[must_use]
    pub fn highest_since(&self) -> Time {
        self.highest_since
    }

    /// The newest sample of the newest line of history.
    #[must_use]
    pub fn newest_sample(&self) -> Option<&Sample> {
        self.samples.newest(self.surviving()?)
    }

    /// The oldest kept sample of the newest line of history.
    pub(crate) fn oldest_sample(&self) -> Option<&Sample> {
        self.first_sample_after(self.surviving()?, Time::default())
    }

    /// The newest line of history that is known.
    #[must_use]
    pub fn surviving(&self) -> Option<Branch> {
        Some(Branch { system: self.system?, timeline: self.highest? })
    }

    /// The first kept sample of `branch` sent strictly after `moment`.
    #[must_use]
    pub fn first_sample_after(&self, branch: Branch, moment: Time) -> Option<&Sample> {
        self.samples.first_after(branch, moment)
    }

    /// Whether the primary certainly shows every commit up to `position` that a replica may have shown.
    #[must_use]
    pub fn shows(&self, position: Position) -> bool {
        self.visible.has(position)
    }

    /// Whether every transaction below `xid` is known to have ended on the primary of `branch`.
    pub(crate) fn has_ended(&self, branch: Branch, xid: u64) -> bool {
        self.visible.has_ended(branch, xid)
    }

    /// Whether a server at `reached` certainly has everything up to `floor`.
    #[must_use]
    pub fn covers(&self, reached: Position, floor: Position) -> bool {
        floor.lsn <= reached.lsn && self.survives(floor, reached.branch)
    }

    /// Whether everything up to `position` is certainly part of `branch`'s history.
    ///
    /// Within one branch it is. Of an older timeline only what lies at or below a lower bound of the
    /// switch point is; the true switch point is not visible to an ordinary role.
    #[must_use]
    pub fn survives(&self, position: Position, branch: Branch) -> bool {
        position.branch.system == branch.system && self.reaches(position.branch.timeline, position.lsn, branch.timeline)
    }

    fn reaches(&self, from: Timeline, lsn: Lsn, to: Timeline) -> bool {
        from == to
            || self
                .switches
                .iter()
                .filter(|s| s.from == from && s.to <= to && (lsn <= s.reached || is_off(Rule::SwitchBound)))
                .any(|s| self.reaches(s.to, lsn, to))
    }

    pub(crate) fn opened(&mut self, id: NodeId, epoch: Epoch, database: u32) {
        let node = &mut self.nodes[id.index()];
        node.epoch = Some(epoch);
        node.database = Some(database);
    }

    pub(crate) fn failed(&mut self, id: NodeId, failure: Failure, at: Time) {
        let node = &mut self.nodes[id.index()];
        node.epoch = None;
        node.failure = Some((failure, at));
        self.judge();
    }

    pub(crate) fn suspect(&mut self, id: NodeId, at: Time) {
        self.nodes[id.index()].suspect_since = Some(at);
        self.judge();
    }

    /// Takes in an answer of the node's current epoch.
    pub(crate) fn observed(&mut self, id: NodeId, mut seen: Observation) {
        if let Some(before) = self.nodes[id.index()].observation.filter(|_| is_off(Rule::EpochsApart))
            && before.branch() == seen.branch()
        {
            seen.lsn = seen.lsn.max(before.lsn);
        }
        self.learn_system(id, &seen);
        self.learn_switch(id, &seen);
        self.learn_timeline(id, &seen);
        if seen.role == Role::Primary && Some(seen.instance.system) == self.system {
            self.learn_sample(id, &seen);
        }
        if let (Role::Replica, Some(position), Some(xid)) = (seen.role, seen.position(), seen.xid) {
            self.visible.shown(position, xid);
        }
        let is_known = seen.role == Role::Primary || seen.branch().is_some_and(|b| self.vouches_for(b, seen.exact));
        let node = &mut self.nodes[id.index()];
        node.reached = match seen.position() {
            Some(position) if is_known => Some((seen.epoch, position)),
            position => node.reached.filter(|(epoch, known)| {
                *epoch == seen.epoch && position.is_some_and(|position| position.branch == known.branch)
            }),
        };
        node.failure = None;
        node.suspect_since = node.suspect_since.filter(|since| seen.sent_at <= *since);
        node.quarantined = node.quarantined.filter(|branch| seen.branch() == Some(*branch));
        if node.observation.is_none_or(|before| before.instance != seen.instance) {
            node.instance_since = seen.received_at;
        }
        node.answers_until = seen.received_at + self.observation_lifetime;
        node.observation = Some(seen);
        self.judge();
    }

    /// The configured primary says which cluster this is; until it has answered, any node may.
    fn learn_system(&mut self, id: NodeId, seen: &Observation) {
        let system = seen.instance.system;
        let replaced = id.is_primary() && self.system != Some(system);
        if replaced {
            self.highest = None;
            self.switches.clear();
        }
        if replaced || self.system.is_none() {
            self.system = Some(system);
        }
    }

    fn learn_switch(&mut self, id: NodeId, seen: &Observation) {
        let Some(before) = self.nodes[id.index()].observation else { return };
        let (Some(from), Some(to)) = (before.timeline, seen.timeline) else { return };
        // Across epochs nothing is known: the node may have been rewound in between.
        let standby_moved_on = before.role == Role::Replica && before.epoch == seen.epoch && from < to;
        // Nor does the control file tell, once a newer timeline is known: it may have been there already. A promotion
        // makes a timeline above the server's own, so one that made the next was nowhere else.
        let made_the_next = seen.role == Role::Primary && from.0.checked_add(1) == Some(to.0);
        let was_there = before.exact || self.highest <= Some(from) || made_the_next;
        if !standby_moved_on || !was_there || !before.exact && seen.role == Role::Replica {
            return;
        }
        match self.switches.iter_mut().find(|s| s.from == from && s.to == to) {
            Some(known) => known.reached = known.reached.max(before.lsn),
            None => self.switches.push(Switch { from, to, reached: before.lsn }),
        }
    }

    /// A server's own word of a newer timeline counts, be it a primary's or a follower's.
    fn learn_timeline(&mut self, id: NodeId, seen: &Observation) {
        let Some(branch) = seen.branch().filter(|b| seen.exact && Some(b.system) == self.system) else { return };
        self.seen_branch(branch, seen.received_at);
        let is_configured = id.is_primary() && seen.role == Role::Primary;
        if is_configured && seen.sent_at.since(self.highest_seen) > STRAY_TIMELINE {
            self.highest = Some(branch.timeline);
            self.highest_since = seen.received_at;
            self.highest_seen = seen.received_at;
        }
    }

    /// Some server was on this branch at `at`; returns whether that is news.
    pub(crate) fn seen_branch(&mut self, branch: Branch, at: Time) -> bool {
        if Some(branch.system) != self.system || self.highest > Some(branch.timeline) {
            return false;
        }
        let is_news = self.highest < Some(branch.timeline);
        if is_news {
            self.highest = Some(branch.timeline);
            self.highest_since = at;
        }
        self.highest_seen = self.highest_seen.max(at);
        is_news
    }

    /// The node's probe connection leads to where its name pointed before: its life is over for us.
    pub(crate) fn outdated(&mut self, id: NodeId) {
        self.nodes[id.index()].epoch = None;
        self.judge();
    }

    fn learn_sample(&mut self, id: NodeId, seen: &Observation) {
        let Some(branch) = seen.branch() else { return };
        // Two servers promoted to the same timeline: only the configured one's word counts.
        let primary = &self.nodes[NodeId::PRIMARY.index()];
        let configured = primary
            .observation
            .filter(|o| primary.failure.is_none() && o.role == Role::Primary && o.branch() == Some(branch));
        if !id.is_primary() && configured.is_some_and(|o| o.instance != seen.instance) {
            return;
        }
        self.samples.push(Sample { branch, sent_at: seen.sent_at, lsn: seen.lsn });
        if let Some(xid) = seen.xid {
            self.visible.ended(branch, xid);
        }
        for node in &mut self.nodes {
            let Some(other) = node.observation else { continue };
            // A replica's answer came before this question was sent, and yet it is ahead: the log was
            // written again after a crash (asynchronous commits). Within a page header it is no proof.
            let ahead = other.lsn.as_u64() > seen.lsn.as_u64() + crate::lsn::LONG_PAGE_HEADER;
            if other.role == Role::Replica
                && other.branch() == Some(branch)
                && other.received_at < seen.sent_at
                && ahead
                && !is_off(Rule::Quarantine)
            {
                node.quarantined = Some(branch);
            }
        }
    }

    /// Draws for every node the conclusions that a choice needs, once an answer rather than once a read.
    fn judge(&mut self) {
        let standings: Vec<_> = self.nodes.iter().map(|n| (self.standing_of(n), self.covered_by(n))).collect();
        for (node, (standing, covered)) in self.nodes.iter_mut().zip(standings) {
            node.standing = standing;
            node.covered = covered;
        }
    }

    fn covered_by(&self, node: &Node) -> Option<Time> {
        let reached = node.reached()?;
        if Some(reached.branch) != self.surviving() && !is_off(Rule::HighestTimeline) {
            return None;
        }
        Some(self.samples.newest_covered(reached.branch, reached.lsn)?.sent_at)
    }

    fn standing_of(&self, node: &Node) -> Standing {
        if let Some((failure, _)) = node.failure {
            return Standing::Down(failure);
        }
        let Some(seen) = &node.observation else { return Standing::Unseen };
        if Some(seen.instance.system) != self.system {
            return Standing::ForeignCluster;
        }
        let named = self.nodes[NodeId::PRIMARY.index()].database;
        if named.is_some() && node.database != named {
            return Standing::OtherDatabase;
        }
        if node.suspect_since.is_some() {
            return Standing::Suspect;
        }
        match seen.role {
            Role::Primary if self.is_the_primary(&seen.instance, seen.branch()) => Standing::SamePrimary,
            Role::Primary => Standing::OtherPrimary,
            Role::Replica if node.quarantined.is_some() => Standing::Quarantined,
            Role::Replica => self.standing_on_branch(node, seen),
        }
    }

    fn standing_on_branch(&self, node: &Node, seen: &Observation) -> Standing {
        let Some(position) = seen.position() else { return Standing::Unproven };
        match self.surviving() {
            // No primary has answered yet: nothing is known to be discarded.
            None if seen.exact => Standing::Replica,
            None => Standing::Unproven,
            Some(surviving) if position.branch.timeline == surviving.timeline => {
                if node.reached().is_some() {
                    Standing::Replica
                } else {
                    Standing::Unproven
                }
            }
            Some(surviving) if position.branch.timeline < surviving.timeline => {
                if is_off(Rule::HighestTimeline) {
                    Standing::Replica
                } else if self.survives(position, surviving) {
                    Standing::Unproven
                } else if !seen.exact {
                    Standing::Hidden
                } else {
                    Standing::Discarded
                }
            }
            // It follows a promotion that we have not seen at its source.
            Some(_) if seen.exact => Standing::Replica,
            Some(_) => Standing::Unproven,
        }
    }

    /// Whether a replica that says that it is on this branch certainly is, or was when it replayed what it shows.
    ///
    /// Its own word (`exact`) is enough. Its control file says the same long after it has followed a promotion: that counts
    /// while a primary answers there.
    #[must_use]
    pub fn vouches_for(&self, branch: Branch, exact: bool) -> bool {
        let answers = |o: &Observation| o.role == Role::Primary && o.branch() == Some(branch);
        let is_primary = |n: &Node| n.failure.is_none() && n.observation.as_ref().is_some_and(answers);
        exact || is_off(Rule::OwnWord) || self.nodes.iter().any(is_primary)
    }

    /// Whether this is the server that the configured primary's probes see.
    pub(crate) fn is_the_primary(&self, instance: &Instance, branch: Option<Branch>) -> bool {
        let primary = &self.nodes[NodeId::PRIMARY.index()];
        let same = |o: &Observation| o.role == Role::Primary && o.instance == *instance && o.branch() == branch;
        if is_off(Rule::SamePrimary) {
            return true;
        }
        primary.failure.is_none() && branch == self.surviving() && primary.observation.as_ref().is_some_and(same)
    }
}
