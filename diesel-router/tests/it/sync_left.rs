//! What is left on a connection by a text.

use diesel::{
    RunQueryDsl,
    connection::{LoadConnection, SimpleConnection},
    pg::PgRowByRowLoadingMode,
};
use diesel_router::{ReadClass, Refusal, Router, refusal};
use read_router_scenarios::LIMIT;
use read_router_testkit::{Cluster, Relay};

use crate::sync_support::{Number, ask, cluster, is_left_open, number, until};

const SCHEMA: &str = "CREATE TABLE t (id int PRIMARY KEY, v bigint NOT NULL); INSERT INTO t VALUES (0, 0)";

/// Pools of one connection.
fn narrow() -> (Cluster, Router) {
    let cluster = cluster(1, SCHEMA);
    let builder = Router::builder(cluster.primary().url()).replica(cluster.replica(0).url());
    let router = builder.pool_size(1).connect().unwrap();
    (cluster, router)
}

/// The primary's connection is clean: what is written on it is there.
fn writes(cluster: &Cluster, router: &Router, v: i64) {
    router.session().batch_execute(&format!("UPDATE t SET v = {v}")).unwrap();
    assert_eq!(ask(cluster.primary(), "SELECT v FROM t"), v);
}

#[test]
fn a_transaction_that_a_query_begins_ends_with_its_handle() {
    let (cluster, router) = narrow();
    for end in ["COMMIT", "ROLLBACK", "SELECT 1::bigint"] {
        let mut conn = router.session();
        drop(LoadConnection::<PgRowByRowLoadingMode>::load(&mut conn, Number("BEGIN")).unwrap());
        conn.batch_execute("UPDATE t SET v = v + 1").unwrap();
        Number(end).execute(&mut conn).unwrap();
        drop(conn);
        assert_eq!(number(&mut router.session(), "SELECT v FROM t").unwrap(), Some(1), "{end}");
    }
    let mut conn = router.session();
    drop(LoadConnection::<PgRowByRowLoadingMode>::load(&mut conn, Number("BEGIN")).unwrap());
    drop(conn);
    writes(&cluster, &router, 7);
}

#[test]
fn a_transaction_that_a_text_begins_ends_with_its_checkout() {
    let (cluster, router) = narrow();
    for (round, text) in ["BEGIN", "BEGIN; SELECT 1", "START TRANSACTION", "BEGIN; SELECT 1 / 0"].iter().enumerate() {
        let mut conn = router.session();
        let mut checkout = conn.checkout_write().unwrap();
        let _ = checkout.batch_execute(text);
        let _ = checkout.batch_execute("UPDATE t SET v = -1");
        drop(checkout);
        let v = 2 * i64::try_from(round).unwrap();
        writes(&cluster, &router, v);

        let mut checkout = conn.checkout_write().unwrap();
        let _ = checkout.batch_execute(text);
        let refused = checkout.finish().unwrap_err();
        assert_eq!(refusal(&refused), Some(Refusal::InTransaction));
        writes(&cluster, &router, v + 1);

        for class in [ReadClass::Eventual.or_error(), ReadClass::MustSeeMyWrite.into()] {
            let mut checkout = conn.checkout(class).unwrap();
            let _ = checkout.batch_execute(text);
            drop(checkout);
            number(router.session().read(class), "SELECT v FROM t").unwrap();
            assert!(!is_left_open(&cluster), "{text}");
        }
    }
    // What is begun and ended is no reason to refuse.
    let mut checkout = router.session().checkout_write().unwrap();
    checkout.batch_execute("BEGIN; UPDATE t SET v = 100").unwrap();
    checkout.batch_execute("COMMIT").unwrap();
    checkout.finish().unwrap();
    assert_eq!(ask(cluster.primary(), "SELECT v FROM t"), 100);
}

/// A text with a COMMIT in it may have done its work though nobody heard of it.
#[test]
fn a_text_that_commits_unheard_is_not_forgotten() {
    let cluster = cluster(1, SCHEMA);
    let name = Relay::to(cluster.primary()).unwrap();
    let router = Router::builder(name.url()).replica(cluster.replica(0).url()).connect().unwrap();
    let mut conn = router.session();
    conn.batch_execute("BEGIN").unwrap();
    let text = "INSERT INTO t VALUES (1, 1); COMMIT";
    let held = name.hold_answer(text);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            held.wait(LIMIT).unwrap();
            name.cut();
        });
        assert!(conn.batch_execute(text).is_err());
    });
    let mut rest = conn.same_session();
    assert!(rest.token().is_unknown(), "it is in doubt");
    until("the session knows the outcome", || !rest.token().is_unknown());
    let strict = ReadClass::MustSeeMyWrite.wait(LIMIT).or_error();
    assert_eq!(number(rest.read(strict), "SELECT v FROM t WHERE id = 1").unwrap(), Some(1));
}
