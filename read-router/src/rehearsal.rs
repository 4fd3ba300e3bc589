//! A stage for the core's own tests: a monitor that is told answers, in milliseconds.

use crate::{
    Answer, Backend, Branch, Config, Epoch, Failure, Greeting, Instance, Lsn, Monitor, NodeId, ReplicaConfig, Role,
    SystemId, Time, Timeline, Topology, WalLayout,
};

pub(crate) const P: NodeId = NodeId::PRIMARY;
pub(crate) const A: NodeId = NodeId::replica(0);
pub(crate) const B: NodeId = NodeId::replica(1);

pub(crate) fn ms(millis: u64) -> Time {
    Time::from_nanos(millis * 1_000_000)
}

pub(crate) fn branch(timeline: u32) -> Branch {
    Branch { system: SystemId(7), timeline: Timeline(timeline) }
}

/// A monitor with its nodes' epochs.
pub(crate) struct Rehearsal {
    pub(crate) monitor: Monitor,
    epochs: Vec<Epoch>,
    servers: Vec<(i64, u64)>,
}

impl Rehearsal {
    /// A primary and `replicas` replicas, each with an open probe connection; nothing answered yet.
    pub(crate) fn new(replicas: usize) -> Self {
        Self::with_replicas(vec![ReplicaConfig::new(); replicas])
    }

    pub(crate) fn with_replicas(replicas: Vec<ReplicaConfig>) -> Self {
        let last = u16::try_from(replicas.len()).unwrap();
        let monitor = Monitor::with_replicas(replicas, Config::default());
        let mut stage = Self { monitor, epochs: Vec::new(), servers: Vec::new() };
        for index in 0..=last {
            stage.epochs.push(Epoch(0));
            stage.servers.push((0, 0));
            stage.open(NodeId(index), i64::from(index), 7);
        }
        stage
    }

    /// A new probe connection to a server started at `started` of cluster `system`.
    pub(crate) fn open(&mut self, node: NodeId, started: i64, system: u64) {
        let greeting = Greeting {
            instance: Instance { system: SystemId(system), started_us: started, port: 1 },
            layout: WalLayout::default(),
            backend: Backend { pid: 1, started_us: Some(1) },
            database: 5,
            branch: None,
        };
        self.servers[node.index()] = (started, system);
        self.epochs[node.index()] = self.monitor.opened(node, &greeting);
    }

    pub(crate) fn epoch(&self, node: NodeId) -> Epoch {
        self.epochs[node.index()]
    }

    pub(crate) fn topology(&self) -> &Topology {
        self.monitor.topology()
    }

    /// A primary's answer to a probe sent at `at`, received a millisecond later.
    pub(crate) fn primary(&mut self, node: NodeId, at: u64, timeline: u32, lsn: u64) -> &mut Self {
        self.answer(node, at, Role::Primary, Some(timeline), true, lsn)
    }

    /// A replica's.
    pub(crate) fn replica(&mut self, node: NodeId, at: u64, timeline: u32, lsn: u64) -> &mut Self {
        self.answer(node, at, Role::Replica, Some(timeline), true, lsn)
    }

    pub(crate) fn answer(
        &mut self,
        node: NodeId,
        at: u64,
        role: Role,
        timeline: Option<u32>,
        exact: bool,
        lsn: u64,
    ) -> &mut Self {
        let answer = Answer { role, lsn: Lsn::new(lsn), timeline: timeline.map(Timeline), exact, xid: None };
        if !self.monitor.is_open(node, self.epochs[node.index()]) {
            let (started, system) = self.servers[node.index()];
            self.open(node, started, system);
        }
        self.monitor.sent(node, ms(at), 0);
        assert!(self.monitor.answered(node, self.epochs[node.index()], &answer, ms(at + 1)));
        self
    }

    pub(crate) fn fail(&mut self, node: NodeId, at: u64) -> &mut Self {
        self.monitor.failed(node, Failure::Unreachable, ms(at));
        self
    }
}
