//! What a run has shown.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

use crate::{
    checker::{Kind, Verdict},
    history::{Action, Class, History, Outcome},
    worker::Counters,
};

/// The counts of a run; `--json` prints it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Where all choices came from.
    pub seed: u64,
    /// Time under load, all episodes together.
    pub seconds: f64,
    /// Clusters that were started, used and broken.
    pub episodes: u64,
    /// Recorded calls.
    pub operations: u64,
    /// Answered reads of `MustSeeMyWrite`, each judged.
    pub strict_reads: u64,
    /// The part of them that standbys served, by the servers' own word.
    pub replica_share: f64,
    /// Broken promises, by kind.
    pub violations: BTreeMap<&'static str, u64>,
    /// Strict reads on a primary behind what a replica had shown and nobody had been told.
    pub went_back_on_primary: u64,
    /// Reads that two primaries at once excuse.
    pub excused: u64,
    /// Sessions that were told of what a failover had lost.
    pub told: u64,
    /// Answered reads by class: on standbys, on primaries.
    pub reads: BTreeMap<&'static str, (u64, u64)>,
    /// Why strict reads went to the primary, by the router's word.
    pub primary_reasons: BTreeMap<String, u64>,
    /// Failed reads, by cause; those of strict reads alone stand in `failed_strict_reads`.
    pub failed_reads: BTreeMap<String, u64>,
    /// Failed strict reads, by cause.
    pub failed_strict_reads: BTreeMap<String, u64>,
    /// Reads whose caller went away.
    pub cancelled_reads: u64,
    /// Writes, by how they ended.
    pub writes: BTreeMap<String, u64>,
    /// Sessions that were used, and how many of them went on where a token of the same or the other process stood.
    pub sessions: u64,
    /// Sessions resumed from a token of the same process.
    pub resumed_here: u64,
    /// Sessions resumed from a token of the other process.
    pub resumed_across: u64,
    /// What was done to the servers, by kind.
    pub faults: BTreeMap<String, u64>,
    /// Times that a session was told that a failover may have lost what it saw.
    pub branch_lost: u64,
    /// Reads that waited for an observation.
    pub waits: u64,
    /// Probes sent.
    pub probes: u64,
    #[serde(skip)]
    strict_on_standbys: u64,
}

impl Report {
    /// Of nothing yet.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let violations = Kind::ALL.into_iter().map(|kind| (kind.as_str(), 0)).collect();
        Self { seed, violations, ..Self::default() }
    }

    /// Broken promises of all kinds.
    #[must_use]
    pub fn broken(&self) -> u64 {
        self.violations.values().sum()
    }

    /// Adds an episode.
    pub fn add(&mut self, history: &History, verdict: &Verdict) {
        self.episodes += 1;
        self.operations += history.operations.len() as u64;
        self.went_back_on_primary += verdict.went_back_on_primary;
        self.excused += verdict.excused;
        self.told += verdict.told;
        for violation in &verdict.violations {
            *self.violations.entry(violation.kind.as_str()).or_default() += 1;
        }
        for fault in &history.faults {
            count(&mut self.faults, &fault.kind);
        }
        let mut sessions: Vec<u64> = history.operations.iter().map(|operation| operation.session).collect();
        sessions.sort_unstable();
        sessions.dedup();
        self.sessions += sessions.len() as u64;
        for operation in &history.operations {
            match (&operation.action, &operation.outcome) {
                (Action::Read(class), Outcome::Done) => {
                    let standby = operation.server.is_some_and(|server| server.standby);
                    let (standbys, primaries) = self.reads.entry(class.as_str()).or_default();
                    *if standby { standbys } else { primaries } += 1;
                    if *class == Class::Strict {
                        self.strict_reads += 1;
                        self.strict_on_standbys += u64::from(standby);
                        if let Some(reason) = operation.reason.as_ref().filter(|_| !standby) {
                            count(&mut self.primary_reasons, reason);
                        }
                    }
                }
                (Action::Read(class), Outcome::Failed(cause)) => {
                    count(&mut self.failed_reads, cause);
                    if *class == Class::Strict {
                        count(&mut self.failed_strict_reads, cause);
                    }
                }
                (Action::Read(_), _) => self.cancelled_reads += 1,
                (Action::Write(_), outcome) => count(&mut self.writes, &name_of(outcome)),
                (Action::Resume(exports), _) => {
                    let here = exports.iter().all(|export| export >> 48 == operation.session >> 48);
                    *if here { &mut self.resumed_here } else { &mut self.resumed_across } += 1;
                }
                _ => {}
            }
        }
        // Exact up to 2^53 reads.
        self.replica_share = self.strict_on_standbys as f64 / self.strict_reads.max(1) as f64;
    }

    pub(crate) fn add_counters(&mut self, counters: Counters) {
        self.branch_lost += counters.branch_lost;
        self.waits += counters.waits;
        self.probes += counters.probes;
    }
}

fn name_of(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Done => "acknowledged".into(),
        Outcome::RolledBack => "rolled_back".into(),
        Outcome::Cancelled => "cancelled".into(),
        Outcome::Failed(cause) => format!("failed_{cause}"),
    }
}

fn count(counts: &mut BTreeMap<String, u64>, key: &str) {
    match counts.get_mut(key) {
        Some(count) => *count += 1,
        None => drop(counts.insert(key.to_owned(), 1)),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} operations in {:.0} s, {} episodes, seed {}",
            self.operations, self.seconds, self.episodes, self.seed
        )?;
        writeln!(f, "{} strict reads, {:.1}% of them on replicas", self.strict_reads, self.replica_share * 100.0)?;
        writeln!(f, "\n{:<20}{:>12}{:>12}", "reads", "on replicas", "on primary")?;
        for (class, (standbys, primaries)) in &self.reads {
            writeln!(f, "{class:<20}{standbys:>12}{primaries:>12}")?;
        }
        for (title, counts) in [
            ("why strict reads went to the primary", &self.primary_reasons),
            ("failed reads", &self.failed_reads),
            ("writes", &self.writes),
            ("faults", &self.faults),
        ] {
            writeln!(f, "\n{title}")?;
            counts.iter().try_for_each(|(name, count)| writeln!(f, "  {name:<30}{count:>8}"))?;
        }
        writeln!(
            f,
            "\n{} sessions, {} resumed from the same process, {} from the other",
            self.sessions, self.resumed_here, self.resumed_across
        )?;
        writeln!(f, "{} strict reads on a primary behind a replica (not promised)", self.went_back_on_primary)?;
        writeln!(f, "{} reads excused by two primaries at once", self.excused)?;
        writeln!(f, "{} sessions told of what a failover had lost", self.told)?;
        writeln!(f, "\n{} violations", self.broken())?;
        let found = self.violations.iter().filter(|(_, count)| **count > 0);
        found.into_iter().try_for_each(|(kind, count)| writeln!(f, "  {kind:<30}{count:>8}"))
    }
}
