//! What is left on a connection by a text.

use diesel::{
    Connection, RunQueryDsl,
    connection::{LoadConnection, SimpleConnection},
    pg::PgRowByRowLoadingMode,
};
use diesel_router::{ReadClass, Refusal, Router, refusal};
use read_router_scenarios::LIMIT;
use read_router_testkit::{Cluster, Relay};

use crate::sync_checkouts::LEFT;
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

/// What a transaction commits that one text begins stays with the handle, whatever ends it.
#[test]
fn what_a_text_with_its_own_transaction_leaves_stays_with_its_handle() {
    let (_cluster, router) = narrow();
    let role = ("SET ROLE pg_monitor", "SELECT (current_user = 'pg_monitor')::int::bigint");
    let characteristics = (
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SELECT (current_setting('default_transaction_isolation') = 'serializable')::int::bigint",
    );
    let hold = ("DECLARE mine CURSOR WITH HOLD FOR SELECT 1", LEFT[6].1);
    let left = LEFT.into_iter().filter(|(what, _)| !what.starts_with("BEGIN"));
    for (what, how) in left.chain([role, characteristics, hold]) {
        for texts in [
            vec![format!("BEGIN; {what}; COMMIT")],
            vec![format!("START TRANSACTION; {what}; END")],
            vec![format!("SELECT 1; BEGIN; {what}; COMMIT")],
            vec![format!("BEGIN; {what}"), "COMMIT".to_owned()],
            vec!["BEGIN".to_owned(), what.to_owned(), "COMMIT".to_owned()],
            vec![format!("SELECT 1; BEGIN; {what}"), "COMMIT".to_owned()],
            vec!["BEGIN".to_owned(), format!("{what}; COMMIT")],
            vec![format!("BEGIN READ ONLY; {what}; COMMIT")],
        ] {
            if texts[0].contains("READ ONLY") && (what.contains("TEMP") || what.contains("LISTEN")) {
                continue;
            }
            for with_class in [false, true] {
                let mut conn = router.session();
                for text in &texts {
                    match with_class {
                        true => conn.eventual().batch_execute(text).unwrap(),
                        false => conn.batch_execute(text).unwrap(),
                    }
                }
                assert_eq!(number(conn.on_primary(), how).unwrap().unwrap_or(0), 1, "{texts:?}, {with_class}");
                drop(conn);
                let mut next = router.session();
                assert_eq!(number(next.on_primary(), how).unwrap().unwrap_or(0), 0, "{texts:?}, {with_class}");
            }
        }
        // What a text has committed stays though it fails, and so does what the caller does by himself.
        let mut conn = router.session();
        conn.batch_execute(&format!("BEGIN; {what}; COMMIT; SELECT 1 / 0")).unwrap_err();
        drop(conn);
        assert_eq!(number(&mut router.session(), how).unwrap().unwrap_or(0), 0, "{what}");
        let mut conn = router.session();
        conn.transaction(|conn| conn.primary()?.batch_execute(what)).unwrap();
        assert_eq!(number(&mut conn, how).unwrap().unwrap_or(0), 1, "{what}");
        drop(conn);
        assert_eq!(number(&mut router.session(), how).unwrap().unwrap_or(0), 0, "{what}");
    }
}

/// A replica's connection is closed after a transaction that has left something on it.
#[test]
fn what_a_transaction_on_a_replica_leaves_goes_no_further() {
    let (_cluster, router) = narrow();
    for (what, how) in &LEFT[..3] {
        let mut conn = router.session();
        let view = conn.read(ReadClass::Eventual.or_error());
        view.build_transaction().read_only().run(|conn| conn.batch_execute(what)).unwrap();
        drop(conn);
        let mut next = router.checkout(ReadClass::Eventual.or_error()).unwrap();
        assert_eq!(number(&mut next, how).unwrap().unwrap_or(0), 0, "{what}");
    }
}

/// Ways to a setting that do not say `SET`, and what runs a definition.
#[test]
fn a_setting_that_is_hard_to_see_goes_no_further() {
    let (_cluster, router) = narrow();
    let setting = "SELECT count(*) FROM (SELECT 1) x WHERE current_setting('a.b', true) = 'left'";
    for (what, how) in [
        ("SELECT set_config('a.b', 'left', NOT true)", setting),
        ("SELECT '--', set_config('a.b', 'left', false), true", setting),
        (r#"SELECT U&"set\005fconfig"('a.b', 'left', false)"#, setting),
        (
            "UPDATE pg_settings SET setting = 'left' WHERE name = 'application_name'",
            "SELECT (current_setting('application_name') = 'left')::int::bigint",
        ),
        ("EXPLAIN ANALYZE CREATE TEMP TABLE mine AS SELECT 1", LEFT[7].1),
    ] {
        let mut conn = router.session();
        conn.batch_execute(what).unwrap();
        assert_eq!(number(&mut conn, how).unwrap(), Some(1), "{what}");
        drop(conn);
        assert_eq!(number(&mut router.session(), how).unwrap().unwrap_or(0), 0, "{what}");
        router.checkout_write().unwrap().batch_execute(what).unwrap();
        assert_eq!(number(&mut router.checkout_write().unwrap(), how).unwrap().unwrap_or(0), 0, "{what}");
    }
}
