//! Each rule switched off, each in a process of its own: its test must see the promise broken.

use std::{
    fmt::Write as _,
    io::Write as _,
    process::Command,
    sync::{Mutex, PoisonError},
    thread,
    time::Instant,
};

use read_router::mutants::Rule;

use super::BROKEN;

/// Names the rule that is off in this process.
const OFF: &str = "READ_ROUTER_RULE_OFF";

/// A rule's number (16 is the one that was found here), its switch, and the test that needs it.
const CASES: &[(u8, Rule, &str)] = &[
    (1, Rule::Settled, "a_fallback_does_not_go_back_where_that_is_asked_for"),
    (2, Rule::ConnectionTrust, "a_connection_is_not_trusted_for_what_was_observed_before_it"),
    (3, Rule::EpochsApart, "positions_are_never_merged_across_epochs"),
    (4, Rule::BranchOfMark, "a_write_is_resolved_on_the_branch_of_its_own_connection"),
    (5, Rule::GatedPrimary, "the_old_primary_is_no_fallback"),
    (5, Rule::GatedPrimary, "a_primary_that_may_lack_what_was_seen_says_so"),
    (5, Rule::SwitchBound, "of_an_older_branch_only_what_lies_below_the_switch_survives"),
    (6, Rule::LaterBranch, "a_read_may_have_run_after_a_promotion"),
    (7, Rule::PrimaryReads, "a_read_on_the_primary_counts"),
    (8, Rule::InDoubt, "a_write_of_unknown_outcome_keeps_the_session_on_the_primary"),
    (9, Rule::SentAfterRead, "an_answer_that_was_given_before_the_read_does_not_count"),
    (9, Rule::SameLife, "the_same_node_is_the_same_life_of_it"),
    (9, Rule::FloorEach, "each_replica_read_counts_not_only_the_last"),
    (9, Rule::ExportedFloors, "a_token_contains_what_replicas_have_shown"),
    (12, Rule::PositionFirst, "the_position_is_read_before_the_timeline"),
    (12, Rule::OwnWord, "the_control_file_says_nothing_once_no_primary_answers"),
    (13, Rule::Quarantine, "a_replica_that_is_ahead_of_its_primary_is_quarantined"),
    (16, Rule::PastPosition, "what_one_replica_is_still_replaying_no_other_read_misses"),
];

/// As many as a small machine runs beside one another.
const WORKERS: usize = 2;

/// The rule that is to be off in this process.
pub(super) fn asked() -> Option<Rule> {
    let name = std::env::var(OFF).ok()?;
    let known = Rule::ALL.into_iter().find(|rule| format!("{rule:?}") == name);
    Some(known.unwrap_or_else(|| panic!("{OFF} names no rule: {name}")))
}

/// Runs them all; `module` is the path of the module in which the scenarios are tests of this program.
///
/// # Panics
/// If a test does not see its promise broken.
pub fn each_rule_off_breaks_its_schedule(module: &str) {
    // The tests' names do not say the crate.
    let prefix = module.split_once("::").map(|(_, inner)| format!("{inner}::")).unwrap_or_default();
    let rows = Mutex::new(Vec::new());
    let next = Mutex::new(CASES.iter());
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(case) = lock(&next).next() {
                    let row = run(&prefix, case);
                    lock(&rows).push((case.0, row));
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    rows.sort_by_key(|(number, row)| (*number, row.text.clone()));
    let mut table = format!("\nrule  {:<16} seconds  what its test saw with the rule off\n", "switch");
    for (number, row) in &rows {
        let _ = writeln!(table, "{number:>4}  {}", row.text);
    }
    // Past the test runner, which keeps what a passing test prints to itself.
    let _ = std::io::stderr().lock().write_all(table.as_bytes());
    for (_, row) in &rows {
        assert!(row.broken, "not broken with its rule off: {}\n{}", row.text, row.output);
    }
}

struct Row {
    broken: bool,
    text: String,
    output: String,
}

fn run(prefix: &str, &(_, rule, test): &(u8, Rule, &str)) -> Row {
    let started = Instant::now();
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", &format!("{prefix}{test}"), "--nocapture"])
        .env(OFF, format!("{rule:?}"))
        .output()
        .expect("it runs");
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    // No other failure will do.
    let broken = text.lines().find(|line| line.starts_with(BROKEN));
    let seconds = started.elapsed().as_secs_f32();
    Row {
        broken: broken.is_some() && !output.status.success() && text.contains("1 failed"),
        text: format!("{:<16} {seconds:>7.1}  {}", format!("{rule:?}"), broken.unwrap_or("NOTHING")),
        output: text,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
