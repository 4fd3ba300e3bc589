//! Where the primary was, and when.

use std::time::Duration;

use crate::{
    Branch, Lsn, Position, Time,
    mutants::{Rule, is_off},
};

/// Everything acknowledged on `branch` before `sent_at` is at or below `lsn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sample {
    /// The line of history.
    pub branch: Branch,
    /// A moment before the question was sent.
    pub sent_at: Time,
    /// The position that was answered.
    pub lsn: Lsn,
}

impl Sample {
    /// The position on its line of history.
    #[must_use]
    pub const fn position(&self) -> Position {
        Position { branch: self.branch, lsn: self.lsn }
    }
}

/// Samples of primaries, oldest first: all of the recent ones, few of the old ones, none beyond ten minutes.
///
/// A sample that shows the same position as the one before replaces it, so an idle primary takes one place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Samples(Vec<Sample>);

/// Older samples prove nothing that anyone asks for.
const HORIZON: Duration = Duration::from_secs(600);
/// Below this many, none is thinned out.
const THIN_ABOVE: usize = 96;
/// At most this many are kept.
const CAPACITY: usize = 384;

impl Samples {
    pub(crate) fn push(&mut self, sample: Sample) {
        let at = self.0.partition_point(|s| s.sent_at <= sample.sent_at);
        let same = |s: &Sample| s.branch == sample.branch && s.lsn == sample.lsn;
        match at.checked_sub(1) {
            Some(last) if same(&self.0[last]) => self.0[last] = sample,
            _ => self.0.insert(at, sample),
        }
        self.forget(sample.sent_at);
    }

    /// The first kept sample of `branch` that was sent after `moment`. Strictly after: a coarse clock
    /// may give an acknowledgement and the question before it the same instant.
    pub(crate) fn first_after(&self, branch: Branch, moment: Time) -> Option<&Sample> {
        let is_later = |s: &Sample| s.sent_at > moment || is_off(Rule::StrictlyLater) && s.sent_at == moment;
        let from = self.0.partition_point(|s| !is_later(s));
        self.0[from..].iter().find(|s| s.branch == branch)
    }

    /// The newest sample of `branch` that a server at `lsn` has reached.
    pub(crate) fn newest_covered(&self, branch: Branch, lsn: Lsn) -> Option<&Sample> {
        let covered = |s: &&Sample| s.branch == branch && s.lsn <= lsn;
        self.0.iter().rev().find(covered)
    }

    pub(crate) fn newest(&self, branch: Branch) -> Option<&Sample> {
        self.0.iter().rev().find(|s| s.branch == branch)
    }

    /// Drops what is beyond the horizon and thins the rest: the older, the wider apart (a sixteenth of
    /// the age), so that a bound is overstated by little and a long one still has its proof.
    fn forget(&mut self, now: Time) {
        self.0.retain(|s| now.since(s.sent_at) <= HORIZON);
        if self.0.len() <= THIN_ABOVE {
            return;
        }
        let mut kept = 0;
        for next in 1..self.0.len() {
            let candidate = self.0[next];
            let gap_without = match self.0.get(next + 1) {
                Some(after) => after.sent_at.since(self.0[kept].sent_at),
                None => Duration::MAX,
            };
            let needed = gap_without > now.since(candidate.sent_at) / 16;
            if needed || candidate.branch != self.0[kept].branch {
                kept += 1;
                self.0[kept] = candidate;
            }
        }
        self.0.truncate(kept + 1);
        let excess = self.0.len().saturating_sub(CAPACITY);
        self.0.drain(..excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SystemId, Timeline};

    const BRANCH: Branch = Branch { system: SystemId(1), timeline: Timeline(1) };

    fn sample(ms: u64, lsn: u64) -> Sample {
        Sample { branch: BRANCH, sent_at: Time::from_nanos(ms * 1_000_000), lsn: Lsn::new(lsn) }
    }

    #[test]
    fn an_idle_primary_takes_one_place() {
        let mut samples = Samples::default();
        for ms in 0..1000 {
            samples.push(sample(ms * 100, 7));
        }
        assert_eq!(samples.0, [sample(99_900, 7)]);
    }

    #[test]
    fn a_late_answer_finds_its_place() {
        let mut samples = Samples::default();
        samples.push(sample(10, 1));
        samples.push(sample(30, 3));
        samples.push(sample(20, 2));
        assert_eq!(samples.first_after(BRANCH, sample(10, 0).sent_at), Some(&sample(20, 2)));
        assert_eq!(samples.first_after(BRANCH, sample(30, 0).sent_at), None, "strictly later");
        assert_eq!(samples.newest_covered(BRANCH, Lsn::new(2)), Some(&sample(20, 2)));
    }

    #[test]
    fn a_busy_primary_stays_bounded_and_bounds_are_overstated_by_little() {
        let mut samples = Samples::default();
        let last = 700_000;
        for ms in (0..=last).step_by(20) {
            samples.push(sample(ms, ms));
        }
        assert!(samples.0.len() <= CAPACITY, "{}", samples.0.len());
        for lag in [40, 100, 1_000, 30_000, 300_000] {
            let covered = samples.newest_covered(BRANCH, Lsn::new(last - lag)).unwrap();
            let bound = last - covered.sent_at.as_nanos() / 1_000_000;
            assert!(bound <= lag + lag / 8 + 20, "lag {lag} ms shown as {bound} ms");
        }
        assert_eq!(samples.newest_covered(BRANCH, Lsn::new(last - 650_000)), None);
    }
}
