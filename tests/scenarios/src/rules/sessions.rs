//! Rules 7 to 9: what a session has done and has been shown.

use std::{future::Future, pin::pin, task::Poll, time::Duration};

use crate::{Subject, fault, until};
use read_router::{NodeId, PrimaryReason, ReadClass, Standing};

use super::{
    PROBE, ask, caught_up, connect, has_row, held, insert, kept_by, probed, relay, row, seen, servers, session_on,
    standing, strict,
};

const FIRST: NodeId = NodeId::replica(0);
const SECOND: NodeId = NodeId::replica(1);

/// Rule 7. A read on the primary has shown someone else's commit; the replica lags.
///
/// # Panics
/// If the promise is broken.
pub async fn a_read_on_the_primary_counts<S: Subject>() {
    let cluster = servers(1).await;
    let db: S = connect(&cluster.primary().url(), &[cluster.replica(0).url()]).await;
    fault(&cluster, |c| c.replica(0).pause_replay()).await;
    cluster.primary().sql(&insert(1)).expect("someone else's");
    let session = db.new_session();
    assert_eq!(session.number(None, &row(1)).await.expect("read"), Some(1));
    assert!(!has_row(cluster.replica(0), 1));
    session.token().await;

    let read = session.number(Some(strict()), &row(1)).await;
    kept_by(PrimaryReason::Behind, read, session.last_served());
}

/// Rule 8. The caller of a write goes away while the write is on its way; the primary is asked where it is; then the write
/// lands, and nobody hears of it.
///
/// # Panics
/// If the promise is broken.
pub async fn a_write_of_unknown_outcome_keeps_the_session_on_the_primary<S: Subject>() {
    let cluster = servers(1).await;
    let name = relay(cluster.primary());
    let db: S = connect(&name.url(), &[cluster.replica(0).url()]).await;
    fault(&cluster, |c| c.replica(0).pause_replay()).await;
    let session = db.new_session();
    let (question, answer) = (name.hold_question(&insert(1)), name.hold_answer(&insert(1)));
    let writing = session.clone();
    let write = tokio::spawn(async move { writing.execute(&insert(1)).await });
    held(&question).await;
    if S::CALLS_BLOCK {
        // Its caller cannot go away, but its link can.
        question.release();
        held(&answer).await;
        name.cut();
        assert!(write.await.expect("no panic").is_err());
    } else {
        write.abort();
        assert!(write.await.is_err_and(|error| error.is_cancelled()));
        probed(&db, NodeId::PRIMARY).await;
        assert!(!has_row(cluster.primary(), 1));
        question.release();
        held(&answer).await;
    }
    until("the write has landed", || async { has_row(cluster.primary(), 1) }).await;
    assert!(!has_row(cluster.replica(0), 1));

    let read = session.number(Some(strict()), &row(1)).await;
    // A link that broke may be known to be over by now.
    let settled = S::CALLS_BLOCK && session.last_served().and_then(|s| s.reason) != Some(PrimaryReason::InDoubt);
    kept_by(if settled { PrimaryReason::Behind } else { PrimaryReason::InDoubt }, read, session.last_served());
    drop(answer);
    until("it is settled", || async { !session.token().await.is_unknown() }).await;
    let read = session.number(Some(strict()), &row(1)).await;
    kept_by(PrimaryReason::Behind, read, session.last_served());
}

/// Rule 9. A standby answers a probe; the answer is on its way while the standby replays a commit and shows it to the session.
/// An answer that comes after the read but was given before it says nothing of what the read has shown.
///
/// # Panics
/// If the promise is broken.
pub async fn an_answer_that_was_given_before_the_read_does_not_count<S: Subject>() {
    let cluster = servers(2).await;
    let name = relay(cluster.replica(0));
    let db: S = connect(&cluster.primary().url(), &[name.url(), cluster.replica(1).url()]).await;
    let answer = name.hold_answer(PROBE);
    held(&answer).await;
    // The other replica is past what that answer says, but no further.
    cluster.primary().sql(&insert(2)).expect("someone else's");
    caught_up(&cluster, &db, SECOND).await;
    fault(&cluster, |c| c.replica(1).pause_replay()).await;
    cluster.primary().sql(&insert(1)).expect("someone else's");
    until("the first replica has it", || async { has_row(cluster.replica(0), 1) }).await;
    let (session, read) = session_on(&db, FIRST, &row(1)).await;
    assert_eq!(read, Some(1));
    let before = seen(&db, FIRST);
    // The answer comes, and no other after it.
    let next = name.hold_question(PROBE);
    answer.release();
    held(&next).await;
    let late = seen(&db, FIRST);
    assert!(late.received_at > before.received_at && late.lsn < seen(&db, SECOND).lsn, "{late:?}");
    fault(&cluster, |c| c.replica(0).crash()).await;
    next.release();
    until("the first replica is down", || async { matches!(standing(&db, FIRST), Some(Standing::Down(_))) }).await;
    assert!(!has_row(cluster.replica(1), 1));
    probed(&db, NodeId::PRIMARY).await;

    let read = session.number(Some(strict()), &row(1)).await;
    kept_by(PrimaryReason::Behind, read, session.last_served());
}

/// Rule 9. A session reads on one replica; its next read there breaks, and goes to another one that lags; then it reads once
/// more. What the first one has shown still counts.
///
/// # Panics
/// If the promise is broken.
pub async fn each_replica_read_counts_not_only_the_last<S: Subject>() {
    let cluster = servers(2).await;
    let name = relay(cluster.replica(0));
    let db: S = connect(&cluster.primary().url(), &[name.url(), cluster.replica(1).url()]).await;
    caught_up(&cluster, &db, SECOND).await;
    fault(&cluster, |c| c.replica(1).pause_replay()).await;
    let probe = name.hold_question(PROBE);
    held(&probe).await;
    cluster.primary().sql(&insert(1)).expect("someone else's");
    until("the first replica has it", || async { has_row(cluster.replica(0), 1) }).await;
    let (session, read) = session_on(&db, FIRST, &row(1)).await;
    assert_eq!(read, Some(1));

    let question = name.hold_question("WHERE id = 2");
    let reading = session.clone();
    let second = tokio::spawn(async move { reading.number(Some(ReadClass::Eventual.or_error()), &row(2)).await });
    held(&question).await;
    let readers =
        "FROM pg_stat_activity WHERE backend_type = 'client backend' AND query NOT LIKE '%pg_last_wal_replay_lsn%'
        AND application_name <> 'read-router-testkit'";
    ask(cluster.replica(0), &format!("SELECT count(pg_terminate_backend(pid)) {readers}"));
    until("its connection is broken", || async {
        ask(cluster.replica(0), &format!("SELECT count(*) {readers}")) == "0"
    })
    .await;
    question.release();
    second.await.expect("no panic").expect("read");
    assert_eq!(session.last_served().map(|s| s.node), Some(SECOND));
    probed(&db, SECOND).await;
    assert_eq!(standing(&db, FIRST), Some(Standing::Suspect));
    assert!(probe.has_arrived() && !has_row(cluster.replica(1), 1));

    let read = session.number(Some(ReadClass::MustSeeMyWrite.wait(Duration::from_secs(2))), &row(1)).await;
    kept_by(PrimaryReason::Unresolved, read, session.last_served());
}

/// Rule 9. A session reads on a replica and hands its token to another process, whose replica lags.
///
/// # Panics
/// If the promise is broken.
pub async fn a_token_contains_what_replicas_have_shown<S: Subject>() {
    let cluster = servers(2).await;
    let name = relay(cluster.replica(0));
    let here: S = connect(&cluster.primary().url(), &[name.url()]).await;
    let there: S = connect(&cluster.primary().url(), &[cluster.replica(1).url()]).await;
    caught_up(&cluster, &there, FIRST).await;
    fault(&cluster, |c| c.replica(1).pause_replay()).await;
    let probe = name.hold_question(PROBE);
    held(&probe).await;
    cluster.primary().sql(&insert(1)).expect("someone else's");
    until("the first replica has it", || async { has_row(cluster.replica(0), 1) }).await;
    let session = here.new_session();
    assert_eq!(session.number(Some(strict()), &row(1)).await.expect("read"), Some(1));
    assert_eq!(session.last_served().map(|s| s.node), Some(FIRST));

    let mut asked = pin!(session.token());
    let asked_once = std::future::poll_fn(|context| Poll::Ready(asked.as_mut().poll(context))).await;
    let token = match asked_once {
        Poll::Ready(token) => token,
        // What the replica has shown is to be learnt first.
        Poll::Pending => {
            probe.release();
            asked.await
        }
    };
    assert!(!has_row(cluster.replica(1), 1));
    let elsewhere = there.resume(token);
    let read = elsewhere.number(Some(strict()), &row(1)).await;
    kept_by(PrimaryReason::Behind, read, elsewhere.last_served());
}
