//! What is left on a connection by a text, or by a caller that goes away.

use diesel::sql_query;
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use diesel_router::{AsyncRouter, ReadClass, Refusal, refusal};
use read_router_scenarios::{LIMIT, Stage, until};
use read_router_testkit::{Cluster, Relay};

use super::{Number, number, routing::stage};
use crate::sync_support::{ask, is_left_open};

/// Pools of one connection.
async fn narrow(cluster: &Cluster) -> AsyncRouter {
    let builder = AsyncRouter::builder(cluster.primary().url()).replica(cluster.replica(0).url());
    builder.pool_size(1).connect().await.unwrap()
}

/// The primary's connection is clean: what is written on it is there.
async fn writes(cluster: &Cluster, router: &AsyncRouter, v: i64) {
    router.session().batch_execute(&format!("UPDATE t SET v = {v}")).await.unwrap();
    assert_eq!(ask(cluster.primary(), "SELECT v FROM t"), v);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_a_query_begins_ends_with_its_handle() {
    let Stage { cluster, db: _db } = stage(1).await;
    let router = narrow(&cluster).await;
    for end in ["COMMIT", "ROLLBACK", "SELECT 1::bigint AS number"] {
        let mut conn = router.session();
        let none: Vec<Number> = sql_query("BEGIN").load(&mut conn).await.unwrap();
        assert!(none.is_empty());
        conn.batch_execute("UPDATE t SET v = v + 1").await.unwrap();
        let _: Vec<Number> = sql_query(end).load(&mut conn).await.unwrap();
        drop(conn);
        assert_eq!(number(&mut router.session(), "SELECT v FROM t").await.unwrap(), 1, "{end}");
    }
    writes(&cluster, &router, 7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_a_text_begins_ends_with_its_checkout() {
    let Stage { cluster, db: _db } = stage(1).await;
    let router = narrow(&cluster).await;
    for (round, text) in
        ["BEGIN", "BEGIN; SELECT 1", "ROLLBACK; START TRANSACTION", "BEGIN; SELECT 1 / 0"].iter().enumerate()
    {
        let conn = router.session();
        let mut checkout = conn.checkout_write().await.unwrap();
        let _ = checkout.batch_execute(text).await;
        let _ = checkout.batch_execute("UPDATE t SET v = -1").await;
        drop(checkout);
        let v = 2 * i64::try_from(round).unwrap();
        writes(&cluster, &router, v).await;

        let mut checkout = conn.checkout_write().await.unwrap();
        let _ = checkout.batch_execute(text).await;
        let refused = checkout.finish().await.unwrap_err();
        assert_eq!(refusal(&refused), Some(Refusal::InTransaction));
        writes(&cluster, &router, v + 1).await;

        for class in [ReadClass::Eventual.or_error(), ReadClass::MustSeeMyWrite.into()] {
            let mut checkout = conn.checkout(class).await.unwrap();
            let _ = checkout.batch_execute(text).await;
            drop(checkout);
            number(router.session().read(class), "SELECT v FROM t").await.unwrap();
            assert!(!is_left_open(&cluster), "{text}");
        }
    }
    // What is begun and ended is no reason to refuse.
    let mut checkout = router.session().checkout_write().await.unwrap();
    checkout.batch_execute("BEGIN; UPDATE t SET v = 100").await.unwrap();
    checkout.batch_execute("COMMIT").await.unwrap();
    checkout.finish().await.unwrap();
    assert_eq!(ask(cluster.primary(), "SELECT v FROM t"), 100);
}

/// A read that takes long, and whose caller went away, held up whoever was given its connection next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_nobody_waits_for_holds_up_nobody() {
    let Stage { cluster, db: _db } = stage(1).await;
    let router = narrow(&cluster).await;
    let long = "SELECT count(*) FROM pg_sleep(3600)";
    let running =
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(3600)%' AND pid <> pg_backend_pid()";
    for class in [ReadClass::Eventual.or_error(), ReadClass::MustSeeMyWrite.or_error()] {
        let mut conn = router.session();
        tokio::select! {
            _ = number(conn.read(class), long) => panic!("it takes an hour"),
            () = until("it runs", async || ask(cluster.replica(0), running) == 1) => {}
        }
        let next = number(conn.read(class), "SELECT v FROM t");
        assert_eq!(tokio::time::timeout(LIMIT, next).await.expect("it does not wait").unwrap(), 0);
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE query LIKE '%(3600)%' AND pid <> pg_backend_pid()";
        cluster.replica(0).sql(end).unwrap();
    }
    let mut conn = router.session();
    tokio::select! {
        _ = number(conn.on_primary(), long) => panic!("it takes an hour"),
        () = until("it runs", async || ask(cluster.primary(), running) == 1) => {}
    }
    let next = conn.batch_execute("UPDATE t SET v = 1");
    tokio::time::timeout(LIMIT, next).await.expect("it does not wait").unwrap();
    // One that is soon done keeps its connection.
    let id = "SELECT pg_backend_pid()";
    let first = number(&mut conn, id).await.unwrap();
    drop(tokio::time::timeout(std::time::Duration::ZERO, number(&mut conn, "SELECT count(*) FROM t")).await);
    assert_eq!(number(&mut conn, id).await.unwrap(), first);
}

/// A text with a COMMIT in it may have done its work though nobody heard of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_that_commits_unheard_is_not_forgotten() {
    let Stage { cluster, db: _db } = stage(1).await;
    let name = Relay::to(cluster.primary()).unwrap();
    let router = AsyncRouter::builder(name.url()).replica(cluster.replica(0).url()).connect().await.unwrap();
    for id in 1..=4 {
        let mut conn = router.session();
        conn.batch_execute("BEGIN").await.unwrap();
        let text = format!("INSERT INTO t VALUES ({id}, {id}); COMMIT");
        let held = name.hold_question(&text);
        {
            let mut work = std::pin::pin!(conn.batch_execute(&text));
            tokio::select! {
                _ = &mut work => panic!("it is held"),
                () = until("it is held", async || held.has_arrived()) => {}
            }
        }
        let rest = conn.same_session();
        assert!(rest.token().await.is_unknown(), "it is in doubt");
        let goes_on = id % 2 == 0;
        if !goes_on {
            drop(conn);
            held.release();
        } else {
            held.release();
            let _ = conn.batch_execute("SELECT 1").await;
        }
        until("the session knows the outcome", async || !rest.token().await.is_unknown()).await;
        let count = format!("SELECT count(*) FROM t WHERE id = {id}");
        let happened = ask(cluster.primary(), &count);
        let strict = ReadClass::MustSeeMyWrite.wait(LIMIT).or_error();
        assert_eq!(number(router.resume(rest.token().await).read(strict), &count).await.unwrap(), happened);
        assert!(happened == 1 || !goes_on);
    }
}
