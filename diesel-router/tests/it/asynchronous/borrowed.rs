//! What the borrower of a connection does stays with him.

use diesel_async::{AsyncConnection, SimpleAsyncConnection};
use diesel_router::{AsyncRouter, NodeId, ReadClass};
use read_router_testkit::Cluster;

use super::number;
use crate::sync_checkouts::{IS_WRITABLE, LEFT, WRITABLE, logged_cluster, statements};

/// A cluster, and a router with one connection in each pool: who comes next gets what the last one had.
async fn stage() -> (Cluster, AsyncRouter) {
    let cluster = logged_cluster();
    let builder = AsyncRouter::builder(cluster.primary().url()).replica(cluster.replica(0).url());
    let router = builder.pool_size(1).connect().await.unwrap();
    (cluster, router)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_with_the_next_one() {
    let (_cluster, router) = stage().await;
    for (what, how) in LEFT {
        let mut write = router.checkout_write().await.unwrap();
        write.batch_execute(what).await.unwrap();
        drop(write);
        let mut next = router.checkout_write().await.unwrap();
        assert_eq!(number(&mut *next, how).await.unwrap_or(0), 0, "{what}");
    }
    for (what, how) in &LEFT[..3] {
        let mut read = router.checkout(ReadClass::Eventual).await.unwrap();
        read.batch_execute(what).await.unwrap();
        drop(read);
        let mut next = router.checkout(ReadClass::Eventual).await.unwrap();
        assert_eq!(number(&mut *next, how).await.unwrap_or(0), 0, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkout_is_read_only_whatever_the_last_one_did() {
    let (cluster, router) = stage().await;
    for paused in [false, true] {
        let mut conn = router.session();
        if paused {
            cluster.replica(0).pause_replay().unwrap();
            conn.batch_execute("UPDATE t SET v = v + 1").await.unwrap();
        }
        for what in WRITABLE {
            for lost_sight in [false, true] {
                let mut read = conn.checkout(ReadClass::MustSeeMyWrite).await.unwrap();
                assert_eq!(read.node() == NodeId::PRIMARY, paused);
                if lost_sight {
                    read.set_instrumentation(|_: diesel::connection::InstrumentationEvent<'_>| {});
                }
                read.batch_execute(what).await.unwrap();
                drop(read);
                let mut next = conn.checkout(ReadClass::MustSeeMyWrite).await.unwrap();
                assert_eq!(number(&mut *next, IS_WRITABLE).await, Ok(0), "{what}, {lost_sight}");
            }
        }
    }
    cluster.replica(0).resume_replay().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkout_adds_no_statement() {
    let (cluster, router) = stage().await;
    let (read, write) = ("SELECT (SELECT v FROM t)::bigint AS number", "UPDATE t SET v = v + 1");
    let one = async || {
        number(&mut *router.checkout(ReadClass::Eventual).await.unwrap(), "SELECT v FROM t").await.unwrap();
        router.checkout_write().await.unwrap().batch_execute(write).await.unwrap();
    };
    one().await;
    // It is settled in the background, and has the pool's only connection for so long.
    drop(router.checkout_write().await.unwrap());
    drop(router.checkout_write().await.unwrap());
    let nodes = [cluster.primary(), cluster.replica(0)];
    let marks = nodes.map(|node| node.log().unwrap().len());
    for _ in 0..5 {
        one().await;
    }
    let [on_primary, on_replica] = std::array::from_fn(|at| statements(&nodes[at].log().unwrap()[marks[at]..]));
    assert_eq!(on_replica, vec![read; 5]);
    // What settles its session comes after it, and nobody waits for that.
    let settled: Vec<_> = on_primary.into_iter().filter(|text| text != "SELECT 1").collect();
    assert_eq!(settled, vec![write; 5]);
}
