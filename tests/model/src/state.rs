//! Everything at one moment.

use std::hash::{Hash, Hasher};

use read_router::{Config, Monitor, Session, Time};

use crate::{
    World,
    client::{Client, Violation},
    process::{Connection, Process},
    ranked,
    server::{Commits, Server, bits},
    shared::Shared,
    world::Budget,
};

/// A state of the model. Two states that differ in nothing but the distances of their instants hash alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub(crate) servers: Shared<Vec<Server>>,
    /// The server that each node's name leads to.
    pub(crate) names: Vec<usize>,
    pub(crate) processes: Vec<Shared<Process>>,
    pub(crate) client: Shared<Client>,
    pub(crate) acknowledged: Commits,
    pub(crate) commits: u8,
    pub(crate) budget: Budget,
    pub(crate) violation: Option<Violation>,
    /// The next instant; does not count where each event has an instant of its own.
    clock: u64,
    coarse: bool,
}

impl State {
    pub(crate) fn new(world: &World) -> Self {
        let servers: Vec<_> = (0..world.servers).map(|server| Server::new(server != 0)).collect();
        let nodes = world.names.len();
        let monitor = Monitor::new(nodes - 1, Config::default());
        let mut process = Process::new(monitor, nodes);
        let mut state = Self {
            names: world.names.to_vec(),
            processes: Vec::new(),
            client: Shared::new(Client::new(world.session(Session::new(world.sticky)))),
            acknowledged: 0,
            commits: 0,
            budget: Budget::default(),
            violation: None,
            clock: 2,
            coarse: world.coarse,
            servers: Shared::new(servers),
        };
        for (index, server) in world.names.iter().enumerate() {
            process.pool[index] = Some(Connection::open(&state.servers, *server, ranked::instant(0)));
        }
        state.processes = vec![Shared::new(process); world.processes];
        state
    }

    /// The instant of the next event.
    pub(crate) fn instant(&mut self) -> Time {
        self.clock += if self.coarse { 0 } else { 2 };
        ranked::instant(self.clock)
    }

    /// An instant after the last event and before the next.
    pub(crate) fn moment(&self) -> Time {
        ranked::instant(self.clock + u64::from(!self.coarse))
    }

    pub(crate) fn tick(&mut self) {
        self.clock += 1;
    }

    pub(crate) fn process(&self) -> &Process {
        &self.processes[self.client.process]
    }

    /// The primary of the newest timeline.
    pub(crate) fn newest_primary(&self) -> Option<usize> {
        let primaries = self.servers.iter().enumerate().filter(|(_, server)| !server.standby);
        primaries.max_by_key(|(_, server)| server.timeline).map(|(index, _)| index)
    }

    /// The commits of the line of history that survives.
    pub(crate) fn surviving(&self) -> Commits {
        self.newest_primary().map_or(0, |server| bits(&self.servers[server].log))
    }

    /// Whether the session's process knows of the newest timeline.
    pub(crate) fn is_newest_known(&self) -> bool {
        let newest = self.newest_primary().map(|server| self.servers[server].branch().timeline);
        self.process().topology().highest_timeline() == newest
    }

    pub(crate) fn next_commit(&mut self) -> u8 {
        self.commits += 1;
        self.commits - 1
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        ranked::hash(&Content(self), state);
    }
}

struct Content<'a>(&'a State);

impl Hash for Content<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let State { servers, names, processes, client, acknowledged, commits, budget, violation, clock, coarse } =
            self.0;
        (servers, names, processes, client).hash(state);
        (acknowledged, commits, budget, violation).hash(state);
        coarse.then(|| ranked::instant(*clock)).hash(state);
    }
}
