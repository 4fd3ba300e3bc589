//! The sync connection when a transaction fails, a link breaks, or a server or the router goes away.

use std::time::Duration;

use diesel::{
    connection::{Connection, SimpleConnection, TransactionManager},
    prelude::*,
    result::{DatabaseErrorKind, Error},
};
use diesel_router::{PrimaryReason, Router};
use read_router_scenarios::amount;

use crate::{
    sync_basics::{SCHEMA, count, insert},
    sync_support::{assert_clean, cluster, connect, node, number, stage, until, until_on_replica},
};

fn fail() -> QueryResult<()> {
    std::panic::resume_unwind(Box::new(()))
}

#[test]
fn a_connection_comes_back_clean() {
    let schema = "CREATE TABLE ride (id int PRIMARY KEY, distance bigint NOT NULL); \
                  CREATE TABLE late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)";
    let (cluster, router) = stage(1, schema);
    for round in 0..i64::try_from(amount(15, 150)).unwrap() {
        let mut conn = router.session();
        // The commit fails.
        let error = conn.transaction(|conn| conn.batch_execute("INSERT INTO late VALUES (1), (1)")).unwrap_err();
        assert!(matches!(error, Error::DatabaseError(DatabaseErrorKind::UniqueViolation, _)), "{error:?}");
        assert_eq!(count(&mut conn).unwrap(), round);
        // The closure panics.
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut conn = router.session();
            let _ = conn.transaction(|conn| {
                insert(conn, -1).unwrap();
                fail()
            });
        }));
        assert!(panicked.is_err());
        // The handle goes away in the middle.
        let mut dropped = router.session();
        diesel::connection::AnsiTransactionManager::begin_transaction(&mut dropped).unwrap();
        insert(&mut dropped, -2).unwrap();
        drop(dropped);
        let mut test = router.session();
        test.begin_test_transaction().unwrap();
        insert(&mut test, -3).unwrap();
        drop(test);
        // The caller's own texts.
        let mut own = router.session();
        own.batch_execute("BEGIN; INSERT INTO ride VALUES (-4, 1)").unwrap();
        assert_eq!(count(&mut own).unwrap(), round + 1);
        own.batch_execute("ROLLBACK").unwrap();
        own.batch_execute("BEGIN").unwrap();
        insert(&mut own, i32::try_from(round).unwrap() + 1).unwrap();
        diesel::sql_query("COMMIT").execute(&mut own).unwrap();
        own.batch_execute("SELECT 1; BEGIN; SELECT 2").unwrap();
        drop(own);
        // A commit of the caller's that fails leaves nothing open.
        let mut failing = router.session();
        failing.batch_execute("BEGIN; INSERT INTO late VALUES (2), (2)").unwrap();
        failing.batch_execute("COMMIT").unwrap_err();
        assert_eq!(count(failing.must_see_my_write()).unwrap(), round + 1);
        failing.batch_execute("BEGIN; nonsense").unwrap_err();
        assert_eq!(count(&mut failing).unwrap(), round + 1);
    }
    assert_clean(&cluster, &router);
}

#[test]
fn a_broken_link_ends_the_transaction_and_not_the_handle() {
    let (cluster, router) = stage(1, SCHEMA);
    // Waits until each is gone.
    let kill = || {
        let kill = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE backend_type = 'client backend' \
                    AND pid <> pg_backend_pid()";
        cluster.primary().sql(kill).unwrap();
    };
    let mut conn = router.session();
    let rounds = i32::try_from(amount(5, 50)).unwrap();
    for round in 0..rounds {
        // In a statement.
        let error = conn.transaction(|conn| {
            insert(conn, 100 + round)?;
            kill();
            insert(conn, 200 + round)
        });
        assert!(matches!(error, Err(Error::DatabaseError(DatabaseErrorKind::ClosedConnection, _))), "{error:?}");
        // What the caller runs in spite of the error is not run outside of the transaction.
        let error = conn.transaction(|conn| {
            insert(conn, 300 + round)?;
            kill();
            insert(conn, 400 + round).unwrap_err();
            conn.transaction(|conn| insert(conn, 500 + round)).unwrap_err();
            insert(conn, 600 + round).unwrap_err();
            QueryResult::Ok(())
        });
        error.unwrap_err();
        // In COMMIT.
        let error = conn.transaction(|conn| {
            insert(conn, 700 + round)?;
            kill();
            QueryResult::Ok(())
        });
        error.unwrap_err();
        // Before BEGIN: nothing is lost by another one.
        kill();
        conn.transaction(|conn| insert(conn, round)).unwrap();
        // Before a read.
        kill();
        assert_eq!(count(&mut conn).unwrap(), i64::from(round) + 1);
    }
    until("the writes in doubt are settled", || {
        count(conn.must_see_my_write()).unwrap();
        !node(&conn).is_primary()
    });
    assert_eq!(count(conn.must_see_my_write()).unwrap(), i64::from(rounds));
    assert_clean(&cluster, &router);
}

#[test]
fn who_waits_for_a_connection_gets_one_when_a_broken_one_comes_back() {
    let cluster = cluster(0, SCHEMA);
    let router = Router::builder(cluster.primary().url()).pool_size(1).connect().unwrap();
    for id in 0..5 {
        let mut first = router.session();
        first.begin_test_transaction().unwrap();
        let process = number(&mut first, "SELECT pg_backend_pid()::bigint").unwrap().unwrap();
        std::thread::scope(|scope| {
            let (router, (tell, begun)) = (&router, std::sync::mpsc::channel());
            let waits = scope.spawn(move || {
                tell.send(()).unwrap();
                let started = std::time::Instant::now();
                insert(&mut router.session(), id).unwrap();
                started.elapsed()
            });
            begun.recv().unwrap();
            cluster.primary().sql(&format!("SELECT pg_terminate_backend({process}, 10000)")).unwrap();
            drop(first);
            // r2d2's own limit is 30 seconds.
            assert!(waits.join().unwrap() < Duration::from_secs(15));
        });
    }
}

#[test]
fn a_replica_may_be_down_at_the_start_and_die_in_the_middle() {
    let cluster = cluster(1, SCHEMA);
    cluster.replica(0).stop().unwrap();
    let router = connect(&cluster);
    let mut conn = router.session();
    insert(&mut conn, 1).unwrap();
    assert_eq!(count(conn.eventual()).unwrap(), 1);
    assert_eq!(conn.last_served().unwrap().reason, Some(PrimaryReason::NoneUp));
    cluster.replica(0).start().unwrap();
    until_on_replica(&mut conn);
    cluster.replica(0).crash().unwrap();
    for _ in 0..10 {
        assert_eq!(count(conn.must_see_my_write()).unwrap(), 1);
        assert_eq!(count(conn.eventual()).unwrap(), 1);
    }
    cluster.replica(0).start().unwrap();
    until_on_replica(&mut conn);
    // A primary that is read-only for maintenance gives its own error.
    cluster.primary().set("default_transaction_read_only", "on").unwrap();
    until("the primary is read-only", || {
        matches!(insert(&mut conn, 2), Err(Error::DatabaseError(DatabaseErrorKind::ReadOnlyTransaction, _)))
    });
    assert!(count(conn.must_see_my_write()).unwrap() >= 1);
}

#[test]
fn the_end_of_the_router_is_the_end_of_its_connections() {
    let (cluster, router) = stage(1, SCHEMA);
    let mut conn = router.session();
    insert(&mut conn, 1).unwrap();
    let ours =
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    router.close();
    assert!(insert(&mut conn, 2).is_err());
    drop((conn, router));
    for server in [cluster.primary(), cluster.replica(0)] {
        until("all connections are closed", || server.sql(ours).unwrap()[0][0].as_deref() == Some("0"));
    }
}
