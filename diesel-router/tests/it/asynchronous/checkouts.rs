//! Code that is bound to diesel-async's own connection.

use std::time::Duration;

use diesel::{prelude::*, result::Error};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use diesel_router::{NodeId, PrimaryReason, ReadClass, Refusal, refusal};
use futures_util::{StreamExt, future::try_join};
use read_router_scenarios::{LIMIT, Stage, until};

use super::{
    number,
    routing::{stage, t},
};

/// A handler as applications have it.
async fn handler(conn: &mut AsyncPgConnection) -> QueryResult<i64> {
    conn.transaction(async |conn| t::table.select(t::v).first(conn).await).await
}

/// One that sends two queries at once.
async fn pipelined(mut conn: &AsyncPgConnection) -> QueryResult<(i64, i64)> {
    let count = t::table.count().get_result(&mut conn);
    let first = t::table.select(t::v).first(&mut conn);
    try_join(count, first).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkout_is_one_proven_server_and_read_only() {
    let Stage { cluster, db } = stage(1).await;
    let session = db.0.new_session();
    let mut write = session.checkout_write().await.unwrap();
    diesel::update(t::table).set(t::v.eq(4)).execute(&mut write).await.unwrap();
    let token = write.finish().await.unwrap();
    assert!(!token.is_unknown());
    let mut conn = session.checkout(ReadClass::MustSeeMyWrite.wait(LIMIT)).await.unwrap();
    assert_eq!(conn.node(), NodeId(1));
    assert_eq!(handler(&mut conn).await.unwrap(), 4);
    assert_eq!(pipelined(&conn).await.unwrap(), (1, 4));
    let refused = diesel::update(t::table).set(t::v.eq(5)).execute(&mut conn).await;
    assert!(refused.is_err());
    drop(conn);
    cluster.replica(0).stop().unwrap();
    for _ in 0..2 {
        let mut conn = session.checkout(ReadClass::MustSeeMyWrite).await.unwrap();
        assert_eq!((conn.node(), handler(&mut conn).await.unwrap()), (NodeId::PRIMARY, 4));
        let refused = diesel::update(t::table).set(t::v.eq(5)).execute(&mut conn).await;
        assert!(matches!(
            refused,
            Err(Error::DatabaseError(diesel::result::DatabaseErrorKind::ReadOnlyTransaction, _))
        ));
    }
    let mut conn = session.new_session();
    conn.batch_execute("UPDATE t SET v = 6").await.expect("the connection does not go back read-only");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_checkout_settles_its_session_when_it_is_dropped() {
    let Stage { cluster: _cluster, db } = stage(1).await;
    let mut session = db.0.new_session();
    let mut write = session.primary().await.unwrap();
    diesel::update(t::table).set(t::v.eq(4)).execute(&mut write).await.unwrap();
    assert_eq!(number(session.must_see_my_write(), "SELECT max(v) FROM t").await.unwrap(), 4);
    assert_eq!(session.last_served().unwrap().reason, Some(PrimaryReason::GivenOut));
    drop(write);
    until("the session is settled", async || {
        let mut session = session.same_session();
        assert_eq!(number(session.must_see_my_write(), "SELECT max(v) FROM t").await.unwrap(), 4);
        session.last_served().unwrap().node == NodeId(1)
    })
    .await;
    // A transaction that is left open is rolled back.
    let mut write = session.checkout_write().await.unwrap();
    write.batch_execute("BEGIN").await.unwrap();
    drop(write);
    let mut write = session.checkout_write().await.unwrap();
    let open = write.transaction::<_, Error, _>(async |_| Ok(())).await;
    open.unwrap();
    use diesel_async::{AnsiTransactionManager, TransactionManager};
    AnsiTransactionManager::begin_transaction(&mut *write).await.unwrap();
    let error = write.finish().await.unwrap_err();
    assert_eq!(refusal(&error), Some(Refusal::InTransaction));
}

/// As handlers do it: dropped at the end, and the next request reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_after_a_dropped_write_checkout_waits_for_it_and_not_in_vain() {
    let Stage { cluster: _cluster, db } = stage(1).await;
    for v in 1..20 {
        let mut session = db.0.new_session();
        let mut write = session.checkout_write().await.unwrap();
        diesel::update(t::table).set(t::v.eq(v)).execute(&mut write).await.unwrap();
        drop(write);
        let token = session.token().await;
        assert!(!token.is_unknown(), "{v}");
        let mut conn = session.checkout(ReadClass::MustSeeMyWrite.wait(LIMIT)).await.unwrap();
        assert_eq!((conn.node(), handler(&mut conn).await.unwrap()), (NodeId(1), v));
        let mut write = session.checkout_write().await.unwrap();
        diesel::update(t::table).set(t::v.eq(-v)).execute(&mut write).await.unwrap();
        drop(write);
        let strict = session.read(ReadClass::MustSeeMyWrite.wait(LIMIT));
        assert_eq!(number(strict, "SELECT max(v) FROM t").await.unwrap(), -v);
        assert_eq!(session.last_served().unwrap().node, NodeId(1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn within_a_transaction_there_is_no_checkout() {
    let Stage { cluster: _cluster, db } = stage(1).await;
    let mut session = db.0.new_session();
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let mut begun = Some(begun);
    let cut = session.transaction::<(), Error, _>(async |_| {
        begun.take().unwrap().send(()).unwrap();
        std::future::pending().await
    });
    tokio::select! {
        _ = cut => unreachable!("it waits for ever"),
        begun = has_begun => begun.unwrap(),
    }
    let refused = [
        session.checkout(ReadClass::MustSeeMyWrite).await.err(),
        session.checkout_write().await.err(),
        session.primary().await.err(),
    ];
    for error in refused {
        assert_eq!(refusal(&error.unwrap()), Some(Refusal::InTransaction));
    }
    session.batch_execute("ROLLBACK").await.unwrap();
    session.checkout_write().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_statement_of_a_write_checkout_is_seen_in_the_end() {
    let Stage { cluster: _cluster, db } = stage(1).await;
    let mut session = db.0.new_session();
    let mut write = session.checkout_write().await.unwrap();
    let slow = write.batch_execute("UPDATE t SET v = 77 FROM pg_sleep(0.5)");
    assert!(tokio::time::timeout(Duration::from_millis(100), slow).await.is_err());
    drop(write);
    assert_eq!(session.last_served().unwrap().node, NodeId::PRIMARY);
    until("a replica serves what was written", async || {
        let mut session = session.same_session();
        let v = number(session.must_see_my_write(), "SELECT max(v) FROM t").await.unwrap();
        if session.last_served().unwrap().node == NodeId(1) {
            assert_eq!(v, 77, "a replica serves the session only once it is settled");
            return true;
        }
        false
    })
    .await;
    let _ = number(session.eventual(), "SELECT 1").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detached_connection_listens() {
    let Stage { cluster, db } = stage(0).await;
    let mut session = db.0.new_session();
    let mut listener = session.primary().await.unwrap().detach().await.unwrap();
    listener.batch_execute("LISTEN here").await.unwrap();
    cluster.primary().sql("NOTIFY here, 'now'").unwrap();
    let notified = {
        let mut stream = std::pin::pin!(listener.notifications_stream());
        tokio::time::timeout(LIMIT, stream.next()).await.expect("in time").unwrap().unwrap()
    };
    assert_eq!(notified.payload, "now");
    session.batch_execute("UPDATE t SET v = 1").await.unwrap();
}
