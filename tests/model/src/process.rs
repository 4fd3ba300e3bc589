//! One process that routes: its monitor, its pools and its probes, driven as an adapter drives them.

use read_router::{Answer, Branch, Epoch, Failure, Instance, Monitor, Time, Topology};

use crate::server::{Commits, Server, node};

/// A connection to one life of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Connection {
    pub(crate) server: usize,
    pub(crate) life: u8,
    pub(crate) opened_at: Time,
    pub(crate) instance: Instance,
    /// What a primary said when the connection was opened.
    pub(crate) branch: Option<Branch>,
}

impl Connection {
    pub(crate) fn open(servers: &[Server], server: usize, at: Time) -> Self {
        let greeting = servers[server].greeting(server);
        Self { server, life: servers[server].life, opened_at: at, instance: greeting.instance, branch: greeting.branch }
    }

    pub(crate) fn is_alive(&self, servers: &[Server]) -> bool {
        servers[self.server].life == self.life
    }
}

/// The open probe connection of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Watched {
    pub(crate) server: usize,
    pub(crate) life: u8,
    pub(crate) epoch: Epoch,
}

/// A probe on its way: sent, half answered, or answered and not yet heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Probe {
    pub(crate) node: usize,
    pub(crate) watched: Watched,
    pub(crate) sent_at: Time,
    /// The first of the two statements that make up a probe has been answered so.
    pub(crate) half: Option<Answer>,
    pub(crate) answer: Option<Answer>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) monitor: Monitor,
    /// The pooled connection of each node.
    pub(crate) pool: Vec<Option<Connection>>,
    pub(crate) watched: Vec<Option<Watched>>,
    pub(crate) probes: Vec<Probe>,
    /// For each sample that the monitor may still hold: what had been acknowledged, by anyone, when it was sent.
    acknowledged: Vec<(Time, Commits)>,
}

impl Process {
    pub(crate) fn new(monitor: Monitor, nodes: usize) -> Self {
        Self {
            monitor,
            pool: vec![None; nodes],
            watched: vec![None; nodes],
            probes: Vec::new(),
            acknowledged: Vec::new(),
        }
    }

    pub(crate) fn topology(&self) -> &Topology {
        self.monitor.topology()
    }

    /// Whether a probe of the node's open connection is under way.
    pub(crate) fn is_probing(&self, node: usize) -> bool {
        let open = self.watched[node];
        self.probes.iter().any(|probe| probe.node == node && Some(probe.watched) == open)
    }

    /// Sends a probe, on a new connection if there is none or it broke; `server` is where the node's name leads.
    pub(crate) fn probe(
        &mut self,
        index: usize,
        server: usize,
        servers: &[Server],
        at: Time,
        acknowledged: Option<Commits>,
    ) {
        let alive = self.watched[index].filter(|watched| servers[watched.server].life == watched.life);
        if alive.is_none() && self.watched[index].is_some() {
            self.fail(index, at);
        }
        let watched = match alive {
            Some(watched) => watched,
            None => {
                let epoch = self.monitor.opened(node(index), &servers[server].greeting(server));
                Watched { server, life: servers[server].life, epoch }
            }
        };
        self.watched[index] = Some(watched);
        self.monitor.sent(node(index), at, 200);
        self.acknowledged.extend(acknowledged.map(|commits| (at, commits)));
        self.probes.push(Probe { node: index, watched, sent_at: at, half: None, answer: None });
    }

    /// The open probe connection of a node is given up; an answer may still be on its way.
    pub(crate) fn fail(&mut self, index: usize, at: Time) {
        self.watched[index] = None;
        self.monitor.failed(node(index), Failure::Timeout, at);
        self.forget();
    }

    pub(crate) fn deliver(&mut self, probe: usize, at: Time) {
        let probe = self.probes.remove(probe);
        if let Some(answer) = probe.answer {
            self.monitor.answered(node(probe.node), probe.watched.epoch, &answer, at);
        }
        self.forget();
    }

    /// What had been acknowledged when the sample of this instant was sent.
    pub(crate) fn acknowledged_at(&self, sent_at: Time) -> Commits {
        self.acknowledged.iter().find(|(at, _)| *at == sent_at).map_or(0, |(_, commits)| *commits)
    }

    /// Keeps the ghosts of the instants that a node's proof rests on or that a probe under way may bring in.
    fn forget(&mut self) {
        let topology = self.monitor.topology();
        let held = |at: Time| {
            let before = Time::from_nanos(at.as_nanos() - 1);
            let samples = (1..8).any(|timeline| {
                let sample = topology.first_sample_after(crate::server::branch(timeline), before);
                sample.is_some_and(|sample| sample.sent_at == at)
            });
            samples || topology.nodes().iter().any(|n| n.covered() == Some(at))
        };
        let pending = |at: Time| self.probes.iter().any(|probe| probe.sent_at == at);
        self.acknowledged.retain(|(at, _)| pending(*at) || held(*at));
    }
}
