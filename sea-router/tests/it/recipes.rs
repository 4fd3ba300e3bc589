//! The recipes of `docs/testing.md`, as a user's own tests would have them.

use std::{sync::Arc, time::Duration};

use read_router::{ClassName, PrimaryReason, ReadClass};
use read_router_testkit::Cluster;
use sea_orm::{ConnectionTrait, DbBackend, DbErr, Statement, TransactionSession, TransactionTrait};
use sea_router::RoutingConnection;

use crate::options;

/// The code under test: it does not know whether it runs inside of a transaction.
async fn book<C: ConnectionTrait + TransactionTrait>(db: &C, amount: i64) -> Result<i64, DbErr> {
    let inner = db.begin().await?;
    inner.execute_unprepared(&format!("INSERT INTO booking VALUES ({amount})")).await?;
    inner.commit().await?;
    balance(db).await
}

async fn balance(db: &impl ConnectionTrait) -> Result<i64, DbErr> {
    let sum = Statement::from_string(DbBackend::Postgres, "SELECT COALESCE(sum(amount), 0)::bigint FROM booking");
    db.query_one_raw(sum).await?.ok_or(DbErr::RecordNotFound("a sum".to_owned()))?.try_get_by_index(0)
}

async fn connect() -> RoutingConnection {
    let cluster = tokio::task::spawn_blocking(|| {
        Cluster::shared(|builder| {
            let cluster = builder.replicas(1);
            cluster.setting("max_connections", "100")
        })
    });
    let cluster = cluster.await.expect("no panic");
    let schema = "CREATE TABLE IF NOT EXISTS booking (amount bigint)";
    // Two tests may come at once; the loser's error is that it is there already.
    let _ = cluster.primary().sql(schema);
    let db = RoutingConnection::builder(options(&cluster.primary().url()));
    db.replica(options(&cluster.replica(0).url())).connect().await.expect("up")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_rolled_back_transaction_holds_a_whole_test() {
    let db = connect().await;
    let test = db.must_see_my_write().begin().await.expect("begun");
    assert_eq!(book(&test, 5).await.expect("booked"), 5);
    assert_eq!(book(&test, 7).await.expect("booked"), 12);
    test.rollback().await.expect("rolled back");
    assert_eq!(balance(&db.read(ReadClass::MustSeeMyWrite)).await.expect("read"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_test_on_the_same_cluster_sees_nothing_of_it() {
    let db = connect().await;
    let test = db.begin().await.expect("begun");
    assert_eq!(book(&test, 100).await.expect("booked"), 100);
    // Dropped without a commit, as by a failed assertion: rolled back as well.
    drop(test);
    assert_eq!(balance(&db.on_primary()).await.expect("read"), 0);
}

/// Starts and breaks servers beside the tasks: the test kit blocks.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("no panic")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_read_has_its_class() {
    let cluster = Arc::new(beside(|| Cluster::builder().replicas(1).start().expect("started")).await);
    let db = RoutingConnection::builder(options(&cluster.primary().url()));
    let db = db.replica(options(&cluster.replica(0).url())).connect().await.expect("up");
    db.execute_unprepared("CREATE TABLE booking (amount bigint)").await.expect("a table");
    let paused = cluster.clone();
    beside(move || {
        paused.wait_caught_up(Duration::from_secs(10)).expect("caught up");
        paused.replica(0).pause_replay().expect("paused");
    })
    .await;

    let me = db.new_session();
    book(&me, 5).await.expect("booked");
    assert_eq!(balance(&me.must_see_my_write()).await.expect("read"), 5, "must see its own write");
    assert_eq!(balance(&me.eventual()).await.expect("read"), 0, "may be stale: the paused replica serves it");
    let stats = db.stats();
    assert!(stats.nodes[1].reads_of(ClassName::Eventual) > 0);
    // Where the code under test forgot a class; `book` reads its balance without one.
    assert_eq!(stats.primary_for(PrimaryReason::Unannotated), 1, "{:?}", stats.unannotated);
    cluster.replica(0).resume_replay().expect("resumed");
}
