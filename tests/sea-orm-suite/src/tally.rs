//! Where the statements of the tests' connections went.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
};

use crate::error::Error;

/// Statements that no replica may run, by the names of their reasons.
const NO_READS: &[&str] = &["not_a_read", "transaction", "misrouted", "given_out"];

/// What stands before the reason of a query that was held back out of caution; it is counted with its place too.
const CAUTION: &str = "caution.";

/// What stands in the place of a reason where a replica ran the statement.
const REPLICA: &str = "replica";

/// The file to which each connection adds its counts when it ends.
#[derive(Debug)]
pub(crate) struct Tally {
    path: PathBuf,
}

/// The sums of all connections: how many statements for each reason.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    by_reason: BTreeMap<String, u64>,
}

impl Tally {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { path: folder.join(format!("tally-{}", std::process::id())) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn read(&self) -> Result<Counts, Error> {
        let text = fs::read_to_string(&self.path).map_err(Error::file(&self.path))?;
        let mut sums = Counts::default();
        for (reason, count) in text.lines().filter_map(|line| line.split_once(' ')) {
            *sums.by_reason.entry(reason.to_owned()).or_default() += count.parse().unwrap_or(0);
        }
        Ok(sums)
    }
}

impl Counts {
    /// Queries that went to the primary only because nothing proved them to be reads, by reason, the most frequent first.
    fn caution(&self, f: &mut fmt::Formatter<'_>, proven: u64) -> fmt::Result {
        let reasons = self.by_reason.iter().filter_map(|(reason, count)| Some((reason.strip_prefix(CAUTION)?, *count)));
        let mut ranked: Vec<_> = reasons.collect();
        ranked.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let all: u64 = ranked.iter().map(|(_, count)| count).sum();
        let share = if all == 0 { 0.0 } else { all as f64 * 100.0 / (all + proven) as f64 };
        write!(f, "\nqueries sent to the primary out of caution: {share:.1}% ({all} of {})", all + proven)?;
        ranked.iter().try_for_each(|(reason, count)| write!(f, ", {reason} {count}"))
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = self.by_reason.iter().filter(|(reason, _)| !reason.starts_with(CAUTION));
        let (others, reads): (Vec<_>, Vec<_>) = places.partition(|(reason, _)| NO_READS.contains(&reason.as_str()));
        let all: u64 = reads.iter().map(|(_, count)| **count).sum();
        let served = self.by_reason.get(REPLICA).copied().unwrap_or(0);
        let share = if all == 0 { 0.0 } else { served as f64 * 100.0 / all as f64 };
        write!(f, "reads outside of transactions: {share:.1}% served by the replica ({served} of {all}")?;
        for (reason, count) in reads.iter().filter(|(reason, _)| *reason != REPLICA) {
            write!(f, ", {reason} {count}")?;
        }
        f.write_str("); other statements:")?;
        others.iter().try_for_each(|(reason, count)| write!(f, " {reason} {count}"))?;
        self.caution(f, all)
    }
}
