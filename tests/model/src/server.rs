//! The servers: PostgreSQL as far as the promises depend on it.

use read_router::{Answer, Backend, Branch, Greeting, Instance, Lsn, NodeId, Role, SystemId, Timeline, WalLayout};

use crate::World;

/// Commits, as bits: each commit of a run has a number of its own, whatever its place in a log.
pub type Commits = u16;

/// One server. Its log is the list of commits that it has replayed or made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    /// Counts its crashes and restarts: connections belong to one life.
    pub(crate) life: u8,
    /// Counts the starts of the postmaster; a crash of a backend begins a new life under the old start.
    pub(crate) starts: u8,
    pub(crate) standby: bool,
    pub(crate) timeline: u8,
    /// The timeline and those that it branched off, as bits.
    pub(crate) lineage: u16,
    /// The timeline in the control file, which is all that an ordinary role sees of a standby.
    pub(crate) control: u8,
    pub(crate) log: Vec<u8>,
    /// What of the log survives a crash.
    pub(crate) flushed: usize,
    /// The server whose log a standby replays.
    pub(crate) upstream: usize,
    /// A standby shows the last commit of its log while its position has not passed it.
    pub(crate) showing: bool,
    /// In the log and not yet visible: the committing backend still waits for a synchronous standby.
    pub(crate) hidden: Commits,
}

const SYSTEM: SystemId = SystemId(7);

pub(crate) fn bits(log: &[u8]) -> Commits {
    log.iter().fold(0, |all, commit| all | 1 << commit)
}

impl Server {
    pub(crate) fn new(standby: bool) -> Self {
        Self {
            life: 0,
            starts: 0,
            standby,
            timeline: 1,
            lineage: 1 << 1,
            control: 1,
            log: Vec::new(),
            flushed: 0,
            upstream: 0,
            showing: false,
            hidden: 0,
        }
    }

    /// What a query sees.
    pub(crate) fn visible(&self) -> Commits {
        bits(&self.log) & !self.hidden
    }

    pub(crate) fn commit(&mut self, commit: u8, asynchronous: bool) {
        self.log.push(commit);
        if !asynchronous {
            self.flushed = self.log.len();
        }
    }

    /// The next commit that a standby of `upstream` replays.
    pub(crate) fn next_of(&self, upstream: &Self) -> Option<u8> {
        let streams =
            self.standby && !self.showing && upstream.timeline == self.timeline && upstream.log.starts_with(&self.log);
        upstream.log.get(self.log.len()).copied().filter(|_| streams)
    }

    pub(crate) fn replay(&mut self, commit: u8) {
        self.log.push(commit);
        self.flushed = self.log.len();
    }

    /// Replay of the commit is not over, but queries see it.
    pub(crate) fn show(&mut self, commit: u8) {
        self.replay(commit);
        self.showing = true;
    }

    /// A standby comes back one commit behind what it had shown; a primary loses what was not flushed.
    pub(crate) fn crash(&mut self, postmaster: bool) {
        self.life += 1;
        self.starts += u8::from(postmaster);
        self.hidden = 0;
        self.showing = false;
        if self.standby {
            self.log.pop();
            self.flushed = self.log.len();
        } else {
            self.log.truncate(self.flushed);
        }
    }

    pub(crate) fn promote(&mut self, timeline: u8) {
        self.standby = false;
        self.showing = false;
        self.timeline = timeline;
        self.lineage |= 1 << timeline;
    }

    /// Whether a standby may go on with the log of `new`, which is on a newer timeline.
    pub(crate) fn can_follow(&self, new: &Self) -> bool {
        self.standby && !self.showing && new.timeline > self.timeline && new.log.starts_with(&self.log)
    }

    pub(crate) fn follow(&mut self, new: &Self, upstream: usize) {
        self.timeline = new.timeline;
        self.lineage = new.lineage;
        self.upstream = upstream;
    }

    /// Becomes a standby of `new`, at the last commit that both have.
    pub(crate) fn rewind(&mut self, new: &Self, upstream: usize) {
        let common = self.log.iter().zip(&new.log).take_while(|(mine, theirs)| mine == theirs).count();
        self.log.truncate(common);
        self.flushed = common;
        self.standby = true;
        self.follow(new, upstream);
        self.control = new.timeline;
        self.hidden = 0;
        self.showing = false;
        self.life += 1;
        self.starts += 1;
    }

    pub(crate) fn role(&self) -> Role {
        if self.standby { Role::Replica } else { Role::Primary }
    }

    /// Commits are far apart, and never at the start of a page.
    pub(crate) fn lsn(&self) -> Lsn {
        let passed = self.log.len() - usize::from(self.showing);
        Lsn::new(0x1000 + 0x100 * u64::try_from(passed).unwrap_or(u64::MAX))
    }

    /// The timeline as an answer tells it, and whether by the server's own word.
    pub(crate) fn told_timeline(&self, ordinary_role: bool) -> (Timeline, bool) {
        let exact = !(ordinary_role && self.standby);
        (Timeline(u32::from(if exact { self.timeline } else { self.control })), exact)
    }

    /// Commits are numbered as their transactions are.
    fn xid(&self) -> u64 {
        let end = self.log.iter().max().map_or(0, |commit| u64::from(*commit) + 1);
        if self.hidden == 0 { end } else { u64::from(self.hidden.trailing_zeros()) }
    }

    pub(crate) fn answer(&self, world: &World) -> Answer {
        let (timeline, exact) = self.told_timeline(world.ordinary_role);
        let xid = world.monotonic_fallback.then(|| self.xid());
        Answer { role: self.role(), lsn: self.lsn(), timeline: Some(timeline), exact, xid }
    }

    pub(crate) fn branch(&self) -> Branch {
        branch(self.timeline)
    }

    pub(crate) fn instance(&self, server: usize) -> Instance {
        let port = u16::try_from(server).unwrap_or(u16::MAX);
        Instance { system: SYSTEM, started_us: i64::from(self.starts), port }
    }

    pub(crate) fn greeting(&self, server: usize) -> Greeting {
        Greeting {
            instance: self.instance(server),
            layout: WalLayout::default(),
            backend: Backend { pid: 1, started_us: Some(1) },
            database: 5,
            branch: (!self.standby).then(|| self.branch()),
        }
    }
}

pub(crate) fn branch(timeline: u8) -> Branch {
    Branch { system: SYSTEM, timeline: Timeline(u32::from(timeline)) }
}

/// The node of the configuration at this place.
pub(crate) fn node(index: usize) -> NodeId {
    NodeId(u16::try_from(index).unwrap_or(u16::MAX))
}
