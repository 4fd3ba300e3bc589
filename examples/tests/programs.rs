//! The programs as their users run them.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Output, Stdio},
};

use read_router_testkit::Cluster;
use serde_json::Value;

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rides"));
    command.args(args).stdin(Stdio::null());
    command
}

fn rides(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The one JSON object on standard output of a run that ended with `status`.
fn json(args: &[&str], status: i32) -> Value {
    let output = rides(args);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn count(summary: &Value, field: &str) -> u64 {
    summary[field].as_u64().unwrap_or_else(|| panic!("no count {field} in {summary}"))
}

fn sum(counts: &Value) -> u64 {
    counts.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum()
}

#[test]
fn replicas_serve_reads_and_none_is_stale() {
    for orm in ["sea", "diesel", "diesel-async"] {
        replicas_serve(orm);
    }
}

fn replicas_serve(orm: &str) {
    let summary = json(&["--orm", orm, "--rounds", "60", "--json"], 0);
    assert_eq!(count(&summary, "rounds"), 60);
    assert_eq!(count(&summary, "reads"), 60);
    assert_eq!(count(&summary, "stale_reads"), 0);
    assert!(count(&summary, "replica_reads") > 0, "{summary}");
    assert_eq!(count(&summary, "replica_reads") + count(&summary, "primary_reads"), 60);
    assert_eq!(sum(&summary["per_node"]), 60);
    assert_eq!(sum(&summary["reasons"]), count(&summary, "primary_reads"));
    // It applies each commit 200 ms late, which is longer than a read waits.
    assert_eq!(count(&summary["per_node"], "replica2"), 0, "{summary}");
}

#[test]
fn without_replicas_the_primary_serves() {
    let summary = json(&["--replicas", "0", "--rounds", "20", "--users", "2", "--json"], 0);
    assert_eq!(count(&summary, "primary_reads"), 20);
    assert_eq!(count(&summary["reasons"], "no_replica"), 20);
    assert_eq!(summary["fallback_rate"], 1.0);
}

#[test]
fn naive_reads_are_stale() {
    let output = rides(&["--naive", "--rounds", "200"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(
        shown
            .lines()
            .any(|line| line.starts_with("Reading ride ") && line.ends_with(" from server 'replica2' - stale"))
    );
    assert!(shown.lines().last().unwrap().contains("of 200 reads were stale"), "{shown}");
}

#[test]
fn wrong_input_is_told_with_status_2() {
    for (args, told) in [
        (&["--rounds", "0"][..], "--rounds"),
        (&["--rounds", "many"], "--rounds"),
        (&["--users", "0"], "--users"),
        (&["--replica-url", "postgres://localhost/x"], "--primary-url"),
        (&["--primary-url", "postgres://localhost/x", "--delay-ms", "5"], "--delay-ms"),
        (&["--primary-url", "postgres://localhost/x", "--replicas", "5"], "--replicas"),
        (&["--primary-url", "localhost"], "cannot connect to primary"),
        (&["--primary-url", "mysql://localhost/x"], "cannot connect to primary"),
        (&["--replicas", "0", "--naive"], "--naive"),
        (&["--replicas", "0", "--delay-ms", "5"], "--delay-ms"),
        (&["--primary-url", "postgres://localhost/x", "--naive"], "--naive"),
    ] {
        let output = rides(args);
        let shown = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {shown}");
        assert!(shown.contains(told) && !shown.contains("panicked"), "{args:?}: {shown}");
        assert!(output.stdout.is_empty(), "{args:?}: {}", text(&output.stdout));
    }
}

/// One after another, since each run makes the same tables.
#[test]
fn rides_on_servers_that_already_run() {
    let cluster = Cluster::builder().replicas(1).start().unwrap();
    let urls = ["--primary-url", &cluster.primary().url(), "--replica-url", &cluster.replica(0).url()];
    let with = |more: &[&'static str]| [&urls, more].concat();

    prints_a_line_for_each_read(&with(&["--rounds", "40"]));
    ends_when_its_reader_goes(&with(&["--rounds", "1000000"]));
    ends_at_a_signal(&with(&["--rounds", "1000000"]));
    leaves_others_tables_alone(&cluster, &with(&["--rounds", "1"]));
}

fn prints_a_line_for_each_read(args: &[&str]) {
    let output = rides(args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert_eq!(shown.lines().filter(|line| line.starts_with("Reading ride ")).count(), 40);
    assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
    assert_eq!(shown.lines().last(), Some("None of 40 reads was stale."));
}

/// A run that has printed its first line.
fn running(args: &[&str]) -> (Child, BufReader<impl Read + use<>>) {
    let mut child = command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut shown = BufReader::new(child.stdout.take().unwrap());
    shown.read_line(&mut String::new()).unwrap();
    (child, shown)
}

fn ends_when_its_reader_goes(args: &[&str]) {
    let (child, shown) = running(args);
    drop(shown);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}

fn ends_at_a_signal(args: &[&str]) {
    let (child, mut shown) = running(args);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let mut rest = String::new();
    shown.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    assert!(rest.lines().last().unwrap().ends_with("reads was stale."), "{rest}");
}

fn leaves_others_tables_alone(cluster: &Cluster, args: &[&str]) {
    let primary = cluster.primary();
    // Which also shows that the runs before have dropped theirs.
    primary.sql("CREATE TABLE rides_demo_rides AS SELECT 7 AS kept").unwrap();
    let output = rides(args);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("already exists"), "{}", text(&output.stderr));
    assert!(primary.sql("SELECT kept FROM rides_demo_rides").is_ok());
    assert!(primary.sql("SELECT FROM rides_demo_users").is_err());
}

/// It checks what it shows by itself.
#[test]
fn the_web_application_reads_its_own_writes() {
    let output = Command::new(env!("CARGO_BIN_EXE_web")).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("all 25 notes"), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("by a signed cookie"), "{}", text(&output.stdout));
}
