//! Rules 4 to 6: which line of history a position lies on.

use std::sync::Arc;

use crate::{LIMIT, Setup, Subject, Transaction, fault, until};
use read_router::{NodeId, PrimaryReason, Standing};

use super::{
    BROKEN, Cluster, Relay, caught_up, config, connect, has_row, held, insert, kept, relay, row, seen, servers,
    standing, strict,
};

const REPLICA: NodeId = NodeId::replica(0);

/// Two primaries, and a pool with a connection to each; the name leads to the old one.
struct Split<S: Subject> {
    cluster: Arc<Cluster>,
    db: S,
    /// Keeps the connection to the old primary from the others.
    old: S::Transaction,
    _name: Relay,
}

/// The primary's name moves to a standby while a pool opens a connection there; the standby is promoted, and the name moves
/// back. The old primary answers all the while.
async fn split<S: Subject>() -> Split<S> {
    let cluster = servers(2).await;
    let name = relay(cluster.primary());
    // The standby that is to be promoted is not among the replicas: nobody else tells of its timeline. And the pool opens no
    // third connection by itself.
    let setup = Setup { connections: 2, ..config().into() };
    let db = S::connect(&name.url(), &[cluster.replica(1).url()], setup).await.expect("all servers are up");
    let old = db.new_session().begin().await.expect("the pool's only connection is taken");
    name.point_to(cluster.replica(0));
    db.new_session().number(None, "SELECT 1::bigint").await.expect("a connection to the standby is opened");
    fault(&cluster, |c| c.replica(0).promote()).await;
    name.point_to(cluster.primary());
    Split { cluster, db, old, _name: name }
}

/// Rule 4. A write is acknowledged on the new primary. Nobody hears of that one for so long that it passes for a stray, and the
/// old one counts again. What that one says is no position of the write.
///
/// # Panics
/// If the promise is broken.
pub async fn a_write_is_resolved_on_the_branch_of_its_own_connection<S: Subject>() {
    let split = split::<S>().await;
    let (cluster, db) = (&split.cluster, &split.db);
    let old = db.topology().surviving();
    let session = db.new_session();
    session.execute(&insert(1)).await.expect("written");
    assert!(has_row(cluster.replica(0), 1) && !has_row(cluster.primary(), 1), "it is on the new branch");
    until("the new branch passes for a stray", || async {
        db.topology().surviving() == old && seen(db, NodeId::PRIMARY).branch() == old
    })
    .await;
    caught_up(cluster, db, REPLICA).await;

    let read = session.number(Some(strict()), &row(1)).await;
    // On the new primary, or on the old one and said so.
    kept(read, session.last_served());
    assert_eq!(session.last_served().map(|s| s.node), Some(NodeId::PRIMARY));
}

/// Rule 5. A write is acknowledged on the new primary; the read that follows falls back, and what the pool has for it leads to
/// the old one.
///
/// # Panics
/// If the promise is broken.
pub async fn the_old_primary_is_no_fallback<S: Subject>() {
    let split = split::<S>().await;
    let (cluster, db) = (&split.cluster, &split.db);
    let session = db.new_session();
    session.execute(&insert(1)).await.expect("written");
    assert!(has_row(cluster.replica(0), 1) && !has_row(cluster.primary(), 1), "it is on the new branch");
    let new = db.new_session().begin().await.expect("the connection to the new primary is taken");
    split.old.rollback().await.expect("the one to the old primary is free");

    let read = session.number(Some(strict()), &row(1)).await;
    let refused = read.is_err();
    kept(read, session.last_served());
    assert!(refused, "the old primary cannot serve it");
    new.rollback().await.expect("it is there still");
}

/// Rule 5. A write is acknowledged that no standby gets; the primary dies, a standby is promoted, and the name moves to it.
/// The new primary serves, but not in silence.
///
/// # Panics
/// If the promise is broken.
pub async fn a_primary_that_may_lack_what_was_seen_says_so<S: Subject>() {
    let cluster = servers(1).await;
    let name = relay(cluster.primary());
    let db: S = connect(&name.url(), &[]).await;
    fault(&cluster, |c| c.freeze_link(0)).await;
    let session = db.new_session();
    session.execute(&insert(1)).await.expect("written");
    fault(&cluster, |c| c.primary().crash()).await;
    fault(&cluster, |c| c.replica(0).promote()).await;
    assert!(!has_row(cluster.replica(0), 1), "the write is lost");
    name.point_to(cluster.replica(0));

    let mut read = session.number(Some(strict()), &row(1)).await;
    // The pool's old connection has to break first.
    while read.is_err() {
        read = session.number(Some(strict()), &row(1)).await;
    }
    kept(read, session.last_served());
    assert_eq!(session.last_served().and_then(|s| s.reason), Some(PrimaryReason::BranchLost));
    assert_eq!(db.stats().branch_lost, 1);
}

/// Rule 5. The same, and another standby follows the new primary beyond the position of the lost write. The number is
/// covered; the history is another.
///
/// # Panics
/// If the promise is broken.
pub async fn of_an_older_branch_only_what_lies_below_the_switch_survives<S: Subject>() {
    let cluster = servers(2).await;
    let db: S = connect(&cluster.primary().url(), &[cluster.replica(0).url(), cluster.replica(1).url()]).await;
    let follower = NodeId::replica(1);
    caught_up(&cluster, &db, REPLICA).await;
    // The one that will follow must not be ahead of the one that it will follow.
    fault(&cluster, |c| c.freeze_link(1)).await;
    fault(&cluster, |c| c.freeze_link(0)).await;
    let session = db.new_session();
    session.execute(&insert(1)).await.expect("written");
    let token = session.token().await.positions().next().expect("resolved");
    fault(&cluster, |c| c.primary().crash()).await;
    fault(&cluster, |c| c.replica(0).promote()).await;
    // Heard of by the follower first, it would not be known up to where it had followed.
    until("the promotion is seen", || async { standing(&db, REPLICA) == Some(Standing::OtherPrimary) }).await;
    fault(&cluster, |c| c.follow(1, c.replica(0))).await;
    cluster.replica(0).sql("INSERT INTO t SELECT n, 0 FROM generate_series(100, 2000) AS n").expect("someone else's");
    fault(&cluster, |c| c.wait_caught_up(LIMIT)).await;
    until("the follower is seen beyond the lost write", || async {
        let now = seen(&db, follower);
        now.branch() > Some(token.branch)
            && now.lsn > token.lsn
            && standing(&db, REPLICA) == Some(Standing::OtherPrimary)
    })
    .await;
    assert!(!has_row(cluster.replica(1), 1), "the write is lost");

    let refused = session.number(Some(strict().or_error()), &row(1)).await;
    let reason = refused.as_ref().err().and_then(S::refusal);
    let shown = format!("{refused:?}");
    kept(refused, session.last_served());
    assert_eq!(reason, Some(PrimaryReason::BranchLost), "{shown}");
}

/// Rule 6. A read is on its way to a standby when that is promoted, and shows what was written there since. The old primary
/// is then no fallback.
///
/// # Panics
/// If the promise is broken.
pub async fn a_read_may_have_run_after_a_promotion<S: Subject>() {
    let cluster = servers(1).await;
    let name = relay(cluster.replica(0));
    let db: S = connect(&cluster.primary().url(), &[name.url()]).await;
    caught_up(&cluster, &db, REPLICA).await;
    let session = db.new_session();
    let question = name.hold_question("WHERE id = 1");
    let reading = session.clone();
    let first = tokio::spawn(async move { reading.number(Some(strict()), &row(1)).await });
    held(&question).await;
    fault(&cluster, |c| c.replica(0).promote()).await;
    cluster.replica(0).sql(&insert(1)).expect("someone else's");
    question.release();
    assert_eq!(first.await.expect("no panic").expect("read"), Some(1), "it ran on the new branch");
    assert_eq!(session.last_served().map(|s| s.node), Some(REPLICA));

    until("the promotion is seen", || async { standing(&db, REPLICA) == Some(Standing::OtherPrimary) }).await;
    // Nothing is lost: what was seen is on the newest branch, and the old primary has it not.
    let second = session.number(Some(strict()), &row(1)).await;
    assert!(second.is_err(), "{BROKEN} back in time, to {second:?}: {:?}", session.last_served());
}
