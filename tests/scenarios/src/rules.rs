//! The rules that keep the promises, on real servers: each test holds the moment open in which its rule is needed.
//!
//! The numbers are those of the rules. A test passes with its rule on. In builds with `--cfg read_router_mutants` the
//! rule that `READ_ROUTER_RULE_OFF` names is switched off, and the test must see the promise broken: `off` runs them all
//! in that way.

use std::{sync::Arc, time::Duration};

use crate::{LIMIT, Subject, fault, until};
use read_router::{Config, NodeId, Observation, PrimaryReason, ReadClass, ReadOptions, Served};
use read_router_testkit::{Cluster, Hold, Node, Relay};

pub(crate) mod branches;
pub(crate) mod connections;
#[cfg(read_router_mutants)]
pub mod off;
pub(crate) mod probes;
pub(crate) mod quarantine;
pub(crate) mod sessions;

/// Begins every message that says that a promise was broken.
pub(crate) const BROKEN: &str = "BROKEN:";
/// Part of a probe and of nothing else.
const PROBE: &str = "pg_last_wal_replay_lsn";
const SCHEMA: &str = "CREATE TABLE t (id bigint PRIMARY KEY, v bigint); INSERT INTO t VALUES (0, 0)";

/// A strict read with a budget that is spent in vain in some tests.
fn strict() -> ReadOptions {
    ReadClass::MustSeeMyWrite.wait(Duration::from_millis(200))
}

/// What is known of a server stays known while its probe is held.
fn config() -> Config {
    Config {
        probe_interval: Duration::from_millis(50),
        probe_timeout: LIMIT,
        replica_read_timeout: LIMIT,
        replica_acquire_timeout: LIMIT,
        ..Config::default()
    }
}

/// A primary with the table and its standbys, which have it too. The rule that is to be off is off from here on.
async fn servers(replicas: usize) -> Arc<Cluster> {
    servers_with(replicas, &[]).await
}

async fn servers_with(replicas: usize, settings: &[(&str, &str)]) -> Arc<Cluster> {
    switch_off();
    let mut builder = Cluster::builder().replicas(replicas);
    for (name, value) in settings {
        builder = builder.setting(*name, *value);
    }
    let cluster = tokio::task::spawn_blocking(move || builder.start()).await.expect("not cancelled");
    let cluster = Arc::new(cluster.unwrap_or_else(|error| panic!("{error}")));
    cluster.primary().sql(SCHEMA).expect("the schema is valid");
    cluster.wait_caught_up(LIMIT).expect("the standbys follow");
    cluster
}

async fn connect<S: Subject>(primary: &str, replicas: &[String]) -> S {
    S::connect(primary, replicas, config().into()).await.expect("all servers are up")
}

fn relay(node: &Node) -> Relay {
    Relay::to(node).expect("a free port")
}

/// Waits until bytes are held.
async fn held(hold: &Hold) {
    until("bytes are held", || async { hold.has_arrived() }).await;
}

fn insert(id: i64) -> String {
    format!("INSERT INTO t VALUES ({id}, 0)")
}

/// A read that gives 1 where the row is, else 0.
fn row(id: i64) -> String {
    format!("SELECT count(*) FROM t WHERE id = {id}")
}

/// The same, past the router.
fn has_row(node: &Node, id: i64) -> bool {
    ask(node, &row(id)) == "1"
}

fn ask(node: &Node, sql: &str) -> String {
    node.sql(sql).unwrap_or_else(|error| panic!("{error}"))[0][0].clone().unwrap_or_default()
}

/// What is known of the node; there is an observation from the start.
fn seen<S: Subject>(db: &S, node: NodeId) -> Observation {
    *db.topology().node(node).and_then(read_router::Node::observation).expect("it was probed")
}

/// Waits until the node has answered a probe that was sent from now on.
async fn probed<S: Subject>(db: &S, node: NodeId) {
    let before = seen(db, node).sent_at;
    // The one after the next: the next may be under way.
    for _ in 0..2 {
        let last = seen(db, node).sent_at;
        until("the node answers a probe", || async { seen(db, node).sent_at > last }).await;
    }
    assert!(seen(db, node).sent_at > before);
}

/// Waits until what is known of the node covers all that the primary has now.
async fn caught_up<S: Subject>(cluster: &Arc<Cluster>, db: &S, node: NodeId) {
    fault(cluster, |c| c.wait_caught_up(LIMIT)).await;
    probed(db, NodeId::PRIMARY).await;
    let primary = seen(db, NodeId::PRIMARY).lsn;
    until("the replica's position is known", || async { seen(db, node).lsn >= primary }).await;
}

/// A session whose last strict read was served by the node.
async fn session_on<S: Subject>(db: &S, node: NodeId, sql: &str) -> (S, Option<i64>) {
    for _ in 0..1000 {
        let session = db.new_session();
        let read = session.number(Some(strict()), sql).await.expect("read");
        if session.last_served().is_some_and(|s| s.node == node) {
            return (session, read);
        }
    }
    panic!("no read was served by {node}: {:?}", db.stats());
}

/// The promise: a strict read sees what it must, or says why not, by an error or by [`PrimaryReason::BranchLost`].
fn kept<E>(read: Result<Option<i64>, E>, served: Option<Served>) {
    let flagged = served.is_some_and(|s| s.reason == Some(PrimaryReason::BranchLost));
    match read {
        Ok(Some(1)) | Err(_) => {}
        Ok(_) if flagged => {}
        Ok(found) => panic!("{BROKEN} the row is not seen ({found:?}), and nothing says so: {served:?}"),
    }
}

/// The same, where nothing may be lost: the row must be seen, and for this reason not on a replica.
fn kept_by<E: std::fmt::Debug>(reason: PrimaryReason, read: Result<Option<i64>, E>, served: Option<Served>) {
    let found = read.expect("read");
    assert!(found == Some(1), "{BROKEN} the row is not seen ({found:?}): {served:?}");
    assert_eq!(served.and_then(|s| s.reason), Some(reason), "{served:?}");
}

#[cfg(not(read_router_mutants))]
pub(crate) fn switch_off() {}

/// Switches the rule off that this process is to run without.
#[cfg(read_router_mutants)]
pub(crate) fn switch_off() {
    read_router::mutants::switch_off_everywhere(off::asked().map_or(0, read_router::mutants::Rule::bit));
}

/// Whether the rule of this test is off.
fn is_off() -> bool {
    #[cfg(read_router_mutants)]
    return off::asked().is_some();
    #[cfg(not(read_router_mutants))]
    false
}

/// A topology for messages.
fn standing<S: Subject>(db: &S, node: NodeId) -> Option<read_router::Standing> {
    db.topology().node(node).map(read_router::Node::standing)
}
