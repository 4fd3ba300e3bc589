//! Transactions: whole on one server, and clean however they end.

use std::{panic::AssertUnwindSafe, time::Duration};

use diesel::{prelude::*, result::Error};
use diesel_async::{AsyncConnection, RunQueryDsl, SimpleAsyncConnection, TransactionManager};
use diesel_router::{AsyncRouter, AsyncRoutingConnection, PrimaryReason, ReadClass, RoutedTransactions};
use futures_util::FutureExt;
use read_router_scenarios::{LIMIT, Stage, amount, until};
use read_router_testkit::{Cluster, Relay};

use super::{
    number,
    routing::{stage, t},
};

const IN_RECOVERY: &str = "SELECT (setting = 'on')::int FROM pg_settings WHERE name = 'in_hot_standby'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_of_a_transaction_is_on_the_primary() {
    let Stage { cluster: _cluster, db } = stage(1).await;
    let mut conn = db.0.new_session();
    conn.transaction::<_, Error, _>(async |conn| {
        diesel::update(t::table).set(t::v.eq(t::v + 1)).execute(conn).await?;
        assert_eq!(number(conn.eventual(), IN_RECOVERY).await?, 0, "the transaction goes before the class");
        let undone: Result<(), Error> = conn
            .transaction(async |conn| {
                diesel::update(t::table).set(t::v.eq(t::v + 10)).execute(conn).await?;
                Err(Error::RollbackTransaction)
            })
            .await;
        assert_eq!(undone, Err(Error::RollbackTransaction));
        conn.transaction(async |conn| {
            diesel::update(t::table).set(t::v.eq(t::v + 100)).execute(conn).await?;
            Ok(())
        })
        .await
    })
    .await
    .unwrap();
    let view = conn.read(ReadClass::MustSeeMyWrite.wait(LIMIT));
    assert_eq!(number(view, "SELECT max(v) FROM t").await.unwrap(), 101);
    assert!(!conn.last_served().unwrap().node.is_primary());
    assert_eq!(db.0.stats().primary_for(PrimaryReason::Transaction), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_by_their_text_are_transactions() {
    let Stage { cluster: _cluster, db } = stage(0).await;
    let mut conn = db.0.new_session();
    conn.batch_execute("BEGIN").await.unwrap();
    conn.batch_execute("UPDATE t SET v = 1").await.unwrap();
    diesel::sql_query("ROLLBACK").execute(&mut conn).await.unwrap();
    assert_eq!(number(&mut conn, "SELECT max(v) FROM t").await.unwrap(), 0);
    conn.batch_execute("START TRANSACTION ISOLATION LEVEL REPEATABLE READ;").await.unwrap();
    conn.batch_execute("UPDATE t SET v = 2").await.unwrap();
    conn.batch_execute("COMMIT").await.unwrap();
    conn.batch_execute("UPDATE t SET v = 3; BEGIN; UPDATE t SET v = 4").await.unwrap();
    conn.batch_execute("INSERT INTO t VALUES (1, 5); -- and on\n COMMIT").await.unwrap();
    assert_eq!(number(&mut conn, "SELECT max(v) FROM t").await.unwrap(), 5, "a text may leave a transaction open");
    drop(conn);
    let mut conn = db.0.new_session();
    assert_eq!(number(&mut conn, "SELECT max(v) FROM t").await.unwrap(), 5);
    conn.batch_execute("BEGIN; UPDATE t SET v = 6").await.unwrap();
    drop(conn);
    let mut conn = db.0.new_session();
    assert_eq!(number(&mut conn, "SELECT max(v) FROM t").await.unwrap(), 5, "dropped, it is rolled back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_transaction_of_a_class_runs_whole_on_one_replica() {
    let Stage { cluster: _cluster, db } = stage(2).await;
    let mut conn = db.0.new_session();
    conn.batch_execute("UPDATE t SET v = 5").await.unwrap();
    let view = conn.read(ReadClass::MustSeeMyWrite.wait(LIMIT));
    let (recovering, v) = view
        .build_transaction()
        .read_only()
        .repeatable_read()
        .run(async |conn| Ok::<_, Error>((number(conn, IN_RECOVERY).await?, number(conn, "SELECT v FROM t").await?)))
        .await
        .unwrap();
    assert_eq!((recovering, v), (1, 5));
    let view = conn.read(ReadClass::MustSeeMyWrite.wait(LIMIT));
    let refused = view
        .build_transaction()
        .read_only()
        .run(async |conn| diesel::update(t::table).set(t::v.eq(6)).execute(conn).await)
        .await;
    assert!(matches!(refused, Err(Error::DatabaseError(diesel::result::DatabaseErrorKind::ReadOnlyTransaction, _))));
    let on_primary = conn
        .eventual()
        .build_transaction()
        .read_only()
        .serializable()
        .deferrable()
        .run(async |conn| number(conn, IN_RECOVERY).await)
        .await
        .unwrap();
    assert_eq!(on_primary, 0);
    assert_eq!(db.0.stats().primary_for(PrimaryReason::Isolation), 1);
    let level = conn
        .build_transaction()
        .read_committed()
        .read_write()
        .not_deferrable()
        .run(async |conn| {
            number(conn, "SELECT (current_setting('transaction_isolation') = 'read committed')::int").await
        })
        .await
        .unwrap();
    assert_eq!(level, 1);
}

/// What the server has of connections that are left in a transaction.
fn left_open(cluster: &Cluster) -> Option<String> {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
    cluster.primary().sql(sql).unwrap()[0][0].clone()
}

async fn is_clean(cluster: &Cluster, conn: &AsyncRoutingConnection) {
    until("no transaction is left open and every connection is back", async || {
        let status = conn.router().status().await;
        left_open(cluster).as_deref() == Some("0") && status.iter().all(|pool| pool.connections == pool.idle)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_comes_back_clean_however_a_transaction_ends() {
    let Stage { cluster, db } = stage(0).await;
    cluster.primary().sql("CREATE TABLE d (v int UNIQUE DEFERRABLE INITIALLY DEFERRED)").unwrap();
    let relay = Relay::to(cluster.primary()).unwrap();
    let router = AsyncRouter::builder(relay.url()).pool_size(4).connect().await.unwrap();
    let rounds = usize::try_from(amount(50, 500)).unwrap();
    for round in 0..rounds {
        let mut conn = router.session();
        match round % 10 {
            0 => {
                let failed = conn
                    .transaction::<_, Error, _>(async |conn| conn.batch_execute("INSERT INTO d VALUES (1), (1)").await)
                    .await;
                assert!(failed.is_err(), "the constraint is checked by COMMIT");
            }
            1 => {
                let panicked = AssertUnwindSafe(conn.transaction::<(), Error, _>(async |conn| {
                    conn.batch_execute("UPDATE t SET v = 1").await?;
                    panic!("in the closure")
                }))
                .catch_unwind()
                .await;
                assert!(panicked.is_err());
            }
            // Dropped in BEGIN, in a statement, in COMMIT, in a savepoint: after so many polls.
            2..=7 => {
                let polls = round % 10 - 1 + round / 10 % 5;
                let work = conn.transaction::<_, Error, _>(async |conn| {
                    conn.batch_execute("UPDATE t SET v = 2").await?;
                    conn.transaction(async |conn| conn.batch_execute("UPDATE t SET v = 3").await).await
                });
                polled(work, polls).await;
            }
            8 => {
                RoutedTransactions::begin_transaction(&mut conn).await.unwrap();
                relay.cut();
                assert!(conn.batch_execute("UPDATE t SET v = 4").await.is_err());
                let _ = RoutedTransactions::rollback_transaction(&mut conn).await;
            }
            _ => {
                RoutedTransactions::begin_transaction(&mut conn).await.unwrap();
                relay.cut();
                assert!(RoutedTransactions::commit_transaction(&mut conn).await.is_err());
            }
        }
        if round % 10 >= 8 {
            until("the primary is reached again", async || router.session().batch_execute("SELECT 1").await.is_ok())
                .await;
        }
    }
    is_clean(&cluster, &router.session()).await;
    let _ = db;
}

/// Polls a future so often, with the time in between that an answer needs, and drops it.
async fn polled<T>(work: impl Future<Output = T>, polls: usize) {
    let mut work = Box::pin(work);
    for _ in 0..polls {
        if tokio::time::timeout(Duration::from_micros(300), &mut work).await.is_ok() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_nobody_waits_for_is_made_and_seen() {
    let Stage { cluster, db: _db } = stage(1).await;
    let relay = Relay::to(cluster.primary()).unwrap();
    let router = AsyncRouter::builder(relay.url()).replica(cluster.replica(0).url()).connect().await.unwrap();
    let mut conn = router.session();
    RoutedTransactions::begin_transaction(&mut conn).await.unwrap();
    conn.batch_execute("UPDATE t SET v = 8").await.unwrap();
    let held = relay.hold_answer("COMMIT");
    let commit = RoutedTransactions::commit_transaction(&mut conn);
    assert!(tokio::time::timeout(Duration::from_millis(200), commit).await.is_err(), "the answer is held");
    let strict = ReadClass::MustSeeMyWrite.or_error().wait(Duration::ZERO);
    assert!(number(conn.read(strict), "SELECT max(v) FROM t").await.is_err(), "it is in doubt");
    held.release();
    until("the outcome is known", async || {
        let mut conn = conn.same_session();
        number(conn.read(ReadClass::MustSeeMyWrite.or_error().wait(LIMIT)), "SELECT max(v) FROM t").await == Ok(8)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrations_run_over_the_routing_connection() {
    use diesel_async::AsyncMigrationHarness;
    use diesel_migrations::MigrationHarness;
    let Stage { cluster: _cluster, db } = stage(1).await;
    let folder = std::env::temp_dir().join(format!("diesel-router-migrations-{}", std::process::id()));
    let one = folder.join("2024-01-01-000000_one");
    std::fs::create_dir_all(&one).unwrap();
    std::fs::write(one.join("up.sql"), "CREATE TABLE migrated (v int); INSERT INTO migrated VALUES (1);").unwrap();
    std::fs::write(one.join("down.sql"), "DROP TABLE migrated;").unwrap();
    let source = diesel_migrations::FileBasedMigrations::from_path(&folder).unwrap();
    let mut harness = AsyncMigrationHarness::new(db.0.new_session());
    harness.run_pending_migrations(source.clone()).unwrap();
    let mut conn = harness.into_inner();
    let view = conn.read(ReadClass::MustSeeMyWrite.wait(LIMIT));
    assert_eq!(number(view, "SELECT count(*) FROM migrated").await.unwrap(), 1);
    assert!(!conn.last_served().unwrap().node.is_primary());
    let mut harness = AsyncMigrationHarness::new(conn);
    harness.revert_all_migrations(source).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}
