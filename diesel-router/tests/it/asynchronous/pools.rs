//! Pools that the application built.

use diesel_async::{
    AsyncConnection, AsyncPgConnection, SimpleAsyncConnection,
    pooled_connection::{AsyncDieselConnectionManager, bb8, deadpool, mobc},
};
use diesel_router::{AsyncRouter, AsyncRoutingConnection, NodeId, ReadClass};
use read_router_scenarios::{LIMIT, Stage};

use super::{number, routing::stage};

fn manager(url: &str) -> AsyncDieselConnectionManager<AsyncPgConnection> {
    AsyncDieselConnectionManager::new(url)
}

/// Writes and reads on replicas, where nothing writes, and no connection is asked twice whose it is.
async fn works(router: &AsyncRouter, keeps: bool) {
    let mut conn = router.session();
    let before = router.stats().own_samples;
    for v in 1..=20 {
        conn.batch_execute(&format!("UPDATE t SET v = {v}")).await.unwrap();
        let view = conn.read(ReadClass::MustSeeMyWrite.wait(LIMIT));
        assert_eq!(number(view, "SELECT max(v) FROM t").await.unwrap(), v);
        assert_eq!(conn.last_served().unwrap().node, NodeId(1));
    }
    // One that was opened in between is asked for its first read.
    let opened = u64::from(router.status().await[1].connections);
    assert!(!keeps || router.stats().own_samples - before <= opened, "{:?}", router.stats());
    let settings =
        "SELECT count(*) FROM (SELECT current_setting('default_transaction_read_only') AS s) AS x WHERE s = 'on'";
    let mut checkout = conn.checkout(ReadClass::MustSeeMyWrite.wait(LIMIT)).await.unwrap();
    assert_eq!((checkout.node(), number(&mut checkout, settings).await.unwrap()), (NodeId(1), 1));
    drop(checkout);
    let status = router.status().await;
    assert!(status.iter().all(|pool| pool.taken > 0 && (pool.connections > 0 || !keeps)), "{status:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_of_deadpool_are_taken_as_they_are() {
    let Stage { cluster, db: _db } = stage(1).await;
    let pool = |url: &str| {
        let role = deadpool::Hook::async_fn(|connection: &mut AsyncPgConnection, _| {
            Box::pin(async move {
                let set = connection.batch_execute("SET application_name = 'theirs'").await;
                set.map_err(|error| deadpool::HookError::message(error.to_string()))
            })
        });
        deadpool::Pool::builder(manager(url)).post_create(role).max_size(4).build().unwrap()
    };
    let (primary, replica) = (pool(&cluster.primary().url()), pool(&cluster.replica(0).url()));
    let router = AsyncRouter::builder(primary.clone()).replica(replica).connect().await.unwrap();
    works(&router, true).await;
    let named = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'theirs' AND pid = pg_backend_pid()";
    assert_eq!(number(&mut router.session(), named).await.unwrap(), 1, "their own set-up has run");
    let shared = AsyncRouter::builder(primary.clone()).replica(primary).connect().await;
    assert!(matches!(shared, Err(diesel_router::Error::Setup(_))), "{shared:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_of_bb8_are_taken_as_they_are() {
    let Stage { cluster, db: _db } = stage(1).await;
    let primary = bb8::Pool::builder().max_size(4).build(manager(&cluster.primary().url())).await.unwrap();
    let replica = bb8::Pool::builder().max_size(4).build(manager(&cluster.replica(0).url())).await.unwrap();
    let router = AsyncRouter::builder(primary).replica(replica).connect().await.unwrap();
    works(&router, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_of_mobc_are_taken_as_they_are() {
    let Stage { cluster, db: _db } = stage(1).await;
    let primary = mobc::Pool::builder().max_open(4).build(manager(&cluster.primary().url()));
    let replica = mobc::Pool::builder().max_open(4).build(manager(&cluster.replica(0).url()));
    let router = AsyncRouter::builder(primary).replica(replica).connect().await.unwrap();
    // diesel-async 0.9 tells mobc that a sound connection is broken, so that each one is new.
    works(&router, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_routing_connection_itself_can_be_pooled() {
    let Stage { cluster, db: _db } = stage(0).await;
    let manager = AsyncDieselConnectionManager::<AsyncRoutingConnection>::new(cluster.primary().url());
    let pool = bb8::Pool::builder().max_size(1).build(manager).await.unwrap();
    let mut conn = pool.get().await.unwrap();
    conn.transaction::<_, diesel::result::Error, _>(async |conn| conn.batch_execute("UPDATE t SET v = 1").await)
        .await
        .unwrap();
    assert_eq!(number(&mut *conn, "SELECT max(v) FROM t").await.unwrap(), 1);
}
