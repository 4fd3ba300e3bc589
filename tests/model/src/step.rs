//! What an action changes.

use read_router::{Session, Token};

use crate::{Action, State, World, client::Write, process::Connection, server::bits};

impl State {
    /// Lets `action` happen; `None` if it cannot.
    pub(crate) fn take(&mut self, world: &World, action: Action) -> Option<()> {
        match action {
            Action::WriteSent => self.write_sent(),
            Action::WriteDone(index) => self.write_done(world, index),
            Action::WriteHeard(index) => self.write_heard(index),
            Action::WriteDropped(index) => {
                spend(&mut self.budget.drops)?;
                self.write_in_doubt(index)
            }
            Action::WriteBroken(index) => self.write_in_doubt(index),
            Action::WriteSettled(index) => self.write_settled(index),
            Action::Other(server) => {
                spend(&mut self.budget.others)?;
                let commit = self.next_commit();
                self.servers[server].commit(commit, world.asynchronous);
                if world.hides {
                    self.servers[server].hidden |= 1 << commit;
                } else {
                    self.acknowledged |= 1 << commit;
                }
                Some(())
            }
            Action::Replay(server) if self.servers[server].showing => {
                self.servers[server].showing = false;
                Some(())
            }
            Action::Replay(server) => {
                let commit = self.servers[server].next_of(&self.servers[self.servers[server].upstream])?;
                self.servers[server].replay(commit);
                Some(())
            }
            Action::Show(server) => {
                let commit = self.servers[server].next_of(&self.servers[self.servers[server].upstream])?;
                self.servers[server].show(commit);
                Some(())
            }
            Action::Crash(server, postmaster) => {
                spend(&mut self.budget.crashes)?;
                self.servers[server].crash(postmaster);
                Some(())
            }
            Action::Promote(server) => {
                spend(&mut self.budget.promotions)?;
                let newest = self.servers.iter().map(|server| server.timeline).max()?;
                self.servers[server].promote(newest + 1);
                Some(())
            }
            Action::Follow(server, new) => {
                let upstream = self.servers[new].clone();
                self.servers[server].follow(&upstream, new);
                Some(())
            }
            Action::Rewind(server) => {
                spend(&mut self.budget.crashes)?;
                let newest = self.newest_primary()?;
                let new = self.servers[newest].clone();
                self.servers[server].rewind(&new, newest);
                Some(())
            }
            Action::Flush(server) => {
                self.servers[server].flushed = self.servers[server].log.len();
                Some(())
            }
            Action::Checkpoint(server) => {
                self.servers[server].control = self.servers[server].timeline;
                Some(())
            }
            Action::Move(server) => {
                spend(&mut self.budget.moves)?;
                self.names[0] = server;
                Some(())
            }
            Action::ProbeSent(process, index) => self.probe_sent(world, process, index),
            Action::ProbeAnswered(process, probe) => self.probe_answered(world, process, probe),
            Action::ProbeHeard(process, probe) => {
                let at = self.moment();
                self.processes[process].deliver(probe, at);
                Some(())
            }
            Action::ProbeFailed(process, index) => {
                spend(&mut self.budget.failures)?;
                let at = self.instant();
                self.processes[process].fail(index, at);
                if !world.late_answers {
                    self.processes[process].probes.retain(|probe| probe.node != index);
                }
                Some(())
            }
            Action::Open(process, index) => {
                spend(&mut self.budget.opens)?;
                let at = self.instant();
                let connection = Connection::open(&self.servers, self.names[index], at);
                self.processes[process].pool[index] = Some(connection);
                Some(())
            }
            Action::Park(class) => self.park(class),
            Action::Route(class, target) => self.route(class, target),
            Action::Resume(read, target) => self.resume(read, target),
            Action::ReadAnswered(read) => self.read_answered(world, read),
            Action::ReadHeard(read) => self.read_heard(world, read),
            Action::Export => self.export(world),
            Action::Tick => {
                spend(&mut self.budget.ticks)?;
                self.tick();
                Some(())
            }
        }
    }

    fn write_sent(&mut self) -> Option<()> {
        spend(&mut self.budget.writes)?;
        let connection = self.process().pool[0]?;
        let usable = connection.is_alive(&self.servers) && connection.branch.is_some();
        if !usable {
            return None;
        }
        let id = self.client.session.write_sent();
        self.client.writes.push(Write { id, connection, commit: None, doubt: false });
        Some(())
    }

    fn write_done(&mut self, world: &World, index: usize) -> Option<()> {
        let commit = self.next_commit();
        self.client.writes[index].commit = Some(commit);
        let write = self.client.writes[index];
        let server = &mut self.servers[write.connection.server];
        server.commit(commit, world.asynchronous);
        if write.doubt {
            self.client.must.doubtful |= 1 << commit;
        } else if world.hides {
            server.hidden |= 1 << commit;
        }
        Some(())
    }

    fn write_heard(&mut self, index: usize) -> Option<()> {
        let write = self.client.writes.remove(index);
        let commit = write.commit?;
        self.servers[write.connection.server].hidden &= !(1 << commit);
        self.acknowledged |= 1 << commit;
        if !write.doubt {
            self.client.must.wrote |= 1 << commit;
        }
        self.settle(&write)
    }

    /// Nobody will hear of the write.
    fn write_in_doubt(&mut self, index: usize) -> Option<()> {
        self.client.writes[index].doubt = true;
        let write = self.client.writes[index];
        self.client.session.in_doubt(write.id);
        if let Some(commit) = write.commit {
            self.client.must.doubtful |= 1 << commit;
            self.servers[write.connection.server].hidden &= !(1 << commit);
        }
        Some(())
    }

    fn write_settled(&mut self, index: usize) -> Option<()> {
        let write = self.client.writes.remove(index);
        self.settle(&write)
    }

    fn settle(&mut self, write: &Write) -> Option<()> {
        let at = self.instant();
        let branch = write.connection.branch?;
        let process = self.processes[self.client.process].clone();
        let lost = self.client.session.acknowledged(write.id, branch, at, process.topology());
        self.client.told(lost, bits(&self.servers[write.connection.server].log));
        Some(())
    }

    fn probe_sent(&mut self, world: &World, process: usize, index: usize) -> Option<()> {
        spend(&mut self.budget.probes)?;
        let at = self.instant();
        let acknowledged = world.judges_bounds().then_some(self.acknowledged);
        let name = self.names[index];
        self.processes[process].probe(index, name, &self.servers, at, acknowledged);
        Some(())
    }

    fn probe_answered(&mut self, world: &World, process: usize, index: usize) -> Option<()> {
        let at = self.instant_if(process, index);
        let probe = &mut self.processes[process].probes[index];
        let server = &self.servers[probe.watched.server];
        if server.life != probe.watched.life {
            let probe = self.processes[process].probes.remove(index);
            if self.processes[process].watched[probe.node] == Some(probe.watched) {
                self.processes[process].fail(probe.node, at);
            }
            return Some(());
        }
        let now = server.answer(world);
        match probe.half {
            None if world.two_steps => probe.half = Some(now),
            None => probe.answer = Some(now),
            // The role is asked with the position; a primary's timeline does not change.
            Some(first) if world.off.timeline_first() => {
                probe.answer = Some(read_router::Answer { timeline: first.timeline, exact: first.exact, ..now });
            }
            Some(first) => probe.answer = Some(read_router::Answer { lsn: first.lsn, role: first.role, ..now }),
        }
        Some(())
    }

    /// An instant if the probe's server is gone, for its failure.
    fn instant_if(&mut self, process: usize, index: usize) -> read_router::Time {
        let watched = self.processes[process].probes[index].watched;
        if self.servers[watched.server].life == watched.life { self.moment() } else { self.instant() }
    }

    fn export(&mut self, world: &World) -> Option<()> {
        spend(&mut self.budget.exports)?;
        let mut session = self.client.session.clone();
        session.resolve(self.process().topology());
        // In text, as it travels. An adapter waits for what is missing.
        let token: Token = session.token()?.to_string().parse().ok()?;
        let at = self.instant();
        self.client.session = world.session(Session::resume(token, at, world.sticky));
        self.client.process = 1 - self.client.process;
        self.client.unheard.clear();
        Some(())
    }
}

pub(crate) fn spend(budget: &mut u8) -> Option<()> {
    *budget = budget.checked_sub(1)?;
    Some(())
}
