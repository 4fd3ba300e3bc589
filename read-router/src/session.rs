//! What one session has done and has been shown.

use std::time::Duration;

use crate::{
    Branch, Epoch, Instance, Lsn, NodeId, Position, Sample, Time, Token, Topology,
    floor::{Floor, resolve_floor},
    mutants::{Rule, is_off},
    positions::Positions,
};

/// What one session must see: a plain value that the adapter keeps and feeds.
///
/// It costs a write nothing: a contact with the primary leaves a *dirty* mark, "since this moment", and the
/// first sample of that branch sent later turns it into a position, for all waiting sessions at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Session {
    /// Resolved: a server must have reached all of these.
    positions: Positions,
    /// Where commits lie that replicas have shown and the primary may not show yet; kept if asked for only.
    shown: Option<Positions>,
    /// From a token, not yet held against a sample sent after it came.
    imported: Option<Imported>,
    /// Contacts with a primary not yet resolved: the last one's end, for each branch.
    dirty: Vec<(Branch, Time)>,
    /// Reads on replicas not yet resolved: the last one's end, for each life of a node.
    floors: Vec<Floor>,
    /// Writes of unknown outcome that may still happen.
    doubts: Vec<WriteId>,
    next_write: u32,
    /// Connections given out whose writes we do not see.
    given_out: u32,
    /// Nothing is known of what the session has done.
    unknown: bool,
    /// Whether to stay on one replica, and on which.
    preference: Preference,
    window: Option<PrimaryWindow>,
}

/// How long the session's other reads stay on the primary after a write, and the last write's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PrimaryWindow {
    length: Duration,
    wrote: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Imported {
    positions: Positions,
    shown: Positions,
    at: Time,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Preference {
    #[default]
    Any,
    Last(Option<(NodeId, Epoch)>),
}

/// Stands for a life that no probe saw.
const NO_EPOCH: Epoch = Epoch(u64::MAX);

/// A write of a session, until it is acknowledged or known to be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(u32);

/// What the primary that answers may lack of what the session has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum BranchLost {
    /// It is on a newer branch, and the session has seen something of an older one that may not have
    /// survived the switch.
    #[error("timeline {} may lack what this session saw on timeline {}: a failover may have lost it", .now.timeline.0, .seen.timeline.0)]
    Discarded {
        /// The newest branch on which the session has seen something not known to survive.
        seen: Branch,
        /// The branch of the primary that answers.
        now: Branch,
    },
    /// It is on an older branch than the session has seen: the old primary, still answering.
    #[error("the primary that answers is on timeline {}, but this session has seen timeline {}: it is the old primary; check where the primary's URL points", .now.timeline.0, .seen.timeline.0)]
    OldPrimary {
        /// The newest branch that the session has seen.
        seen: Branch,
        /// The branch of the primary that answers.
        now: Branch,
    },
    /// It belongs to another cluster than what the session has seen.
    #[error("the primary that answers belongs to another cluster ({}) than this session's token ({})", .now.system.0, .seen.system.0)]
    OtherCluster {
        /// A branch that the session has seen.
        seen: Branch,
        /// The branch of the primary that answers.
        now: Branch,
    },
}

impl Session {
    /// A session that has neither written nor read. `sticky` makes it stay on the replica that it read
    /// from last, which is for sessions that one request or user holds, not for one that a process shares.
    #[must_use]
    pub fn new(sticky: bool) -> Self {
        Self { preference: if sticky { Preference::Last(None) } else { Preference::Any }, ..Self::default() }
    }

    /// The same session, which also keeps in mind what replicas have shown it and the primary may not show yet: see
    /// [`is_settled`](Self::is_settled). To be asked for before its first read.
    #[must_use]
    pub fn with_monotonic_fallback(mut self) -> Self {
        self.shown.get_or_insert_default();
        self
    }

    /// Whether it was made by [`with_monotonic_fallback`](Self::with_monotonic_fallback).
    #[must_use]
    pub fn has_monotonic_fallback(&self) -> bool {
        self.shown.is_some()
    }

    /// The same session, whose `Eventual` and `SecondsStale` reads go to the primary for this long after each of its writes.
    ///
    /// A guess where [`MustSeeMyWrite`](crate::ReadClass::MustSeeMyWrite) has proof: a replica that lags by more than this
    /// is read without the write. It needs no token: where the session's requests come from elsewhere, keep the time of
    /// its last write and say so with [`wrote_at`](Self::wrote_at).
    #[must_use]
    pub fn with_primary_window(mut self, length: Duration) -> Self {
        self.window = Some(PrimaryWindow { length, wrote: None });
        self
    }

    /// The session wrote at this moment, somewhere; for the [primary window](Self::with_primary_window).
    pub fn wrote_at(&mut self, at: Time) {
        if let Some(window) = &mut self.window {
            window.wrote = window.wrote.max(Some(at));
        }
    }

    /// When the session's last write ended; `None` if it has no [primary window](Self::with_primary_window) or has not
    /// written.
    #[must_use]
    pub fn last_write(&self) -> Option<Time> {
        self.window?.wrote
    }

    /// The session that goes on where `token` stands, which came at `now`.
    ///
    /// The token is input: until a sample of its branch sent after `now` has capped it, it counts as it
    /// is, so that a forged or unreachable position costs at most a wait.
    #[must_use]
    pub fn resume(token: Token, now: Time, sticky: bool) -> Self {
        let mut session = Self::new(sticky);
        match token.into_parts() {
            None => session.unknown = true,
            Some((positions, _)) if positions.is_empty() => {}
            Some((positions, shown)) => session.imported = Some(Imported { positions, shown, at: now }),
        }
        session
    }

    /// A write, or anything not known to be a read, is about to be sent.
    pub fn write_sent(&mut self) -> WriteId {
        let id = WriteId(self.next_write);
        self.next_write = self.next_write.wrapping_add(1);
        id
    }

    /// The write's caller went away, or its connection broke: it may still happen, at any time.
    pub fn in_doubt(&mut self, write: WriteId) {
        if !self.doubts.contains(&write) && !is_off(Rule::InDoubt) {
            self.doubts.push(write);
        }
    }

    /// The server is done with the write, or is known never to do it, as of `at`.
    ///
    /// Returns what the session may have lost if `branch` is not the one that it has seen.
    pub fn acknowledged(
        &mut self,
        write: WriteId,
        branch: Branch,
        at: Time,
        topology: &Topology,
    ) -> Option<BranchLost> {
        self.doubts.retain(|doubt| *doubt != write);
        self.wrote_at(at);
        self.seen_primary(branch, at, topology)
    }

    /// The write never reached a server.
    pub fn unsent(&mut self, write: WriteId) {
        self.doubts.retain(|doubt| *doubt != write);
    }

    /// A contact with the primary of `branch` ended at `at`, with success or with an error: it may have
    /// shown any commit.
    ///
    /// What the session had seen on older branches is contained in what the primary of the newer one had
    /// at that moment, as far as it survived; what may not have is returned, once. In the same way a session of
    /// which nothing was known is known again from here on, if no newer branch is known.
    pub fn contact(&mut self, branch: Branch, at: Time, topology: &Topology) -> Option<BranchLost> {
        if is_off(Rule::PrimaryReads) {
            return None;
        }
        self.seen_primary(branch, at, topology)
    }

    fn seen_primary(&mut self, branch: Branch, at: Time, topology: &Topology) -> Option<BranchLost> {
        let lost = match self.newest_branch() {
            Some(seen) if seen != branch || self.has_older_than(branch) => self.admits(topology, branch).err(),
            _ => None,
        };
        // An old primary stands for nothing that the session has seen on the newer one, or may have.
        let is_old = matches!(lost, Some(BranchLost::OldPrimary { .. }));
        let superseded = |b: Branch| b.system != branch.system || b.timeline < branch.timeline && !is_old;
        self.drop_branches(superseded);
        if topology.surviving().is_none_or(|surviving| surviving <= branch) {
            self.unknown = false;
        }
        match self.dirty.iter_mut().find(|(b, _)| *b == branch) {
            Some((_, since)) => *since = at.max(*since),
            None => self.dirty.push((branch, at)),
        }
        self.dirty.sort_unstable();
        lost
    }

    /// Drops what the session claims to have seen on newer branches than the primary's, after a new connection to the
    /// primary's name showed that none is known there.
    pub fn give_up_newer(&mut self, branch: Branch) {
        let newer = |b: Branch| b.system == branch.system && b.timeline > branch.timeline;
        self.drop_branches(newer);
    }

    /// Forgets what the session has seen on these branches.
    fn drop_branches(&mut self, gone: impl Fn(Branch) -> bool) {
        self.positions.retain(|p| !gone(p.branch));
        self.dirty.retain(|(b, _)| !gone(*b));
        self.floors.retain(|f| !f.at.map(|at| at.branch).or(f.branch).is_some_and(&gone));
        if let Some(shown) = &mut self.shown {
            shown.retain(|p| !gone(p.branch));
        }
        if let Some(imported) = &mut self.imported {
            imported.positions.retain(|p| !gone(p.branch));
            imported.shown.retain(|p| !gone(p.branch));
        }
        self.imported = self.imported.take().filter(|i| !i.positions.is_empty());
    }

    /// A statement ended at `at` on a server that was in recovery, though the primary's name led to it: it may have
    /// shown what some replica had. A later sample of the newest branch stands for it.
    pub fn contact_in_recovery(&mut self, at: Time, topology: &Topology) {
        self.add_floor(NodeId::PRIMARY, NO_EPOCH, None, at, topology);
    }

    /// A read on a replica ended at `at`; it was proven by an observation of `epoch` on `branch`.
    pub fn read_done(&mut self, node: NodeId, epoch: Epoch, branch: Option<Branch>, at: Time, topology: &Topology) {
        if let Preference::Last(last) = &mut self.preference {
            *last = Some((node, epoch));
        }
        self.add_floor(node, epoch, branch, at, topology);
    }

    fn add_floor(&mut self, node: NodeId, epoch: Epoch, branch: Option<Branch>, at: Time, topology: &Topology) {
        if is_off(Rule::FloorEach) {
            self.floors.clear();
        }
        let key = (node, epoch);
        match self.floors.binary_search_by_key(&key, |f| (f.node, f.epoch)) {
            Ok(found) => {
                let floor = &mut self.floors[found];
                floor.ended_at = floor.ended_at.max(at);
                floor.branch = floor.branch.max(branch);
                floor.at = None;
                floor.xid = None;
                floor.bound = None;
            }
            Err(_) => {
                // Epochs come and go; a session that never asks for its floors must not collect them all.
                self.resolve(topology);
                let place = self.floors.partition_point(|f| (f.node, f.epoch) < key);
                self.floors.insert(
                    place,
                    Floor { node, epoch, branch, ended_at: at, at: None, xid: None, bound: None, out: 0 },
                );
            }
        }
    }

    /// A connection to a replica was given out, on which the session reads unseen: until as many
    /// [`checked_in`](Self::checked_in) calls have come, its strict reads go to this life of the node or to the primary.
    pub fn checked_out(&mut self, node: NodeId, epoch: Epoch, branch: Option<Branch>, at: Time, topology: &Topology) {
        self.read_done(node, epoch, branch, at, topology);
        self.floors.iter_mut().filter(|f| (f.node, f.epoch) == (node, epoch)).for_each(|floor| floor.out += 1);
    }

    /// A connection that was [`checked_out`](Self::checked_out) is back as of `at`.
    pub fn checked_in(&mut self, node: NodeId, epoch: Epoch, branch: Option<Branch>, at: Time, topology: &Topology) {
        self.floors.iter_mut().filter(|f| (f.node, f.epoch) == (node, epoch)).for_each(|floor| {
            floor.out = floor.out.saturating_sub(1);
        });
        self.read_done(node, epoch, branch, at, topology);
    }

    /// A connection whose writes we do not see was given out; strict reads go to the primary until as many
    /// [`taken_back`](Self::taken_back) calls have come.
    pub fn given_out(&mut self) {
        self.given_out = self.given_out.saturating_add(1);
    }

    /// A connection that was given out is over, and its end was a [contact](Self::contact) of its own.
    pub fn taken_back(&mut self) {
        self.given_out = self.given_out.saturating_sub(1);
    }

    /// Nothing is known of what the session did up to now.
    pub fn forget(&mut self) {
        self.unknown = true;
    }

    /// Turns marks into positions where `topology` has a sample that may: of the same branch and sent
    /// strictly after the mark.
    pub fn resolve(&mut self, topology: &Topology) {
        let positions = &mut self.positions;
        self.dirty.retain(|(branch, since)| match sample_for_mark(topology, *branch, *since) {
            Some(sample) => {
                positions.advance(Position { branch: sample.branch, lsn: sample.lsn });
                false
            }
            None => true,
        });
        let shown = &mut self.shown;
        self.floors.retain_mut(|floor| match resolve_floor(floor, topology) {
            Some(position) => {
                positions.advance(position);
                if let Some(shown) = shown.as_mut().filter(|_| !floor.is_shown(topology)) {
                    shown.advance(position);
                }
                false
            }
            None => true,
        });
        if let Some(imported) = &mut self.imported {
            let at = if is_off(Rule::LaterCap) { Time::default() } else { imported.at };
            if let Some(shown) = shown {
                imported.shown.retain(|position| match topology.first_sample_after(position.branch, at) {
                    Some(cap) => {
                        shown.advance(Position { lsn: position.lsn.min(cap.lsn), ..*position });
                        false
                    }
                    None => true,
                });
            }
            imported.positions.retain(|position| match topology.first_sample_after(position.branch, at) {
                Some(cap) => {
                    positions.advance(Position { lsn: position.lsn.min(cap.lsn), ..*position });
                    false
                }
                // A branch that is over has no later sample; what lies below its switch point is real.
                None if is_below_a_switch(topology, *position, at) => {
                    positions.advance(*position);
                    false
                }
                None => true,
            });
            if imported.positions.is_empty() {
                self.imported = None;
            }
        }
        if let Some(shown) = shown {
            shown.retain(|position| !topology.shows(*position));
        }
    }

    /// The token, if all that the session has done and seen is resolved; resolve first.
    ///
    /// `None` means that a later sample is needed. A session of which nothing is known, or with a write in
    /// doubt, has the unknown token. With [monotonic fallback](Self::with_monotonic_fallback) the token says also what
    /// the primary may not show yet.
    #[must_use]
    pub fn token(&self) -> Option<Token> {
        if self.unknown || !self.doubts.is_empty() || self.given_out > 0 {
            return Some(Token::UNKNOWN);
        }
        let resolved = (self.dirty.is_empty() || is_off(Rule::UnresolvedIsUnknown))
            && (self.floors.iter().all(|floor| floor.at.is_some()) || is_off(Rule::ExportedFloors))
            && self.imported.is_none();
        resolved.then(|| {
            let (mut positions, mut shown) = (self.positions.clone(), self.shown.clone());
            for at in self.floors.iter().filter_map(Floor::passed).filter(|_| !is_off(Rule::ExportedFloors)) {
                positions.advance(at);
                if let Some(shown) = &mut shown {
                    shown.advance(at);
                }
            }
            Token::from_parts(positions, shown.unwrap_or_default())
        })
    }

    /// Whether the [token](Self::token) names no position past what the primary has said: one that does is met by no server
    /// until something more is written, and is not known to survive a failover before that.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        is_off(Rule::ExportedFloors) || self.floors.iter().all(|floor| floor.bound.is_some())
    }

    /// Whether the primary on `branch` certainly shows all that replicas have shown this session, so that a read there does not go
    /// back in time.
    ///
    /// A replica shows a commit a moment before its primary does: the log is shipped before the committing process
    /// makes its commit visible, and a synchronous standby is waited for in between. `true` if the session does not
    /// [keep this in mind](Self::with_monotonic_fallback). What it was shown on another branch is left to
    /// [`admits`](Self::admits): a promoted server shows all that it had replayed.
    #[must_use]
    pub fn is_settled(&self, topology: &Topology, branch: Branch) -> bool {
        let Some(shown) = self.shown.as_ref().filter(|_| !is_off(Rule::Settled)) else { return true };
        let is_shown = |position: &Position| position.branch != branch || topology.shows(*position);
        let imported = self.imported.as_ref().map_or(&[][..], |imported| imported.shown.as_slice());
        self.floors.iter().all(|floor| floor.is_shown(topology) || floor.passed().is_some_and(|at| is_shown(&at)))
            && shown.as_slice().iter().chain(imported).all(is_shown)
    }

    /// Whether the primary on `branch` certainly has all that the session has seen.
    ///
    /// # Errors
    /// Says what it may lack, and why.
    pub fn admits(&self, topology: &Topology, branch: Branch) -> Result<(), BranchLost> {
        if is_off(Rule::GatedPrimary) {
            return Ok(());
        }
        // The branch of a replica read is open until the replica is heard again: it may have been the newest one.
        let newest = topology.surviving().filter(|newest| *newest > branch && newest.system == branch.system);
        let is_open = self.floors.iter().any(|floor| floor.at.is_none());
        if let Some(seen) = newest.filter(|_| is_open && !is_off(Rule::LaterBranch)) {
            return Err(BranchLost::OldPrimary { seen, now: branch });
        }
        let mut lost = None;
        for (seen, lsn) in self.seen() {
            if seen.system != branch.system {
                return Err(BranchLost::OtherCluster { seen, now: branch });
            }
            if seen.timeline > branch.timeline {
                return Err(BranchLost::OldPrimary { seen, now: branch });
            }
            let survives = |lsn| topology.survives(Position { branch: seen, lsn }, branch);
            if seen.timeline < branch.timeline && !lsn.is_some_and(survives) {
                lost = lost.max(Some(seen));
            }
        }
        match lost {
            Some(seen) => Err(BranchLost::Discarded { seen, now: branch }),
            None => Ok(()),
        }
    }

    /// Whether the primary window is open: after a write, and while one may still happen.
    pub(crate) fn has_just_written(&self, now: Time) -> bool {
        self.window.is_some_and(|window| {
            let wrote = window.wrote.is_some_and(|at| now.since(at) < window.length);
            wrote || self.has_doubts() || self.has_given_out()
        })
    }

    pub(crate) fn is_unknown(&self) -> bool {
        self.unknown
    }

    pub(crate) fn has_doubts(&self) -> bool {
        !self.doubts.is_empty()
    }

    pub(crate) fn has_given_out(&self) -> bool {
        self.given_out > 0
    }

    pub(crate) fn dirty(&self) -> &[(Branch, Time)] {
        &self.dirty
    }

    pub(crate) fn floors(&self) -> &[Floor] {
        &self.floors
    }

    pub(crate) fn preferred(&self) -> Option<(NodeId, Epoch)> {
        match self.preference {
            Preference::Any => None,
            Preference::Last(last) => last,
        }
    }

    /// All positions that a server must have reached, imported ones included.
    pub(crate) fn positions(&self) -> impl Iterator<Item = Position> + '_ {
        let imported = self.imported.as_ref().map_or(&[][..], |imported| imported.positions.as_slice());
        self.positions.as_slice().iter().chain(imported).copied()
    }

    /// Every branch on which the session has seen something, with the position where it is known.
    fn seen(&self) -> impl Iterator<Item = (Branch, Option<Lsn>)> + '_ {
        let positions = self.positions().map(|p| (p.branch, Some(p.lsn)));
        let dirty = self.dirty.iter().map(|(branch, _)| (*branch, None));
        let floors = self.floors.iter().filter_map(|floor| match floor.passed() {
            Some(at) => Some((at.branch, Some(at.lsn))),
            None => Some((floor.branch?, None)),
        });
        positions.chain(dirty).chain(floors)
    }

    fn newest_branch(&self) -> Option<Branch> {
        self.seen().map(|(branch, _)| branch).max()
    }

    fn has_older_than(&self, branch: Branch) -> bool {
        self.seen().any(|(seen, _)| seen < branch)
    }
}

/// The sample that turns a contact with a primary of `branch` into a position.
fn sample_for_mark(topology: &Topology, branch: Branch, since: Time) -> Option<&Sample> {
    let of = if is_off(Rule::BranchOfMark) { topology.surviving()? } else { branch };
    topology.first_sample_after(of, since)
}

/// Whether a position from outside lies on an older branch where the surviving one, asked after it came, contains it.
fn is_below_a_switch(topology: &Topology, position: Position, came: Time) -> bool {
    let Some(surviving) = topology.surviving().filter(|b| *b != position.branch) else { return false };
    topology.survives(position, surviving) && topology.first_sample_after(surviving, came).is_some()
}

/// Whether a connection to a server may be trusted for an observation of it: the connection was open before
/// the question was sent, and both are of one instance. It has then lived through no crash in between.
#[must_use]
pub fn connection_trusts(opened_at: Time, connection: Instance, observed: Instance, sent_at: Time) -> bool {
    (opened_at < sent_at || is_off(Rule::ConnectionTrust)) && connection == observed
}

#[cfg(test)]
mod tests;
