//! The kinds of statements against real servers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod corpus;

use std::collections::BTreeMap;

use classify::{
    input::{self, Statement},
    oracle::{Oracle, Verdict},
};
use read_router::{Access, NotRead, Pins, StatementKind};

use crate::corpus::{FIXTURE, REPORTED, generated, own};

/// A [K] row is told by the catalogue, all others by either.
#[test]
fn each_reported_statement_has_its_destination_with_the_catalogue() {
    let oracle = Oracle::start(FIXTURE, Pins::new()).unwrap();
    let mut wrong = Vec::new();
    for (row, line) in input::table(REPORTED).iter().zip(REPORTED.lines().skip(1)) {
        let expected = line.split('\t').nth(2).unwrap();
        let kind = StatementKind::known(&row.sql, oracle.known());
        if kind.is_read() != (expected == "replica") {
            wrong.push(format!("{} is {kind:?}: {}", row.id, row.sql));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_only_the_catalogue_shows_is_seen_and_the_rest_stays_a_read() {
    let mut pins = Pins::new();
    pins.function("pinned_read", Access::Read).unwrap();
    pins.function("app.pinned_primary", Access::Primary).unwrap();
    pins.table("audit", Access::Primary).unwrap();
    pins.table("v_locks", Access::Read).unwrap();
    let mut oracle = Oracle::start(&format!("{FIXTURE};{}", corpus::CATALOGUE), pins).unwrap();
    let mut wrong = Vec::new();
    for line in corpus::CATALOGUE_CASES.lines() {
        let (expected, sql) = line.split_once('\t').unwrap();
        let kind = StatementKind::known(sql, oracle.known());
        let found = match kind {
            StatementKind::Read => "read",
            StatementKind::Primary(reason) => reason.as_str(),
        };
        if found != expected {
            wrong.push(format!("{found} and not {expected}: {sql}"));
        }
        // But for what is pinned against the server's word, a read is one.
        if kind.is_read() && !sql.contains("v_locks") {
            let verdict = oracle.verdict(sql).unwrap();
            if verdict != Verdict::Harmless {
                wrong.push(format!("{verdict:?}: {sql}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// An ordinary role sees the same catalogue as its owner does.
#[test]
fn an_ordinary_role_reads_the_catalogue() {
    let cluster = read_router_testkit::Cluster::builder().replicas(0).database("app").start().unwrap();
    cluster.primary().sql(&format!("CREATE ROLE reader LOGIN; {}", corpus::CATALOGUE)).unwrap();
    let owner = classify::server::known(&mut classify::server::connect(&cluster.primary().url()).unwrap(), Pins::new());
    let url = cluster.primary().url().replace("postgres@", "reader@");
    let reader = classify::server::known(&mut classify::server::connect(&url).unwrap(), Pins::new());
    let (owner, reader) = (owner.unwrap(), reader.unwrap());
    assert_eq!(owner.catalogue(), reader.catalogue());
    let held = StatementKind::known("SELECT * FROM v_deeper", &reader);
    assert_eq!(held, StatementKind::Primary(NotRead::Relation));
}

#[test]
fn what_is_called_a_read_neither_fails_on_a_standby_nor_changes_anything() {
    let mut oracle = Oracle::start(&format!("{FIXTURE};{}", corpus::CATALOGUE), Pins::new()).unwrap();
    let mut statements = input::table(REPORTED);
    statements.extend(own());
    statements.extend(generated(7, 1500));
    let before = oracle.contents().unwrap();
    let mut verdicts: BTreeMap<String, usize> = BTreeMap::new();
    let mut unsafe_ones = Vec::new();
    let summary = oracle.judge(&statements, false, |statement: &Statement, verdict| {
        if let Verdict::Unsafe(why) = verdict {
            unsafe_ones.push(format!("{}: {why}: {}", statement.id, statement.sql));
        }
        if let Verdict::FailsEverywhere(why) = verdict {
            *verdicts.entry(why.chars().take(5).collect()).or_default() += 1;
        }
    });
    let summary = summary.unwrap();
    println!("{summary}\nerrors of both servers by code: {verdicts:?}");
    assert!(unsafe_ones.is_empty(), "{unsafe_ones:#?}");
    assert_eq!(oracle.contents().unwrap(), before);
    assert!(summary.harmless > 200, "{summary}");
}

/// The oracle sees what it is there for: each of these is unsafe, and would be found if it were called a read.
#[test]
fn the_oracle_finds_what_is_unsafe() {
    let mut oracle = Oracle::start(FIXTURE, Pins::new()).unwrap();
    for sql in [
        "SELECT nextval('s')",
        "SELECT * FROM unlogged_t",
        "SELECT * FROM v_next",
        "SELECT users.touch_row FROM users",
        "SELECT 1 === 2",
        "SELECT id FROM users FOR UPDATE",
        "SELECT pg_advisory_lock(1)",
        "SELECT pg_try_advisory_xact_lock(1)",
        "SELECT set_config('work_mem', '5MB', false)",
        "SELECT set_config('work_mem', '5MB', true)",
        "PREPARE p AS SELECT 1",
        "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
        "SELECT lo_create(0)",
        "SELECT txid_current()",
    ] {
        let verdict = oracle.verdict(sql).unwrap();
        assert!(matches!(verdict, Verdict::Unsafe(_)), "{sql}: {verdict:?}");
    }
    for (sql, expected) in [("SELECT 1 FROM users WHERE id = $1", true), ("SELECT 1/0", false), ("SELECT x", false)] {
        let verdict = oracle.verdict(sql).unwrap();
        let fits = if expected { verdict == Verdict::Harmless } else { matches!(verdict, Verdict::FailsEverywhere(_)) };
        assert!(fits, "{sql}: {verdict:?}");
    }
}
