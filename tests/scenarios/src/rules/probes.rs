//! Rule 12: what a probe reads first.

use crate::{LIMIT, Subject, fault, until};
use read_router::{NodeId, PrimaryReason, Standing, Timeline};

use super::{
    Node, PROBE, ask, caught_up, connect, has_row, held, insert, is_off, kept, kept_by, probed, relay, row, seen,
    servers, session_on, standing, strict,
};

const REPLICA: NodeId = NodeId::replica(0);

/// Has a standby wait, whenever it is asked for its timeline, before it looks (lock 1) and before it says what it saw
/// (lock 2). The kit's own questions do not wait.
const GATES: &str = "
CREATE VIEW receiver AS {what pg_stat_wal_receiver is};
CREATE FUNCTION gated_receiver() RETURNS SETOF receiver LANGUAGE plpgsql AS $$
DECLARE waits CONSTANT bool := current_setting('application_name') <> 'read-router-testkit';
BEGIN
    IF waits THEN PERFORM pg_advisory_xact_lock_shared(1); END IF;
    RETURN QUERY SELECT * FROM receiver;
    IF waits THEN PERFORM pg_advisory_xact_lock_shared(2); END IF;
END $$;
SET allow_system_table_mods = on;
CREATE OR REPLACE VIEW pg_catalog.pg_stat_wal_receiver AS SELECT * FROM public.gated_receiver()";

/// Rule 12. A write is acknowledged that no standby gets. One standby is in the middle of a probe when the other one is
/// promoted; it follows, and replays beyond the write's position. The position that it says must not be taken for one on
/// the timeline of before.
///
/// With the rule off the timeline comes first, and the gate is behind it.
///
/// # Panics
/// If the promise is broken.
pub async fn the_position_is_read_before_the_timeline<S: Subject>() {
    let cluster = servers(2).await;
    gate(&cluster);
    let name = relay(cluster.replica(1));
    let primary = relay(cluster.primary());
    let db: S = connect(&primary.url(), &[name.url()]).await;
    // A connection that is open before the probe that counts.
    session_on(&db, REPLICA, &row(0)).await;
    caught_up(&cluster, &db, REPLICA).await;
    // The one that will follow must not be ahead of the one that it will follow.
    fault(&cluster, |c| c.freeze_link(1)).await;
    fault(&cluster, |c| c.freeze_link(0)).await;
    let session = db.new_session();
    session.execute(&insert(1)).await.expect("written");
    let token = session.token().await.positions().next().expect("resolved");
    // The old primary does not get to say that it is behind: the replica would be quarantined.
    let sample = primary.hold_question(PROBE);
    held(&sample).await;

    let gate = cluster.replica(1).hold_lock(if is_off() { 2 } else { 1 }).expect("locked");
    until("a probe is held in its middle", || async {
        ask(cluster.replica(1), "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'") == "1"
    })
    .await;
    let before = seen(&db, REPLICA);
    fault(&cluster, |c| c.replica(0).promote()).await;
    fault(&cluster, |c| c.follow(1, c.replica(0))).await;
    cluster.replica(0).sql("INSERT INTO t SELECT n, 0 FROM generate_series(100, 2000) AS n").expect("someone else's");
    until("the standby has replayed them", || async { has_row(cluster.replica(1), 2000) }).await;
    let next = name.hold_question(PROBE);
    drop(gate);
    held(&next).await;
    let observed = seen(&db, REPLICA);
    assert!(observed.sent_at > before.sent_at, "the probe that was held is the newest");
    assert!(!has_row(cluster.replica(1), 1), "the write is lost");

    let read = session.number(Some(strict()), &row(1)).await;
    kept(read, session.last_served());
    assert!(sample.has_arrived());
    assert!(observed.branch() > Some(token.branch) && observed.lsn < token.lsn, "{observed:?}");
}

fn gate(cluster: &super::Cluster) {
    let definition = ask(cluster.primary(), "SELECT rtrim(pg_get_viewdef('pg_stat_wal_receiver'), ';')");
    let gates = GATES.replace("{what pg_stat_wal_receiver is}", &definition);
    cluster.primary().sql(&gates).expect("the gates stand");
    cluster.wait_caught_up(LIMIT).expect("on the standbys too");
}

/// Rule 12. The same write, and the primary dies. A standby follows the promoted one beyond the write's position, and its control
/// file says the timeline of before: without a word of its own that counts only while a primary answers there.
///
/// # Panics
/// If the promise is broken.
pub async fn the_control_file_says_nothing_once_no_primary_answers<S: Subject>() {
    let cluster = servers(2).await;
    cluster.primary().sql("CREATE ROLE app LOGIN; GRANT ALL ON t TO app").expect("made");
    fault(&cluster, |c| c.wait_caught_up(LIMIT)).await;
    let app = |node: &Node| node.url().replace("postgres@", "app@");
    let db: S = connect(&app(cluster.primary()), &[app(cluster.replica(1))]).await;
    caught_up(&cluster, &db, REPLICA).await;
    // The one that will follow must not be ahead of the one that it will follow.
    fault(&cluster, |c| c.freeze_link(1)).await;
    fault(&cluster, |c| c.freeze_link(0)).await;
    let session = db.new_session();
    session.execute(&insert(1)).await.expect("written");
    let token = session.token().await.positions().next().expect("resolved");
    fault(&cluster, |c| c.primary().crash()).await;
    until("its end is seen", || async { matches!(standing(&db, NodeId::PRIMARY), Some(Standing::Down(_))) }).await;
    let before = db.new_session();
    assert_eq!(before.number(Some(strict()), &row(0)).await.expect("read"), Some(1), "what was known goes on");
    assert_eq!(before.last_served().map(|s| s.node), Some(REPLICA));

    fault(&cluster, |c| c.replica(0).promote()).await;
    fault(&cluster, |c| c.follow(1, c.replica(0))).await;
    cluster.replica(0).sql("INSERT INTO t SELECT n, 0 FROM generate_series(100, 2000) AS n").expect("someone else's");
    until("the standby has replayed them", || async { has_row(cluster.replica(1), 2000) }).await;
    probed(&db, REPLICA).await;
    let observed = seen(&db, REPLICA);
    assert!(
        observed.branch() == Some(token.branch) && observed.lsn > token.lsn,
        "it seems to be covered: {observed:?}"
    );
    assert!(!has_row(cluster.replica(1), 1), "the write is lost");
    let read = session.number(Some(strict().or_error()), &row(1)).await;
    kept(read, session.last_served());
}

/// Rule 12. An ordinary role sees no timeline of a standby but the control file's, which is behind after a promotion. Its
/// replicas are then unproven: no strict read goes there, until a restart point has brought the control file up to date.
///
/// # Panics
/// If the promise is broken.
pub async fn an_ordinary_role_proves_nothing_after_a_promotion<S: Subject>() {
    let cluster = servers(2).await;
    cluster.primary().sql("CREATE ROLE app LOGIN; GRANT ALL ON t TO app").expect("made");
    fault(&cluster, |c| c.wait_caught_up(LIMIT)).await;
    let app = |url: String| url.replace("postgres@", "app@");
    let name = relay(cluster.primary());
    let db: S = connect(&app(name.url()), &[app(cluster.replica(1).url())]).await;
    caught_up(&cluster, &db, REPLICA).await;
    assert!(!seen(&db, REPLICA).exact);
    session_on(&db, REPLICA, &row(0)).await;

    fault(&cluster, |c| c.primary().crash()).await;
    name.point_to(cluster.replica(0));
    fault(&cluster, |c| c.replica(0).promote()).await;
    fault(&cluster, |c| c.follow(1, c.replica(0))).await;
    until("the new primary is seen", || async { seen(&db, NodeId::PRIMARY).timeline > Some(Timeline(1)) }).await;
    let mut session = db.new_session();
    // The pool's old connection has to break first.
    while session.execute(&insert(1)).await.is_err() {
        session = db.new_session();
    }
    fault(&cluster, |c| c.wait_caught_up(LIMIT)).await;
    probed(&db, REPLICA).await;
    assert_eq!(seen(&db, REPLICA).timeline, Some(Timeline(1)), "it is on the second, and has the row");
    assert!(has_row(cluster.replica(1), 1));
    let read = session.number(Some(strict()), &row(1)).await;
    kept_by(PrimaryReason::Unproven, read, session.last_served());

    fault(&cluster, |c| {
        c.replica(0).sql("CHECKPOINT")?;
        c.wait_caught_up(LIMIT)?;
        c.replica(1).sql("CHECKPOINT").map(drop)
    })
    .await;
    until("the replica serves again", || async {
        assert_eq!(session.number(Some(strict()), &row(1)).await.expect("read"), Some(1));
        session.last_served().is_some_and(|s| s.node == REPLICA)
    })
    .await;
}
