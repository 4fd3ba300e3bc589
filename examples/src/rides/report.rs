//! What a run has shown.

use std::{collections::BTreeMap, time::Duration};

use sea_router::NodeId;
use serde::Serialize;

use crate::{api::Reads, latency::Latency, simulator::Round};

/// Counts and latencies of the rounds so far.
pub(crate) struct Report {
    pub(crate) reads_from: Reads,
    /// Reads served by each node.
    pub(crate) nodes: BTreeMap<String, u64>,
    /// Reads served by the primary, by reason.
    pub(crate) reasons: BTreeMap<String, u64>,
    /// Reads that did not see the write before them.
    pub(crate) stale: u64,
    pub(crate) writes: Latency,
    pub(crate) reads: Latency,
    /// Of the reads that waited for a replica to catch up.
    pub(crate) waits: Latency,
    /// From the first round to the last.
    pub(crate) took: Duration,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct Summary<'a> {
    mode: &'static str,
    rounds: u64,
    reads: u64,
    replica_reads: u64,
    primary_reads: u64,
    stale_reads: u64,
    fallback_rate: f64,
    reasons: &'a BTreeMap<String, u64>,
    per_node: &'a BTreeMap<String, u64>,
    p50_us: u64,
    p99_us: u64,
    write_p50_us: u64,
    write_p99_us: u64,
    waited_reads: u64,
    waited_p50_us: u64,
    waited_p99_us: u64,
    elapsed_ms: u64,
}

impl Report {
    /// Of no round yet, on these nodes.
    pub(crate) fn new(reads_from: Reads, nodes: impl IntoIterator<Item = NodeId>) -> Self {
        Self {
            reads_from,
            nodes: nodes.into_iter().map(|node| (node.to_string(), 0)).collect(),
            reasons: BTreeMap::new(),
            stale: 0,
            writes: Latency::new(),
            reads: Latency::new(),
            waits: Latency::new(),
            took: Duration::ZERO,
        }
    }

    /// Adds a round.
    pub(crate) fn add(&mut self, round: &Round) {
        let read = &round.read;
        *self.nodes.entry(read.node.clone()).or_default() += 1;
        if let Some(reason) = &read.reason {
            *self.reasons.entry(reason.clone()).or_default() += 1;
        }
        self.stale += u64::from(round.stale);
        self.writes.add(round.write);
        self.reads.add(read.took);
        if !read.waited.is_zero() {
            self.waits.add(read.waited);
        }
    }

    /// Rounds so far, each with one write and one read.
    pub(crate) fn rounds(&self) -> u64 {
        self.reads.count()
    }

    fn primary_reads(&self) -> u64 {
        self.nodes.get(&NodeId::PRIMARY.to_string()).copied().unwrap_or_default()
    }

    /// The part of the reads that the primary served, from 0 to 1.
    pub(crate) fn fallback_rate(&self) -> f64 {
        self.share(self.primary_reads())
    }

    /// So many reads as a part of all, from 0 to 1.
    pub(crate) fn share(&self, reads: u64) -> f64 {
        // Exact up to 2^53 reads; with none yet, no part of them is anywhere.
        reads as f64 / self.rounds().max(1) as f64
    }

    /// The whole as values.
    pub(crate) fn summary(&self) -> Summary<'_> {
        Summary {
            mode: match self.reads_from {
                Reads::Gated => "gated",
                Reads::Naive => "naive",
            },
            rounds: self.rounds(),
            reads: self.rounds(),
            replica_reads: self.rounds() - self.primary_reads(),
            primary_reads: self.primary_reads(),
            stale_reads: self.stale,
            fallback_rate: self.fallback_rate(),
            reasons: &self.reasons,
            per_node: &self.nodes,
            p50_us: self.reads.at(0.5),
            p99_us: self.reads.at(0.99),
            write_p50_us: self.writes.at(0.5),
            write_p99_us: self.writes.at(0.99),
            waited_reads: self.waits.count(),
            waited_p50_us: self.waits.at(0.5),
            waited_p99_us: self.waits.at(0.99),
            elapsed_ms: u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::client::Answer;

    fn round(node: NodeId, reason: Option<&str>, waited_us: u64, stale: bool) -> Round {
        let read = Answer {
            ride: None,
            node: node.to_string(),
            reason: reason.map(str::to_owned),
            waited: Duration::from_micros(waited_us),
            took: Duration::from_micros(200),
        };
        Round { ride: 1, write: Duration::from_micros(100), read, stale }
    }

    #[test]
    fn json_has_every_count() {
        let mut report = Report::new(Reads::Gated, [NodeId::PRIMARY, NodeId::replica(0), NodeId::replica(1)]);
        report.add(&round(NodeId::replica(0), None, 50, false));
        report.add(&round(NodeId::replica(0), None, 0, true));
        report.add(&round(NodeId::PRIMARY, Some("behind"), 150, false));
        report.add(&round(NodeId::PRIMARY, Some("in_doubt"), 0, false));
        report.took = Duration::from_millis(7);
        let expected = json!({
            "mode": "gated", "rounds": 4, "reads": 4, "replica_reads": 2, "primary_reads": 2, "stale_reads": 1,
            "fallback_rate": 0.5, "reasons": {"behind": 1, "in_doubt": 1},
            "per_node": {"primary": 2, "replica0": 2, "replica1": 0},
            "p50_us": 200, "p99_us": 200, "write_p50_us": 100, "write_p99_us": 100,
            "waited_reads": 2, "waited_p50_us": 50, "waited_p99_us": 150, "elapsed_ms": 7,
        });
        assert_eq!(serde_json::to_value(report.summary()).unwrap(), expected);
    }

    #[test]
    fn a_fallback_rate_of_nothing_is_zero() {
        let report = Report::new(Reads::Naive, []);
        assert_eq!(report.fallback_rate(), 0.0);
    }
}
