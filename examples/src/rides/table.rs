//! A report as a table.

use std::{fmt, time::Duration};

use sea_router::{NodeStats, Stats};

use crate::report::Report;

/// Shows a report, with what the router knows of the servers at the end.
pub(crate) struct Table<'a> {
    pub(crate) report: &'a Report,
    pub(crate) stats: &'a Stats,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} rounds in {:.2} s\n", self.report.rounds(), self.report.took.as_secs_f64())?;
        self.nodes(f)?;
        self.reasons(f)?;
        self.latencies(f)?;
        writeln!(f, "fallback rate  {:>6}", Percent(self.report.fallback_rate()))?;
        writeln!(f, "stale reads    {:>6}", self.report.stale)
    }
}

impl Table<'_> {
    fn nodes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<12}{:>10}{:>9}   staleness at the end", "server", "reads", "share")?;
        for node in &self.stats.nodes {
            let name = node.node.to_string();
            let reads = self.report.nodes.get(&name).copied().unwrap_or_default();
            let state = if node.node.is_primary() { String::new() } else { state(node) };
            let row = format!("{name:<12}{reads:>10}{:>9}   {state}", Percent(self.report.share(reads)));
            writeln!(f, "{}", row.trim_end())?;
        }
        writeln!(f)
    }

    fn reasons(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.report.reasons.is_empty() {
            return Ok(());
        }
        writeln!(f, "{:<16}{:>6}", "why the primary", "reads")?;
        for (reason, reads) in &self.report.reasons {
            writeln!(f, "{reason:<16}{reads:>6}")?;
        }
        writeln!(f)
    }

    fn latencies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<12}{:>10}{:>12}{:>12}{:>12}", "latency", "count", "p50", "p99", "longest")?;
        let report = self.report;
        for (name, latency) in [("writes", &report.writes), ("reads", &report.reads), ("  waited", &report.waits)] {
            let [half, most, all] = [0.5, 0.99, 1.0].map(|share| Millis(latency.at(share)));
            writeln!(f, "{name:<12}{:>10}{half:>12}{most:>12}{all:>12}", latency.count())?;
        }
        writeln!(f)
    }
}

/// How far a replica is behind, or why it does not serve.
fn state(node: &NodeStats) -> String {
    match node.staleness {
        _ if !node.standing.serves() => node.standing.as_str().to_owned(),
        Some(staleness) => format!("{} ms", Duration::as_millis(&staleness)),
        None => "unknown".to_owned(),
    }
}

/// A part of the whole.
struct Percent(f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.1}%", self.0 * 100.0))
    }
}

/// Microseconds, shown as milliseconds; none if nothing was measured.
struct Millis(u64);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.pad("-"),
            micros => f.pad(&format!("{:.2} ms", Duration::from_micros(micros).as_secs_f64() * 1000.0)),
        }
    }
}
