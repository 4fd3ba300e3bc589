//! What the statements come to.

use std::{collections::BTreeMap, fmt};

use read_router::StatementKind;

/// Sums of statements and of their calls.
#[derive(Clone, Debug, Default)]
pub struct Report {
    replica: (u64, u64),
    held_back: BTreeMap<&'static str, (u64, u64)>,
}

impl Report {
    /// One more statement, which was called so often.
    pub fn add(&mut self, kind: StatementKind, calls: u64) {
        let sum = match kind {
            StatementKind::Read => &mut self.replica,
            StatementKind::Primary(reason) => self.held_back.entry(reason.as_str()).or_default(),
        };
        *sum = (sum.0 + 1, sum.1 + calls);
    }

    /// What keeps most calls from replicas comes first.
    fn ranked(&self) -> Vec<(&'static str, (u64, u64))> {
        let mut ranked: Vec<_> = self.held_back.iter().map(|(reason, sum)| (*reason, *sum)).collect();
        ranked.sort_by_key(|(_, (statements, calls))| std::cmp::Reverse((*calls, *statements)));
        ranked
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.held_back.values().fold(self.replica, |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let share = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 * 100.0 / of as f64 };
        writeln!(
            f,
            "replica: {:.1}% of calls, {} of {} statements",
            share(self.replica.1, all.1),
            self.replica.0,
            all.0
        )?;
        for (reason, (statements, calls)) in self.ranked() {
            writeln!(f, "primary, {reason}: {:.1}% of calls, {statements} statements", share(calls, all.1))?;
        }
        Ok(())
    }
}

/// The destination and the reason of a kind, as they are printed.
#[must_use]
pub fn columns(kind: StatementKind) -> (&'static str, &'static str) {
    match kind {
        StatementKind::Read => ("replica", "read"),
        StatementKind::Primary(reason) => ("primary", reason.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_ranked_by_calls() {
        let mut report = Report::default();
        for (sql, calls) in [("SELECT 1", 60), ("SELECT f()", 10), ("DELETE FROM t", 25), ("SELECT g()", 5)] {
            report.add(StatementKind::of(sql), calls);
        }
        let text = report.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "replica: 60.0% of calls, 1 of 4 statements");
        assert_eq!(lines[1], "primary, write: 25.0% of calls, 1 statements");
        assert_eq!(lines[2], "primary, function: 15.0% of calls, 2 statements");
    }
}
