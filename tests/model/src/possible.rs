//! What may happen next.

use crate::{Action, Class, State, World};

impl World {
    pub(crate) fn possible(&self, state: &State, actions: &mut Vec<Action>) {
        if state.budget.reads == 0 && state.client.reads.iter().all(|read| read.result.is_some()) {
            // Nothing that happens from here on is judged.
            return;
        }
        self.writes(state, actions);
        self.servers(state, actions);
        self.probes(state, actions);
        self.reads(state, actions);
    }

    fn writes(&self, state: &State, actions: &mut Vec<Action>) {
        let (client, budget) = (&state.client, &state.budget);
        let busy = client.writes.len() + client.reads.len();
        if budget.writes > 0 && busy < self.tasks {
            actions.push(Action::WriteSent);
        }
        for (index, write) in client.writes.iter().enumerate() {
            let alive = write.connection.is_alive(&state.servers);
            match write.commit {
                None if alive => actions.push(Action::WriteDone(index)),
                Some(_) if alive => actions.push(Action::WriteHeard(index)),
                _ => {}
            }
            if !write.doubt && alive && budget.drops > 0 {
                actions.push(Action::WriteDropped(index));
            }
            if !write.doubt && !alive {
                actions.push(Action::WriteBroken(index));
            }
            if write.doubt && !alive {
                actions.push(Action::WriteSettled(index));
            }
        }
    }

    fn servers(&self, state: &State, actions: &mut Vec<Action>) {
        let budget = &state.budget;
        let newest = state.newest_primary();
        for (index, server) in state.servers.iter().enumerate() {
            if budget.others > 0 && !server.standby && (self.unfenced || Some(index) == newest) {
                actions.push(Action::Other(index));
            }
            let next = server.next_of(&state.servers[server.upstream]);
            if next.is_some() || server.showing {
                actions.push(Action::Replay(index));
            }
            if self.slow_replay && next.is_some() {
                actions.push(Action::Show(index));
            }
            if budget.crashes > 0 && self.crashing.contains(&index) && (!server.standby || !server.log.is_empty()) {
                actions.extend([Action::Crash(index, true), Action::Crash(index, false)]);
            }
            if budget.promotions > 0 && server.standby && self.promotable.contains(&index) {
                actions.push(Action::Promote(index));
            }
            if !server.standby && server.flushed < server.log.len() {
                actions.push(Action::Flush(index));
            }
            if self.ordinary_role && server.control != server.timeline {
                actions.push(Action::Checkpoint(index));
            }
            for (other, new) in state.servers.iter().enumerate() {
                if (server.upstream == other || !new.standby) && server.can_follow(new) {
                    actions.push(Action::Follow(index, other));
                }
            }
            let Some(newest) = newest else { continue };
            let behind = server.timeline < state.servers[newest].timeline;
            if budget.crashes > 0 && behind && !server.can_follow(&state.servers[newest]) {
                actions.push(Action::Rewind(index));
            }
            let forward = server.timeline > state.servers[state.names[0]].timeline;
            if budget.moves > 0 && !server.standby && forward {
                actions.push(Action::Move(index));
            }
        }
    }

    fn probes(&self, state: &State, actions: &mut Vec<Action>) {
        let budget = &state.budget;
        for (number, process) in state.processes.iter().enumerate() {
            for node in 0..self.names.len() {
                let probed = self.probed.contains(&(number, node));
                if probed && budget.probes > 0 && !process.is_probing(node) {
                    actions.push(Action::ProbeSent(number, node));
                }
                if probed && budget.failures > 0 && process.watched[node].is_some() {
                    actions.push(Action::ProbeFailed(number, node));
                }
                let named = state.names[node];
                let useless = process.pool[node]
                    .is_none_or(|open| !open.is_alive(&state.servers) || open.server != named || open.branch.is_none());
                let wanted = number == state.client.process && self.targets.contains(&node);
                if budget.opens > 0 && wanted && (useless || node == 0) {
                    actions.push(Action::Open(number, node));
                }
            }
            for (index, probe) in process.probes.iter().enumerate() {
                actions.push(match probe.answer {
                    None => Action::ProbeAnswered(number, index),
                    Some(_) => Action::ProbeHeard(number, index),
                });
            }
        }
    }

    fn reads(&self, state: &State, actions: &mut Vec<Action>) {
        let (client, budget) = (&state.client, &state.budget);
        let busy = client.writes.iter().filter(|write| !write.doubt).count() + client.reads.len();
        let targets = || self.targets.iter().copied().filter(|target| *target < self.names.len());
        if budget.reads > 0 && busy < self.tasks {
            for class in &self.classes {
                if self.parking && *class != Class::Plain {
                    actions.push(Action::Park(*class));
                }
                let fits = |target: &usize| *target == 0 || *class != Class::Plain;
                actions.extend(targets().filter(fits).map(|target| Action::Route(*class, target)));
            }
        }
        for (index, read) in client.reads.iter().enumerate() {
            if read.waiting.is_some() {
                actions.extend(targets().map(|target| Action::Resume(index, target)));
            } else if read.result.is_some() {
                actions.push(Action::ReadHeard(index));
            } else {
                actions.push(Action::ReadAnswered(index));
            }
        }
        if self.processes > 1 && budget.exports > 0 && client.reads.is_empty() && client.writes.is_empty() {
            actions.push(Action::Export);
        }
        if self.coarse && budget.ticks > 0 {
            actions.push(Action::Tick);
        }
    }
}
