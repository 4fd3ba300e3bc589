//! The recipes of `docs/testing.md`, as a user's own tests would have them.

use read_router::ReadClass;
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
