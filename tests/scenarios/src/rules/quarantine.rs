//! Rule 13: positions that are used again.

use crate::{Subject, fault, until};
use read_router::{NodeId, PrimaryReason, Standing};

use super::{
    ask, caught_up, connect, has_row, insert, is_off, kept_by, probed, row, seen, servers, servers_with, standing,
    strict,
};

const REPLICA: NodeId = NodeId::replica(0);

/// Rule 13. The primary's host crashes, and its disk has not kept what a standby has. The same positions are used again: the
/// standby "covers" a write that it never got. It was ahead of its primary, which is impossible on one history.
///
/// # Panics
/// If the promise is broken.
pub async fn a_replica_that_is_ahead_of_its_primary_is_quarantined<S: Subject>() {
    let cluster = servers(1).await;
    let db: S = connect(&cluster.primary().url(), &[cluster.replica(0).url()]).await;
    let disk = cluster.primary().disk().expect("copied");
    cluster.primary().sql("INSERT INTO t SELECT n, 0 FROM generate_series(100, 20000) AS n").expect("lost later");
    caught_up(&cluster, &db, REPLICA).await;
    let old = seen(&db, NodeId::PRIMARY).instance;
    fault(&cluster, move |c| {
        c.primary().crash_back_to(&disk)?;
        c.primary().start()
    })
    .await;
    until("the new life is observed", || async { seen(&db, NodeId::PRIMARY).instance != old }).await;
    probed(&db, NodeId::PRIMARY).await;
    if !is_off() {
        until("the replica is out", || async { standing(&db, REPLICA) == Some(Standing::Quarantined) }).await;
    }
    let mut session = db.new_session();
    // The pool's old connection has to break first.
    while session.execute(&insert(1)).await.is_err() {
        session = db.new_session();
    }
    let token = session.token().await.positions().next().expect("resolved");
    assert!(seen(&db, REPLICA).lsn > token.lsn && !has_row(cluster.replica(0), 1), "it is covered, and not there");

    let read = session.number(Some(strict()), &row(1)).await;
    kept_by(PrimaryReason::NoneUp, read, session.last_served());
}

/// Rule 13, the documented exception: `synchronous_commit = off`, and a primary that loses a *backend* loses what it has
/// acknowledged. Other commits take the same positions, nobody was ever ahead, and a replica covers a token whose row is
/// gone. The router cannot see it; it does not claim to.
///
/// # Panics
/// If the promise is broken.
pub async fn asynchronous_commits_void_the_promise_across_a_crash<S: Subject>() {
    let cluster = servers_with(1, &[("synchronous_commit", "off")]).await;
    let db: S = connect(&cluster.primary().url(), &[cluster.replica(0).url()]).await;
    caught_up(&cluster, &db, REPLICA).await;
    fault(&cluster, |c| c.primary().freeze_wal_writer()).await;
    let session = db.new_session();
    session.execute(&insert(1)).await.expect("acknowledged");
    let token = session.token().await.positions().next().expect("resolved");
    assert!(has_row(cluster.primary(), 1));
    fault(&cluster, |c| c.primary().kill_backend()).await;
    assert!(!has_row(cluster.primary(), 1), "it is lost");
    let others = "SET synchronous_commit = on; INSERT INTO t SELECT n, 0 FROM generate_series(100, 2000) AS n";
    cluster.primary().sql(others).expect("someone else's");
    caught_up(&cluster, &db, REPLICA).await;
    let observed = seen(&db, REPLICA);
    assert!(observed.branch() == Some(token.branch) && observed.lsn >= token.lsn, "its position is covered");
    assert_eq!(ask(cluster.primary(), "SELECT pg_is_in_recovery()"), "f");

    until("the replica serves what it must not have", || async {
        assert_eq!(session.number(Some(strict()), &row(1)).await.expect("read"), Some(0));
        session.last_served().is_some_and(|s| s.node == REPLICA)
    })
    .await;
    assert_eq!(db.stats().branch_lost, 0, "nothing tells of it");
}
