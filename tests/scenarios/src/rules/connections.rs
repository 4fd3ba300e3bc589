//! Rules 2, 3 and 9: which life of a server a position, a connection, or a read belongs to.
//!
//! A standby one of whose *backends* is killed comes back under the same start time, and behind what it had shown.

use std::{sync::Arc, time::Duration};

use crate::{LIMIT, Subject, fault, until};
use read_router::{NodeId, PrimaryReason, ReadClass};

use super::{
    Cluster, PROBE, ask, caught_up, connect, has_row, held, insert, kept_by, relay, row, seen, servers, strict,
};
const REPLICA: NodeId = NodeId::replica(0);

/// A restart point, so that a crash goes back behind nothing that was there before it.
async fn restart_point(cluster: &Arc<Cluster>) {
    fault(cluster, |c| {
        c.primary().sql("CHECKPOINT")?;
        c.wait_caught_up(LIMIT)?;
        c.replica(0).sql("CHECKPOINT").map(drop)
    })
    .await;
}

/// The standby loses a backend, and comes back without what it has replayed since the restart point.
async fn comes_back_behind(cluster: &Arc<Cluster>, id: i64) {
    const STARTED: &str = "SELECT pg_postmaster_start_time()";
    let started = ask(cluster.replica(0), STARTED);
    assert!(has_row(cluster.replica(0), id));
    fault(cluster, |c| {
        c.replica(0).set_apply_delay(Duration::from_secs(3600))?;
        c.replica(0).kill_backend()
    })
    .await;
    assert!(!has_row(cluster.replica(0), id), "it has come back behind");
    assert_eq!(ask(cluster.replica(0), STARTED), started);
}

/// Rule 2. The standby answers a probe, and the next one hangs. It loses a backend and comes back behind. A pool opens a
/// connection to it: the observation from before says nothing about that.
///
/// # Panics
/// If the promise is broken.
pub async fn a_connection_is_not_trusted_for_what_was_observed_before_it<S: Subject>() {
    let cluster = servers(1).await;
    restart_point(&cluster).await;
    let name = relay(cluster.replica(0));
    let db: S = connect(&cluster.primary().url(), &[name.url()]).await;
    let session = db.new_session();
    session.execute(&insert(1)).await.expect("written");
    let token = session.token().await.positions().next().expect("resolved");
    caught_up(&cluster, &db, REPLICA).await;
    let probe = name.hold_question(PROBE);
    held(&probe).await;
    let observed = seen(&db, REPLICA);
    assert!(observed.position().is_some_and(|p| p.branch == token.branch && p.lsn >= token.lsn), "{observed:?}");

    comes_back_behind(&cluster, 1).await;
    let read = session.number(Some(strict()), &row(1)).await;
    assert_eq!(seen(&db, REPLICA), observed, "the old observation is the newest");
    kept_by(PrimaryReason::Behind, read, session.last_served());
    assert!(db.stats().own_samples > 0);
    drop(probe);
}

/// Rule 3. The standby loses a backend and comes back behind; the next probe finds it there. The position from before the
/// crash counts no more.
///
/// # Panics
/// If the promise is broken.
pub async fn positions_are_never_merged_across_epochs<S: Subject>() {
    let cluster = servers(1).await;
    restart_point(&cluster).await;
    let db: S = connect(&cluster.primary().url(), &[cluster.replica(0).url()]).await;
    let session = db.new_session();
    session.execute(&insert(1)).await.expect("written");
    session.token().await;
    caught_up(&cluster, &db, REPLICA).await;
    let before = seen(&db, REPLICA);

    comes_back_behind(&cluster, 1).await;
    until("the new life is observed", || async { seen(&db, REPLICA).epoch != before.epoch }).await;
    assert_eq!(seen(&db, REPLICA).instance, before.instance);
    let read = session.number(Some(strict()), &row(1)).await;
    kept_by(PrimaryReason::Behind, read, session.last_served());
}

/// Rule 9. A session reads on a standby, which then loses a backend and comes back behind: the same node, but not the one
/// that the session has read from. No sample of the primary tells what it had shown.
///
/// # Panics
/// If the promise is broken.
pub async fn the_same_node_is_the_same_life_of_it<S: Subject>() {
    let cluster = servers(1).await;
    restart_point(&cluster).await;
    let name = relay(cluster.primary());
    let db: S = connect(&name.url(), &[cluster.replica(0).url()]).await;
    cluster.primary().sql(&insert(1)).expect("someone else's");
    caught_up(&cluster, &db, REPLICA).await;
    let probe = name.hold_question(PROBE);
    held(&probe).await;
    let session = db.new_session();
    assert_eq!(session.number(Some(strict()), &row(1)).await.expect("read"), Some(1));
    assert_eq!(session.last_served().map(|s| s.node), Some(REPLICA));
    let before = seen(&db, REPLICA);

    comes_back_behind(&cluster, 1).await;
    until("the new life is observed", || async { seen(&db, REPLICA).epoch != before.epoch }).await;
    until("the pool has a connection to it", || async {
        let other = db.new_session();
        let read = other.number(Some(ReadClass::Eventual.into()), &row(1)).await;
        read.is_ok() && other.last_served().is_some_and(|s| s.node == REPLICA)
    })
    .await;
    let read = session.number(Some(strict()), &row(1)).await;
    kept_by(PrimaryReason::Unresolved, read, session.last_served());
    assert!(probe.has_arrived());
}
