//! Which server to ask when, and what its answer changes.

use std::time::Duration;

use crate::{
    Answer, Ask, Branch, Config, Epoch, Failure, Greeting, Instance, NodeId, Observation, ReplicaConfig, Role, Time,
    Topology, WalLayout,
    mutants::{Rule, is_off},
};

#[cfg(test)]
mod tests;

/// The only thing that asks servers where they are; without the asking, which is the adapter's.
///
/// For each node the adapter runs one loop: wait until [`due`](Self::due); if no probe connection is open, open
/// one and report [`opened`](Self::opened); report [`sent`](Self::sent), send the probe, and report what came:
/// [`answered`](Self::answered) or [`failed`](Self::failed). After each report it publishes
/// [`topology`](Self::topology). A node's loop waits for no other node's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Monitor {
    config: Config,
    topology: Topology,
    probes: Vec<Probe>,
    next_epoch: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Probe {
    connection: Option<Connection>,
    sent_at: Option<Time>,
    in_flight: bool,
    /// When the node is due without being asked for.
    regular: Time,
    /// When it is due because someone waits; `None` while nobody does.
    wanted: Option<Time>,
    /// When as many probes as were sent could have been sent one in each `probe_spacing`.
    paid_until: Time,
    failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Connection {
    epoch: Epoch,
    instance: Instance,
    layout: WalLayout,
    /// When its first probe was sent.
    since: Option<Time>,
}

/// A node that fails again and again is tried at this multiple of the probe interval at most.
const MAX_BACKOFF: u32 = 5;
/// So many probes may be sent ahead of one in each `probe_spacing`, right after each other, for one who has begun to wait:
/// a replica mostly replays within the time of a few questions.
const BURST: u32 = 4;
/// While the primary's name leads to an older branch than is known, it is looked up again this often.
const NAME_MAY_MOVE: Duration = Duration::from_secs(1);

impl Monitor {
    /// A monitor of the primary and `replicas` more nodes, all of them due at once.
    #[must_use]
    pub fn new(replicas: usize, config: Config) -> Self {
        Self::with_replicas(vec![ReplicaConfig::new(); replicas], config)
    }

    /// A monitor of the primary and of these replicas, all of them due at once.
    #[must_use]
    pub fn with_replicas(replicas: Vec<ReplicaConfig>, config: Config) -> Self {
        let probes = vec![Probe::default(); replicas.len() + 1];
        Self { topology: Topology::new(replicas, &config), config, probes, next_epoch: 0 }
    }

    /// What is known now.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// When the node's next probe is to be sent; `None` while one is under way, or if nobody needs any:
    /// without a replica the primary is asked only where someone [asks](Self::ask).
    #[must_use]
    pub fn due(&self, node: NodeId) -> Option<Time> {
        let probe = self.probes.get(node.index()).filter(|p| !p.in_flight)?;
        let is_needed = self.probes.len() > 1 || probe.sent_at.is_none() || probe.failures > 0;
        let regular = is_needed.then_some(probe.regular);
        // A node that fails is not tried faster because someone waits.
        let wanted = probe.wanted.filter(|_| probe.failures == 0);
        regular.into_iter().chain(wanted).min()
    }

    /// A probe connection to the node is open: a new epoch begins.
    pub fn opened(&mut self, node: NodeId, greeting: &Greeting) -> Epoch {
        let epoch = Epoch(self.next_epoch);
        self.next_epoch += 1;
        self.probes[node.index()].connection =
            Some(Connection { epoch, instance: greeting.instance, layout: greeting.layout, since: None });
        self.topology.opened(node, epoch, greeting.database);
        epoch
    }

    /// A probe is about to be sent to the node. `draw` is any random number, for the jitter.
    pub fn sent(&mut self, node: NodeId, now: Time, draw: u64) {
        let interval = jittered(self.config.probe_interval, draw);
        let probe = &mut self.probes[node.index()];
        probe.sent_at = Some(now);
        probe.in_flight = true;
        probe.wanted = None;
        probe.regular = now + interval;
        probe.paid_until = probe.paid_until.max(now) + self.config.probe_spacing;
        if let Some(connection) = &mut probe.connection {
            connection.since.get_or_insert(now);
        }
    }

    /// The node answered the probe sent last; returns whether the topology changed.
    ///
    /// An answer that does not belong to the node's open epoch is dropped: it comes from before a crash.
    pub fn answered(&mut self, node: NodeId, epoch: Epoch, answer: &Answer, now: Time) -> bool {
        let probe = &mut self.probes[node.index()];
        let is_open = |c: &Connection| c.epoch == epoch || is_off(Rule::ClosedEpochs);
        let Some(connection) = probe.connection.filter(is_open) else { return false };
        let Some(sent_at) = probe.sent_at.filter(|_| probe.in_flight) else { return false };
        probe.in_flight = false;
        probe.failures = 0;
        let lsn = match answer.role {
            Role::Primary => answer.lsn.without_page_header(connection.layout),
            Role::Replica => answer.lsn,
        };
        self.topology.observed(
            node,
            Observation {
                epoch: if is_off(Rule::ClosedEpochs) { connection.epoch } else { epoch },
                instance: connection.instance,
                sent_at: if is_off(Rule::JoinUnsent) { now } else { sent_at },
                received_at: now,
                role: answer.role,
                timeline: answer.timeline,
                exact: answer.exact,
                lsn,
                xid: answer.xid,
            },
        );
        if node.is_primary() && answer.role == Role::Primary && self.leads_to_the_past(connection, now) {
            self.outdated(now);
        }
        true
    }

    /// Whether the primary's probe connection is on an older branch than some server, and was opened before that was
    /// known, or long enough ago for its name to have moved.
    fn leads_to_the_past(&self, connection: Connection, now: Time) -> bool {
        let is_old =
            self.topology.node(NodeId::PRIMARY).and_then(|n| n.observation()?.branch()) < self.topology.surviving();
        let since = connection.since.unwrap_or(now);
        is_old && (since <= self.topology.highest_since() || now.since(since) >= NAME_MAY_MOVE)
    }

    fn outdated(&mut self, now: Time) {
        let probe = &mut self.probes[NodeId::PRIMARY.index()];
        probe.connection = None;
        probe.in_flight = false;
        self.topology.outdated(NodeId::PRIMARY);
        self.want(NodeId::PRIMARY, now);
    }

    /// A connection of the application's that was just opened leads to a primary on `branch`; returns whether the node's
    /// probes are to be sent anew.
    ///
    /// If the branch is newer than all that the probes have seen, the primary's name has moved: its probe connection is
    /// over, and the next one leads to where the name points now.
    pub fn branch_seen(&mut self, branch: Branch, now: Time) -> bool {
        let is_news = self.topology.seen_branch(branch, now);
        if is_news {
            self.outdated(now);
        }
        is_news
    }

    /// Whether the epoch is still the node's open one; if not, its connection is of no more use.
    #[must_use]
    pub fn is_open(&self, node: NodeId, epoch: Epoch) -> bool {
        self.probes.get(node.index()).and_then(|p| p.connection).is_some_and(|c| c.epoch == epoch)
    }

    /// No connection could be opened, or the probe sent last failed: the epoch is over.
    pub fn failed(&mut self, node: NodeId, failure: Failure, now: Time) {
        let probe = &mut self.probes[node.index()];
        probe.connection = None;
        probe.in_flight = false;
        probe.wanted = None;
        probe.failures = probe.failures.saturating_add(1);
        probe.regular = now + self.config.probe_interval.saturating_mul(probe.failures.min(MAX_BACKOFF));
        self.topology.failed(node, failure, now);
    }

    /// A read failed on the node in a way that says that it is going down: it serves nothing until it has
    /// answered a probe that is sent after `now`.
    pub fn read_failed(&mut self, node: NodeId, now: Time) {
        self.topology.suspect(node, now);
        self.want(node, now);
    }

    /// Someone has waited since `since` for an observation sent after `now`; nobody joins one sent before.
    ///
    /// Many askers share one probe. The longer the youngest of them has waited, the wider the spacing; for one who has just
    /// begun to wait a few probes may follow each other at once.
    pub fn ask(&mut self, ask: Ask, since: Time, now: Time) {
        let widest = self.config.probe_interval / 4;
        let spacing = (now.since(since) / 4).min(widest).max(self.config.probe_spacing);
        let burst = self.config.probe_spacing.saturating_mul(BURST);
        let is_young = now.since(since) < burst;
        for index in 0..self.probes.len() {
            let node = NodeId::from_index(index);
            let asked = match ask {
                Ask::All => true,
                Ask::Primary => self.may_sample(node),
                Ask::Replicas => !node.is_primary(),
            };
            if asked {
                let probe = &self.probes[index];
                let may_follow = is_young && probe.paid_until.since(now) <= burst;
                let spaced = probe.sent_at.filter(|_| !may_follow).map_or(now, |sent| sent + spacing);
                self.want(node, spaced.max(now));
            }
        }
    }

    /// Whether the node's answer may be a primary's: the configured one's, or a promoted replica's.
    fn may_sample(&self, node: NodeId) -> bool {
        let seen = self.topology.node(node).and_then(|n| n.observation());
        node.is_primary() || seen.is_some_and(|o| o.role == Role::Primary)
    }

    fn want(&mut self, node: NodeId, at: Time) {
        let wanted = &mut self.probes[node.index()].wanted;
        *wanted = Some(wanted.map_or(at, |earlier| earlier.min(at)));
    }
}

/// The interval ±20%, so that many processes do not ask in step.
fn jittered(interval: Duration, draw: u64) -> Duration {
    let parts = u32::try_from(draw % 401).unwrap_or(200);
    (interval / 1000).saturating_mul(800 + parts)
}
