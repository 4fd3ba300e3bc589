//! The session under test, with what it must see: the ghost that the code knows nothing of.

use read_router::{BranchLost, Epoch, NodeId, Proof, Session, Time, Topology, WriteId};

use crate::{process::Connection, server::Commits};

/// What a read asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// `MustSeeMyWrite`.
    Strict,
    /// `SecondsStale`.
    Bounded,
    /// `Eventual`.
    Eventual,
    /// On the primary, with no class.
    Plain,
}

/// One session, in one process, used by one or more tasks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) process: usize,
    pub(crate) session: Session,
    pub(crate) writes: Vec<Write>,
    pub(crate) reads: Vec<Read>,
    pub(crate) must: Must,
    pub(crate) unheard: Vec<Unheard>,
}

/// What a read showed that was executed on a node after it was promoted, or had followed a promotion, and before
/// anyone knew.
///
/// It counts once the node has answered again. Until then, and for ever if it never does, the old primary under the
/// primary's name is beyond what a client can know to be old.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Unheard {
    pub(crate) node: NodeId,
    pub(crate) epoch: Epoch,
    pub(crate) at: Time,
    pub(crate) commits: Commits,
}

/// What the session's strict reads must see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Must {
    /// Acknowledged to it.
    pub(crate) wrote: Commits,
    /// Shown to it.
    pub(crate) shown: Commits,
    /// Its writes that happened although nobody heard of it.
    pub(crate) doubtful: Commits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Write {
    pub(crate) id: WriteId,
    pub(crate) connection: Connection,
    pub(crate) commit: Option<u8>,
    pub(crate) doubt: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Read {
    pub(crate) class: Class,
    /// The session as it was when the read came, while the read waits for an observation.
    pub(crate) waiting: Option<Session>,
    /// The node chosen; the primary if there is no proof.
    pub(crate) target: usize,
    pub(crate) proof: Option<Proof>,
    pub(crate) must: Must,
    /// What a bounded read must see: acknowledged before the instant that its proof names.
    pub(crate) fresh: Commits,
    pub(crate) result: Option<Shown>,
}

/// A read that a server has answered and whose caller has not heard it yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shown {
    pub(crate) commits: Commits,
    pub(crate) connection: Connection,
    /// The server had gone over to another timeline than the one that the read was proven on.
    pub(crate) moved_on: bool,
}

/// A promise broken, with the commits that a read missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// A strict read missed a write that the session was told of.
    OwnWrite(Commits),
    /// A strict read missed what the session had been shown.
    Shown(Commits),
    /// A strict read missed a write of the session that nobody had heard of but that had happened.
    Doubtful(Commits),
    /// A bounded read missed what had been acknowledged before the instant that its proof named.
    Stale(Commits),
}

impl Client {
    pub(crate) fn new(session: Session) -> Self {
        Self { process: 0, session, writes: Vec::new(), reads: Vec::new(), must: Must::default(), unheard: Vec::new() }
    }

    /// The session was told that it lost something to a failover: it expects what the new primary has, no more. It is
    /// told once; reads of other tasks that are under way count as told.
    pub(crate) fn told(&mut self, lost: Option<BranchLost>, has: Commits) {
        if let Some(BranchLost::Discarded { .. }) = lost {
            for must in std::iter::once(&mut self.must).chain(self.reads.iter_mut().map(|read| &mut read.must)) {
                must.wrote &= has;
                must.shown &= has;
                must.doubtful &= has;
            }
            self.unheard.clear();
        }
    }

    /// Like a session's floors, one entry for each life of a node: its last read's end counts.
    pub(crate) fn showed_unheard(&mut self, node: NodeId, epoch: Epoch, at: Time, commits: Commits) {
        match self.unheard.iter_mut().find(|unheard| unheard.node == node && unheard.epoch == epoch) {
            Some(unheard) => {
                unheard.at = at;
                unheard.commits |= commits;
            }
            None => self.unheard.push(Unheard { node, epoch, at, commits }),
        }
    }

    /// The session has just been resolved: what a node on a new timeline showed counts from here on if the node was heard since.
    pub(crate) fn hear(&mut self, topology: &Topology) {
        let must = &mut self.must;
        self.unheard.retain(|unheard| {
            let Some(node) = topology.node(unheard.node) else { return false };
            if node.observation().is_some_and(|seen| seen.sent_at > unheard.at) {
                must.shown |= unheard.commits;
                return false;
            }
            let substitute = || topology.first_sample_after(topology.surviving()?, unheard.at);
            node.epoch() == Some(unheard.epoch) || substitute().is_none()
        });
    }
}

impl Must {
    /// The first promise that a strict read which saw `seen` broke; of doubtful writes those of the surviving line of
    /// history count.
    pub(crate) fn broken_by(&self, seen: Commits, surviving: Commits) -> Option<Violation> {
        let missed = |must: Commits| Some(must & !seen).filter(|missed| *missed != 0);
        missed(self.wrote)
            .map(Violation::OwnWrite)
            .or_else(|| missed(self.shown).map(Violation::Shown))
            .or_else(|| missed(self.doubtful & surviving).map(Violation::Doubtful))
    }
}
