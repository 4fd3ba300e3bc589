//! What the kit makes certain: moments held open, and what a crash loses.
#![allow(clippy::unwrap_used)] // In functions that tests share, too.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use read_router_testkit::{Cluster, Node, Relay};

const SOON: Duration = Duration::from_secs(20);

fn value(node: &Node, query: &str) -> String {
    node.sql(query).unwrap()[0][0].clone().unwrap_or_default()
}

fn count(node: &Node) -> String {
    value(node, "SELECT count(*) FROM ride")
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < SOON, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_commit_waits_for_a_synchronous_standby_that_hangs() {
    let cluster = Cluster::builder().replicas(2).start().unwrap();
    let (primary, other, synchronous) = (cluster.primary(), cluster.replica(0), cluster.replica(1));
    primary.sql("CREATE TABLE ride (id serial)").unwrap();
    cluster.wait_caught_up(SOON).unwrap();
    primary.set("synchronous_standby_names", synchronous.name()).unwrap();
    synchronous.freeze_receiver().unwrap();
    let enough = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !enough.load(SeqCst) {
                primary.sql("INSERT INTO ride DEFAULT VALUES").unwrap();
            }
        });
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        until("a commit waits", || value(primary, waiting) == "1");
        let acknowledged: u32 = count(primary).parse().unwrap();
        until("the other standby shows it", || count(other) == (acknowledged + 1).to_string());
        assert_eq!(count(primary), acknowledged.to_string());
        enough.store(true, SeqCst);
        synchronous.thaw_receiver().unwrap();
    });
    cluster.wait_caught_up(SOON).unwrap();
    assert_eq!([count(primary), count(synchronous)], [count(other), count(other)]);
    primary.set("synchronous_standby_names", "").unwrap();
    synchronous.stop().unwrap();
    until("commits wait no more", || primary.sql("INSERT INTO ride DEFAULT VALUES").is_ok());
}

#[test]
fn a_crash_loses_asynchronous_commits_for_certain() {
    let cluster = Cluster::builder().start().unwrap();
    let (primary, replica) = (cluster.primary(), cluster.replica(0));
    primary.sql("CREATE TABLE ride (id serial)").unwrap();
    let lost_by: [fn(&Node); 2] = [
        |primary| primary.kill_backend().unwrap(),
        |primary| {
            primary.crash().unwrap();
            primary.start().unwrap();
        },
    ];
    for lose in lost_by {
        cluster.wait_caught_up(SOON).unwrap();
        primary.freeze_wal_writer().unwrap();
        primary.sql("SET synchronous_commit = off; INSERT INTO ride DEFAULT VALUES").unwrap();
        assert_eq!([count(primary), count(replica)], ["1", "0"]);
        let token = value(primary, "SELECT pg_current_wal_insert_lsn()");
        lose(primary);
        assert_eq!(count(primary), "0");
        primary.sql("CREATE TABLE other AS SELECT generate_series(1, 1000); DROP TABLE other").unwrap();
        cluster.wait_caught_up(SOON).unwrap();
        let covers = format!("SELECT pg_last_wal_replay_lsn() > '{token}'");
        assert_eq!([value(replica, &covers), count(replica)], ["t", "0"], "the same positions, used again");
    }
}

#[test]
fn a_disk_that_lost_something_leaves_a_standby_ahead() {
    let cluster = Cluster::builder().start().unwrap();
    let (primary, replica) = (cluster.primary(), cluster.replica(0));
    primary.sql("CREATE TABLE ride (id serial)").unwrap();
    let disk = primary.disk().unwrap();
    primary.sql("INSERT INTO ride DEFAULT VALUES").unwrap();
    cluster.wait_caught_up(SOON).unwrap();
    primary.crash_back_to(&disk).unwrap();
    primary.start().unwrap();
    assert_eq!([count(primary), count(replica)], ["0", "1"]);
}

#[test]
fn a_held_query_runs_after_a_promotion() {
    let cluster = Cluster::builder().start().unwrap();
    let (primary, replica) = (cluster.primary(), cluster.replica(0));
    let name = Relay::to(replica).unwrap();
    assert_eq!(name.url().rsplit_once('/').unwrap().1, "postgres");
    let held = name.hold_question("user");
    let port: u16 = name.url().rsplit_once(':').unwrap().1.trim_end_matches("/postgres").parse().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut startup = 196_608_u32.to_be_bytes().to_vec();
    startup.extend_from_slice(b"user\0postgres\0\0");
    stream.write_all(&(u32::try_from(startup.len()).unwrap() + 4).to_be_bytes()).unwrap();
    stream.write_all(&startup).unwrap();
    held.wait(SOON).unwrap();
    replica.promote().unwrap();
    name.point_to(primary);
    held.release();
    // Its greeting says what the server is by now.
    let mut greeting = Vec::new();
    while !contains(&greeting, b"in_hot_standby\0off\0") {
        let mut buffer = [0; 1024];
        let length = stream.read(&mut buffer).unwrap();
        assert!(length > 0, "{}", String::from_utf8_lossy(&greeting));
        greeting.extend_from_slice(&buffer[..length]);
    }
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}
