//! Judges a history, from nothing but the history.
//!
//! No I/O, no clock, nothing of the router's: who is to trust the router must only trust this.
//!
//! # What makes it exact
//!
//! A register's version goes up by one with each commit, and the row's lock orders its writers, so on one line of
//! history a larger version is a later commit, and whoever has a version has all smaller ones. Each write leaves its own
//! number as a tag, so a value names the call that wrote it. All instants come from one clock and enclose the call, so
//! "*a* ended before *b* started" is a fact, and nothing is concluded from calls that overlap. A run that is slow, or
//! stands still for a while, shows less; it never shows what is not so.
//!
//! # What is judged
//!
//! - **A strict read** has all that its session had before the read started: its acknowledged writes
//!   ([`Kind::MissedOwnWrite`]) and what servers that were no standbys had shown it
//!   ([`Kind::MissedShown`]), which includes the versions that a write overwrote, rolled back or not. Served by a
//!   standby it is not behind what standbys had shown to the session, by reads of any class ([`Kind::WentBack`]). Served
//!   by a primary it may be, but not if that was acknowledged or shown by a primary to anyone before the read started
//!   ([`Kind::BehindAcknowledged`]); else it is counted in [`Verdict::went_back_on_primary`], or, where
//!   [`monotonic_on_primary`](crate::history::Promise::monotonic_on_primary) says so, a [`Kind::WentBackOnPrimary`]. A session has, besides its own, what the
//!   sessions had whose tokens it was resumed from, up to the call that asked for the token.
//! - **A bounded read** has all that was acknowledged, or shown by a primary, to anyone earlier than its bound before
//!   the call ([`Kind::StalerThanBound`]).
//! - **Every read** shows values that a call wrote ([`Kind::Invented`]) which had started before the read ended
//!   ([`Kind::FromTheFuture`]) and was not rolled back ([`Kind::RolledBack`]); a version has one writer and a write one
//!   version ([`Kind::TwoHistories`]).
//! - **The end** has all that was acknowledged ([`Kind::Lost`]).
//! - **A loss is told.** Where an old primary died with commits that no standby had, they bind nobody once the promotion
//!   has begun; but no strict read of a session that had one of them is answered before the session was told
//!   ([`Kind::LostSilently`]). Judged are sessions of one task, up to the first call that may have told it in a way that
//!   a record of calls does not show: a write, a read of another class on a primary, a failure, a cancelled call.
//!
//! # What is excused
//!
//! While a promoted standby and the old primary both answer ([`Promotion`](crate::history::Promotion)), no client can
//! know of a new primary that it has not met. What was acknowledged to *others* since the promotion began therefore
//! binds neither a bounded read whose bound reaches back into that time nor a strict read on a primary that started in
//! it. What the session itself wrote or was shown binds as ever, but for one case: what a server showed that the router
//! had asked as a replica, and that had been promoted, or had followed a promoted one, meanwhile, does not bind a strict
//! read on a primary that started while two answered. Each read for which this made the difference is
//! counted in [`Verdict::excused`].
//!
//! # What is not judged
//!
//! Calls that failed or were cancelled show nothing; whether their writes happened is open. Sessions that were resumed
//! from the token of one that had a lost commit are not asked whether they were told. Reads without a class, and
//! `on_primary()`, are only held to the third rule. How registers that one statement reads, or one transaction writes,
//! go together is PostgreSQL's promise, not ours.

use crate::history::{Action, Class, History, Operation, Outcome};

mod acknowledged;
mod floors;
mod told;
mod values;

#[cfg(test)]
mod tests;

use self::acknowledged::Acknowledged;

/// What a history comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Broken promises.
    pub violations: Vec<Violation>,
    /// Strict reads on a primary behind what a standby had shown to the session and nobody had been told.
    pub went_back_on_primary: u64,
    /// Reads that would break a promise had two primaries not answered at the time.
    pub excused: u64,
    /// Sessions that were told that a failover may have lost what they had, and had it lost.
    pub told: u64,
}

/// One register of one call that breaks a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which promise.
    pub kind: Kind,
    /// The call.
    pub operation: u64,
    /// The register.
    pub register: u16,
    /// The version that was shown.
    pub found: u64,
    /// The version that should have been there at least, or, if versions are in conflict, that was there elsewhere.
    pub wanted: u64,
    /// The call that says so; zero if none does.
    pub because: u64,
}

/// The ways to break a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A strict read misses a write that was acknowledged to its session.
    MissedOwnWrite,
    /// A strict read misses a version that a primary had shown to its session.
    MissedShown,
    /// A strict read on a standby is behind what a standby had shown to its session.
    WentBack,
    /// A strict read on a primary is behind what a standby had shown to its session and a primary to someone.
    BehindAcknowledged,
    /// A strict read on a primary is behind what a standby had shown to its session.
    WentBackOnPrimary,
    /// A bounded read misses what was acknowledged earlier than its bound.
    StalerThanBound,
    /// A value that nobody wrote.
    Invented,
    /// A value whose write started after the read had ended.
    FromTheFuture,
    /// A value of a transaction that was rolled back.
    RolledBack,
    /// One version of a register has two writers, or one write two versions.
    TwoHistories,
    /// An acknowledged write is not there in the end.
    Lost,
    /// A strict read of a session that had what a failover lost, without a word of it.
    LostSilently,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::MissedOwnWrite,
        Self::MissedShown,
        Self::WentBack,
        Self::BehindAcknowledged,
        Self::WentBackOnPrimary,
        Self::StalerThanBound,
        Self::Invented,
        Self::FromTheFuture,
        Self::RolledBack,
        Self::TwoHistories,
        Self::Lost,
        Self::LostSilently,
    ];

    /// The name in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MissedOwnWrite => "missed_own_write",
            Self::MissedShown => "missed_shown",
            Self::WentBack => "went_back_between_replicas",
            Self::BehindAcknowledged => "behind_acknowledged",
            Self::WentBackOnPrimary => "went_back_on_primary",
            Self::StalerThanBound => "staler_than_bound",
            Self::Invented => "invented",
            Self::FromTheFuture => "from_the_future",
            Self::RolledBack => "rolled_back",
            Self::TwoHistories => "two_histories",
            Self::Lost => "lost",
            Self::LostSilently => "lost_silently",
        }
    }
}

/// Judges a history, in a time linear in its length but for sorting.
#[must_use]
pub fn check(history: &History) -> Verdict {
    let mut verdict = Verdict::default();
    let acknowledged = Acknowledged::of(history);
    values::check(history, &mut verdict);
    floors::check(history, &acknowledged, &mut verdict);
    told::check(history, &mut verdict);
    for operation in answered(history) {
        match operation.action {
            Action::Read(Class::Bounded(bound)) => {
                check_bound(operation, bound, &acknowledged, history, &mut verdict);
            }
            Action::Final => check_end(operation, &acknowledged, &mut verdict),
            _ => {}
        }
    }
    verdict.violations.sort_by_key(|violation| (violation.operation, violation.register, violation.kind));
    verdict
}

fn check_bound(read: &Operation, bound: u64, acknowledged: &Acknowledged, history: &History, verdict: &mut Verdict) {
    let at = read.started.saturating_sub(bound);
    let known = knowable(history, at);
    for value in &read.values {
        let wanted = surviving(history, read, value.register, acknowledged.before(value.register, known));
        if wanted.version > value.version {
            verdict.add(Kind::StalerThanBound, read, value.register, value.version, wanted);
        } else if surviving(history, read, value.register, acknowledged.before(value.register, at)).version
            > value.version
        {
            verdict.excused += 1;
        }
    }
}

fn check_end(end: &Operation, acknowledged: &Acknowledged, verdict: &mut Verdict) {
    for value in &end.values {
        let wanted = acknowledged.before(value.register, end.started);
        if wanted.version > value.version {
            verdict.add(Kind::Lost, end, value.register, value.version, wanted);
        }
    }
}

/// The last instant up to which what was acknowledged to others binds a read for which `at` would count.
fn knowable(history: &History, at: u64) -> u64 {
    let promotions = history.faults.iter().filter_map(|fault| fault.promotion.as_ref());
    promotions.filter(|promotion| promotion.is_split_at(at)).map(|promotion| promotion.began).min().unwrap_or(at)
}

/// What is left of a version for a read that ended when a promotion had begun which may have lost it.
fn surviving(history: &History, read: &Operation, register: u16, mark: Mark) -> Mark {
    let promotions = history.faults.iter().filter_map(|fault| fault.promotion.as_ref());
    let left = promotions.filter(|p| p.began <= read.ended).find_map(|p| p.left_of(register, mark.version));
    Mark { version: left.unwrap_or(mark.version), ..mark }
}

/// The calls that had an answer.
fn answered(history: &History) -> impl Iterator<Item = &Operation> {
    history.operations.iter().filter(|operation| operation.outcome == Outcome::Done)
}

/// A version, and the call that made it count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Mark {
    version: u64,
    operation: u64,
}

impl Verdict {
    fn add(&mut self, kind: Kind, operation: &Operation, register: u16, found: u64, wanted: Mark) {
        self.violations.push(Violation {
            kind,
            operation: operation.id,
            register,
            found,
            wanted: wanted.version,
            because: wanted.operation,
        });
    }
}
