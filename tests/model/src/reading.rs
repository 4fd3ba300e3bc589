//! How a read goes, as an adapter does it.

use std::time::Duration;

use read_router::{Config, InFlight, Need, ReadClass, ReadOptions, Role, Route, Session, connection_trusts, select};

use crate::{
    State, World,
    client::{Class, Must, Read, Shown, Violation},
    process::Connection,
    server::{bits, node},
    step::spend,
};

/// Any bound will do: a bounded read is judged by the instant that its proof names.
const BOUND: Duration = Duration::from_secs(1);

impl Class {
    fn options(self) -> Option<ReadOptions> {
        Some(ReadOptions::new(match self {
            Self::Strict => ReadClass::MustSeeMyWrite,
            Self::Bounded => ReadClass::SecondsStale(BOUND),
            Self::Eventual => ReadClass::Eventual,
            Self::Plain => return None,
        }))
    }
}

impl State {
    /// A read comes that no replica can serve yet.
    pub(crate) fn park(&mut self, class: Class) -> Option<()> {
        spend(&mut self.budget.reads)?;
        self.resolve();
        let read = self.new_read(class);
        let route = self.choose(&self.client.session, class.options()?, 1);
        if !matches!(route, Route::Wait { .. }) {
            return None;
        }
        let waiting = Some(self.client.session.clone());
        self.client.reads.push(Read { waiting, ..read });
        Some(())
    }

    /// A read comes and is routed at once.
    pub(crate) fn route(&mut self, class: Class, target: usize) -> Option<()> {
        spend(&mut self.budget.reads)?;
        if class != Class::Plain {
            self.resolve();
        }
        let read = self.new_read(class);
        let read = self.routed(read, &self.client.session, target)?;
        self.client.reads.push(read);
        Some(())
    }

    /// A waiting read is routed.
    pub(crate) fn resume(&mut self, index: usize, target: usize) -> Option<()> {
        let mut read = self.client.reads.remove(index);
        let mut session = read.waiting.take()?;
        session.resolve(self.process().topology());
        let read = self.routed(read, &session, target)?;
        self.client.reads.insert(index, read);
        Some(())
    }

    fn resolve(&mut self) {
        let process = self.processes[self.client.process].clone();
        self.client.session.resolve(process.topology());
        self.client.hear(process.topology());
    }

    fn new_read(&self, class: Class) -> Read {
        let must = if class == Class::Strict { self.client.must } else { Must::default() };
        Read { class, waiting: None, target: 0, proof: None, must, fresh: 0, result: None }
    }

    /// Where `select` sends the read, if that is where it is to go. The primary is always possible: a replica may fail
    /// the read, or the wait may end.
    fn routed(&self, mut read: Read, session: &Session, target: usize) -> Option<Read> {
        read.target = target;
        if target == 0 {
            return Some(read);
        }
        let Route::Replica(chosen, proof) = self.choose(session, read.class.options()?, target) else { return None };
        if chosen != node(target) {
            return None;
        }
        if read.class == Class::Bounded && self.is_newest_known() {
            let acknowledged = match proof.covered {
                _ if proof.is_primary => self.acknowledged,
                Some(covered) => self.process().acknowledged_at(covered),
                None => 0,
            };
            read.fresh = acknowledged & self.surviving();
        }
        read.proof = Some(proof);
        Some(read)
    }

    /// The others are busy, so that of all nodes that would do `target` is taken.
    fn choose(&self, session: &Session, read: ReadOptions, target: usize) -> Route {
        let in_flight = InFlight::new(self.names.len());
        (0..self.names.len()).filter(|other| *other != target).for_each(|other| in_flight.begin(node(other)));
        let config = Config::default();
        let now = self.moment();
        let need = Need { read, session, started: now, exclude: None, in_flight: &in_flight, config: &config };
        select(self.process().topology(), &need, now, 0)
    }

    /// The read gets a connection, is proven on it or not sent, and is executed.
    pub(crate) fn read_answered(&mut self, world: &World, index: usize) -> Option<()> {
        let read = &self.client.reads[index];
        let connection = self.process().pool[read.target].filter(|open| open.is_alive(&self.servers));
        let surviving = self.surviving();
        let newest = self.newest_primary().map(|primary| &self.servers[primary]);
        let Some((connection, judged)) = connection.and_then(|open| self.admitted(world, read, open)) else {
            // Not served by this connection.
            self.client.reads.remove(index);
            return Some(());
        };
        let server = &self.servers[connection.server];
        let seen = server.visible();
        let proven = read.proof.filter(|proof| !proof.is_primary).and_then(|proof| proof.branch);
        let moved_on = proven.is_some_and(|branch| branch != server.branch());
        let mut must = read.must;
        if newest.is_none_or(|newest| newest.lineage & 1 << server.timeline == 0) {
            // On a discarded line of history that nobody here knows to be discarded; the write was not acknowledged.
            must.doubtful = 0;
        }
        if world.hides
            && !world.unexcused
            && !world.monotonic_fallback
            && read.proof.is_none_or(|proof| proof.is_primary)
        {
            // A standby shows a commit before its primary does: rule 1 says what a fallback may miss.
            must.shown &= self.acknowledged;
        }
        self.violation = match read.class {
            Class::Strict if judged => must.broken_by(seen, surviving),
            // Of a new primary that nobody here knows no bound can be shown.
            Class::Bounded if self.is_newest_known() => {
                Some(read.fresh & surviving & !seen).filter(|missed| *missed != 0).map(Violation::Stale)
            }
            _ => None,
        };
        self.client.reads[index].result = Some(Shown { commits: seen, connection, moved_on });
        Some(())
    }

    /// The connection, if the read may use it, and whether the promise then holds or the caller is told.
    fn admitted(&self, world: &World, read: &Read, mut open: Connection) -> Option<(Connection, bool)> {
        let server = &self.servers[open.server];
        let session = &self.client.session;
        let Some(proof) = read.proof else {
            // A connection that had no branch is asked again before it is used.
            open.branch = open.branch.or((!server.standby).then(|| server.branch()));
            if read.class != Class::Strict {
                return Some((open, true));
            }
            if !session.is_settled(self.process().topology(), open.branch?) {
                return None;
            }
            return match session.admits(self.process().topology(), open.branch?) {
                Ok(()) => Some((open, true)),
                Err(read_router::BranchLost::OldPrimary { .. }) => None,
                Err(_) => Some((open, false)),
            };
        };
        let same_server = open.instance == proof.instance;
        let trusted = match read.class {
            _ if proof.is_primary => same_server,
            Class::Eventual => same_server,
            _ => connection_trusts(open.opened_at, open.instance, proof.instance, proof.sent_at),
        };
        // Else a sample on the connection itself.
        let (timeline, exact) = server.told_timeline(world.ordinary_role);
        let branch = read_router::Branch { timeline, ..server.branch() };
        let renewed = !proof.same_life
            && !proof.is_primary
            && server.role() == Role::Replica
            && proof.branch == Some(branch)
            && self.process().topology().vouches_for(branch, exact)
            && server.lsn() >= proof.lsn;
        (trusted || renewed).then_some((open, true))
    }

    pub(crate) fn read_heard(&mut self, world: &World, index: usize) -> Option<()> {
        let read = self.client.reads.remove(index);
        let shown = read.result?;
        let at = self.instant();
        let process = self.processes[self.client.process].clone();
        let (client, topology) = (&mut *self.client, process.topology());
        match read.proof.filter(|_| shown.moved_on && !world.unexcused) {
            Some(proof) => client.showed_unheard(node(read.target), proof.epoch, at, shown.commits),
            // A standby under the primary's name: its branch is not known, so that nothing can be promised of it.
            None if read.proof.is_none() && shown.connection.branch.is_none() => {}
            None => client.must.shown |= shown.commits,
        }
        let lost = match read.proof {
            None => match shown.connection.branch {
                Some(branch) => client.session.contact(branch, at, topology),
                None => {
                    client.session.contact_in_recovery(at, topology);
                    None
                }
            },
            Some(proof) => match proof.branch {
                Some(branch) if proof.is_primary => client.session.contact(branch, at, topology),
                branch => {
                    client.session.read_done(node(read.target), proof.epoch, branch, at, topology);
                    None
                }
            },
        };
        client.told(lost, bits(&self.servers[shown.connection.server].log));
        Some(())
    }
}
