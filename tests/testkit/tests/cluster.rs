//! The kit on real servers.
#![allow(clippy::unwrap_used)] // In functions that tests share, too.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use read_router_testkit::{Cluster, Error, Node};

const SOON: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(100);

#[test]
fn replicas_follow_lag_crash_and_take_over() {
    let cluster = Cluster::builder().replicas(2).setting("max_connections", "50").database("app").start().unwrap();
    let (primary, first, second) = (cluster.primary(), cluster.replica(0), cluster.replica(1));
    assert_eq!(value(second, "SELECT current_database() || current_setting('max_connections')"), "app50");
    assert_eq!(second.url(), format!("postgres://postgres@127.0.0.1:{}/app", second.port()));
    primary.sql("CREATE TABLE ride (id serial)").unwrap();
    insert(primary);
    cluster.wait_caught_up(SOON).unwrap();
    assert_eq!([count(first), count(second)], [1, 1]);

    first.pause_replay().unwrap();
    insert(primary);
    let behind = cluster.wait_caught_up(SHORT).unwrap_err().to_string();
    assert!(behind.contains("replica0 has replayed") && !behind.contains("replica1"), "{behind}");
    assert_eq!([count(first), count(second)], [1, 2]);
    first.resume_replay().unwrap();
    cluster.wait_caught_up(SOON).unwrap();

    first.set_apply_delay(Duration::from_secs(100)).unwrap();
    insert(primary);
    assert!(cluster.wait_caught_up(SHORT).is_err());
    first.pause_replay().unwrap();
    first.resume_replay().unwrap();
    first.set_apply_delay(Duration::ZERO).unwrap();
    cluster.wait_caught_up(SOON).unwrap();
    assert_eq!(count(first), 3);

    second.crash().unwrap();
    assert!(!second.is_running().unwrap());
    assert!(matches!(second.sql("SELECT 1"), Err(Error::Io { .. })));
    insert(primary);
    cluster.wait_caught_up(SOON).unwrap();
    second.start().unwrap();
    cluster.wait_caught_up(SOON).unwrap();
    assert_eq!(count(second), 4);

    primary.crash().unwrap();
    first.pause_replay().unwrap();
    first.promote().unwrap();
    insert(first);
    cluster.follow(1, first).unwrap();
    cluster.wait_caught_up(SOON).unwrap();
    assert_eq!(count(second), 5);
    assert!(first.log().unwrap().contains("promote"));
}

#[test]
fn servers_hang_restart_and_lose_a_backend() {
    let delay = Duration::from_millis(300);
    let cluster = Cluster::builder().delay(0, delay).start().unwrap();
    let (primary, replica) = (cluster.primary(), cluster.replica(0));
    primary.sql("CREATE TABLE ride (id serial)").unwrap();
    let begin = Instant::now();
    insert(primary);
    cluster.wait_caught_up(SOON).unwrap();
    assert!(begin.elapsed() >= delay);
    replica.set_apply_delay(Duration::ZERO).unwrap();

    cluster.freeze_link(0).unwrap();
    insert(primary);
    assert!(cluster.wait_caught_up(SHORT).is_err());
    // A hung and revived primary does not revive the link.
    primary.freeze().unwrap();
    assert!(matches!(primary.sql("SELECT 1"), Err(Error::State { .. })));
    assert_eq!(count(replica), 1);
    primary.thaw().unwrap();
    assert!(cluster.wait_caught_up(SHORT).is_err());
    cluster.thaw_link(0).unwrap();
    cluster.wait_caught_up(SOON).unwrap();
    assert_eq!(count(replica), 2);

    for node in [replica, primary] {
        let started = || value(node, "SELECT pg_postmaster_start_time()");
        let before = started();
        thread::scope(|scope| {
            let client = scope.spawn(|| node.sql("SELECT pg_sleep(60)"));
            node.kill_backend().unwrap();
            assert!(client.join().unwrap().is_err());
        });
        assert_eq!(started(), before);
    }
    replica.restart().unwrap();
    primary.restart().unwrap();
    insert(primary);
    cluster.wait_caught_up(SOON).unwrap();
    assert_eq!(count(replica), 3);
    assert!(matches!(replica.sql("DELETE FROM ride"), Err(Error::Sql { code, .. }) if code == "25006"));

    // Dropped in the worst state.
    let folder = folder(primary);
    cluster.freeze_link(0).unwrap();
    replica.freeze().unwrap();
    drop(cluster);
    assert!(!folder.exists());
    assert_eq!(processes_of(&folder), 0);
}

#[test]
fn clusters_are_strangers_and_a_panic_leaves_nothing() {
    let start = || Cluster::builder().start().unwrap();
    let [left, right] = thread::scope(|scope| [scope.spawn(start), scope.spawn(start)].map(|it| it.join().unwrap()));
    let identifier = |node| value(node, "SELECT system_identifier FROM pg_control_system()");
    assert_ne!(identifier(left.primary()), identifier(right.primary()));
    assert_eq!(identifier(right.primary()), identifier(right.replica(0)));
    assert!(matches!(left.follow(0, right.primary()), Err(Error::State { .. })));

    let folder = folder(left.primary());
    assert!(folder.exists() && processes_of(&folder) >= 2);
    let result = thread::spawn(move || {
        left.replica(0).pause_replay().unwrap();
        panic!("a failing test, whose logs are shown: {}", left.primary().name());
    });
    assert!(result.join().is_err());
    assert!(!folder.exists());
    assert_eq!(processes_of(&folder), 0);
    value(right.replica(0), "SELECT 1");
}

#[test]
fn the_watchdog_ends_what_a_killed_process_leaves() {
    if env::var_os(VICTIM).is_some() {
        return is_killed();
    }
    let mut victim = victim().spawn().unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines().map(Result::unwrap);
    let folder = PathBuf::from(lines.find_map(|line| line.strip_prefix("folder ").map(str::to_owned)).unwrap());
    assert!(processes_of(&folder) >= 2);
    victim.kill().unwrap();
    victim.wait().unwrap();
    let begin = Instant::now();
    while folder.exists() {
        assert!(begin.elapsed() < SOON, "{} is still there", folder.display());
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(processes_of(&folder), 0);
}

#[test]
fn a_wrong_folder_of_programs_is_named() {
    let output = victim().env("READ_ROUTER_PG_BIN", "/nonexistent/bin").output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("READ_ROUTER_PG_BIN is /nonexistent/bin, which is no usable PostgreSQL"), "{text}");
}

/// Set in a process that is to be killed.
const VICTIM: &str = "TESTKIT_VICTIM";

fn is_killed() {
    let cluster = Cluster::builder().start().unwrap();
    cluster.freeze_link(0).unwrap();
    cluster.replica(0).freeze().unwrap();
    println!("\nfolder {}", folder(cluster.primary()).display());
    thread::sleep(Duration::from_secs(60));
}

fn victim() -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "the_watchdog_ends_what_a_killed_process_leaves", "--nocapture"]).env(VICTIM, "1");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn value(node: &Node, sql: &str) -> String {
    node.sql(sql).unwrap()[0][0].clone().unwrap()
}

fn count(node: &Node) -> usize {
    value(node, "SELECT count(*) FROM ride").parse().unwrap()
}

fn insert(node: &Node) {
    node.sql("INSERT INTO ride DEFAULT VALUES").unwrap();
}

/// The folder of the whole cluster.
fn folder(node: &Node) -> PathBuf {
    Path::new(&value(node, "SHOW data_directory")).parent().unwrap().to_owned()
}

/// Processes that run in a folder, or 0 where there is no `/proc` to ask.
fn processes_of(folder: &Path) -> usize {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter(|entry| fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder))).count()
}
