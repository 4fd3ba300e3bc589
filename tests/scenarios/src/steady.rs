//! What the router costs when nothing is wrong.

use std::time::Duration;

use read_router::{Config, ReadClass, probe};

use crate::{Stage, Subject};

const PERIOD: Duration = Duration::from_secs(4);
const ATTEMPTS: usize = 8;
const READ: &str = "SELECT v FROM t WHERE id = 1";

/// Twice the operations in the same time leave the number of probes as it was, below the cap, and the servers see no
/// other statement than the application's own.
///
/// # Panics
/// If not.
pub async fn steady_state_costs_nothing<S: Subject>() {
    let schema = "CREATE TABLE t (id int PRIMARY KEY, v bigint); INSERT INTO t VALUES (1, 0)";
    let config = Config { probe_interval: Duration::from_millis(40), ..Config::default() };
    let settings = [("log_statement", "all"), ("log_line_prefix", "<%p> ")];
    let Stage { cluster, db } = Stage::<S>::set(2, schema, config.clone(), &settings).await;
    let sessions = [db.new_session(), db.new_session(), db.new_session()];
    work(&sessions, Duration::from_millis(500), 2).await;

    let marks = cluster.replicas().iter().map(|r| r.log().expect("a log").len()).collect::<Vec<_>>();
    let mut after = db.stats();
    let mut seen = Vec::new();
    // A machine that is busy elsewhere cannot double the load, or holds up the probes: probes that went with the reads
    // would do so each time.
    let shown = loop {
        let before = after;
        work(&sessions, PERIOD, 2).await;
        let between = db.stats();
        work(&sessions, PERIOD, 4).await;
        after = db.stats();
        let (first, second) = (between.probes - before.probes, after.probes - between.probes);
        let (reads_first, reads_second) =
            (between.replica_reads() - before.replica_reads(), after.replica_reads() - between.replica_reads());
        println!("{reads_first} reads: {first} probes; {reads_second} reads in the same time: {second} probes");
        seen.push((reads_first, first, reads_second, second));
        let cap = 3 * PERIOD.as_nanos() / config.probe_spacing.as_nanos();
        assert!(u128::from(second) < cap, "{second} probes, cap {cap}");
        let doubled = reads_second * 10 > reads_first * 15;
        if doubled && first.abs_diff(second) * 7 <= first {
            break true;
        }
        if seen.len() >= ATTEMPTS {
            break false;
        }
    };
    assert!(shown, "(reads, probes, reads, probes) of each attempt: {seen:?}");
    // A machine that is busy elsewhere can keep probes from being sent.
    let on_primary = after.primary_of(read_router::ClassName::MustSeeMyWrite);
    assert!(on_primary * 100 <= after.replica_reads(), "{after:?}");
    for (replica, mark) in cluster.replicas().iter().zip(marks) {
        let log = replica.log().expect("a log");
        // A connection that the machine let lie idle is asked whether it is there.
        let (pings, foreign): (Vec<_>, Vec<_>) =
            statements(&log[mark..]).filter(|s| !is_probe(s) && !is_ours(s)).partition(|s| s.trim() == "SELECT 1");
        assert!(pings.len() <= 3, "{} connections were idle", pings.len());
        assert!(foreign.is_empty(), "{} saw other statements: {foreign:?}", replica.name());
    }
}

/// Each session reads strictly `times` in 20 ms.
async fn work<S: Subject>(sessions: &[S], time: Duration, times: usize) {
    let end = tokio::time::Instant::now() + time;
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    while tokio::time::Instant::now() < end {
        tick.tick().await;
        for session in sessions {
            for _ in 0..times {
                assert_eq!(session.number(Some(ReadClass::MustSeeMyWrite.into()), READ).await.expect("read"), Some(0));
            }
        }
    }
}

fn statements(log: &str) -> impl Iterator<Item = &str> {
    log.lines().filter_map(|line| {
        let (_, rest) = line.split_once("LOG:  ")?;
        rest.strip_prefix("statement: ")
            .or_else(|| rest.strip_prefix("execute ").and_then(|r| Some(r.split_once(": ")?.1)))
    })
}

fn is_ours(statement: &str) -> bool {
    statement.trim() == READ
}

/// What the monitor sends, which a driver may have to send in parts, or what a connection sends once when it is opened.
fn is_probe(statement: &str) -> bool {
    let statement = statement.trim();
    let is_part = |part: &str| statement.starts_with(part) && !part.is_empty();
    statement == probe::PROBE
        || probe::PROBE.split("; ").any(is_part)
        || [probe::GREETING, probe::READ_ONLY].contains(&statement)
}
