//! Checkouts from the router itself.

use diesel::{
    connection::{InstrumentationEvent, SimpleConnection},
    prelude::*,
};
use diesel_router::{NodeId, ReadClass, Router};
use read_router_scenarios::LIMIT;
use read_router_testkit::Cluster;

use crate::sync_support::{cluster, number, stage, until};

#[test]
fn they_share_the_session_of_the_process() {
    let (cluster, router) = stage(1, "CREATE TABLE t (v bigint); INSERT INTO t VALUES (0)");
    cluster.replica(0).pause_replay().unwrap();
    for v in 1..4 {
        let mut write = router.checkout_write().unwrap();
        diesel::sql_query(format!("UPDATE t SET v = {v}")).execute(&mut write).unwrap();
        drop(write);
        let mut read = router.checkout(ReadClass::MustSeeMyWrite).unwrap();
        assert_eq!((read.node(), number(&mut read, "SELECT v FROM t").unwrap()), (NodeId::PRIMARY, Some(v)));
    }
    let mut stranger = router.session().checkout(ReadClass::MustSeeMyWrite).unwrap();
    assert_eq!((stranger.node(), number(&mut stranger, "SELECT v FROM t").unwrap()), (NodeId(1), Some(0)));
    cluster.replica(0).resume_replay().unwrap();
    let mut resumed = router.resume(router.token());
    until("a replica serves who goes on from the token", || {
        let mut read = resumed.checkout(ReadClass::MustSeeMyWrite.wait(LIMIT)).unwrap();
        assert_eq!(number(&mut read, "SELECT v FROM t").unwrap(), Some(3));
        read.node() == NodeId(1)
    });
}

/// What a borrower may do that the next one must not find, and how it would be found: a number that is 0 where it is not.
pub(crate) const LEFT: [(&str, &str); 8] = [
    ("SET search_path = 'local'", "SELECT (current_setting('search_path') LIKE '%local%')::int::bigint"),
    (
        "SELECT set_config('a.b', 'left', false)",
        "SELECT count(*) FROM (SELECT 1) x WHERE current_setting('a.b', true) = 'left'",
    ),
    ("SET statement_timeout = 77777", "SELECT (current_setting('statement_timeout') = '77777ms')::int::bigint"),
    ("LISTEN here", "SELECT count(*) FROM pg_listening_channels()"),
    (
        "SELECT pg_advisory_lock(77)",
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
    ),
    ("PREPARE mine AS SELECT 1", "SELECT count(*) FROM pg_prepared_statements WHERE name = 'mine'"),
    (
        "BEGIN; DECLARE mine CURSOR WITH HOLD FOR SELECT 1; COMMIT",
        "SELECT count(*) FROM pg_cursors WHERE name = 'mine'",
    ),
    (
        "CREATE TEMP TABLE mine (id int)",
        "SELECT count(*) FROM pg_class WHERE relname = 'mine' AND relnamespace = pg_my_temp_schema()",
    ),
];
/// Ways around the read-only mode of a checkout. The last ones are hidden in a function and in a procedure.
pub(crate) const WRITABLE: [&str; 5] = [
    "SET default_transaction_read_only = off",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
    "RESET ALL",
    "SELECT lifts()",
    "DO $$ BEGIN PERFORM lifts(); END $$",
];
const LIFTS: &str = "CREATE TABLE t (v bigint); INSERT INTO t VALUES (0);
    CREATE FUNCTION lifts() RETURNS bigint LANGUAGE plpgsql AS
    'BEGIN SET default_transaction_read_only = off; RETURN 1; END'";
pub(crate) const IS_WRITABLE: &str = "SELECT (current_setting('default_transaction_read_only') = 'off')::int::bigint";

/// A router with one connection in each pool: who comes next gets what the last one had.
fn narrow(cluster: &Cluster) -> Router {
    let builder = Router::builder(cluster.primary().url()).replica(cluster.replica(0).url());
    builder.pool_size(1).connect().unwrap()
}

#[test]
fn what_a_borrower_does_stays_with_him() {
    let cluster = cluster(1, LIFTS);
    let router = narrow(&cluster);
    for (what, how) in LEFT {
        let mut write = router.checkout_write().unwrap();
        write.batch_execute(what).unwrap();
        drop(write);
        let mut next = router.checkout_write().unwrap();
        assert_eq!(number(&mut next, how).unwrap().unwrap_or(0), 0, "{what}");
    }
    for (what, how) in &LEFT[..3] {
        let mut read = router.checkout(ReadClass::Eventual).unwrap();
        read.batch_execute(what).unwrap();
        drop(read);
        let mut next = router.checkout(ReadClass::Eventual).unwrap();
        assert_eq!(number(&mut next, how).unwrap().unwrap_or(0), 0, "{what}");
    }
    // Lent by a handle it stays with the handle, and goes no further.
    for (what, how) in LEFT {
        let mut conn = router.session();
        conn.primary().unwrap().batch_execute(what).unwrap();
        assert_eq!(number(&mut conn, how).unwrap(), Some(1), "{what}");
        drop(conn);
        assert_eq!(number(&mut router.session(), how).unwrap().unwrap_or(0), 0, "{what}");
    }
}

#[test]
fn a_checkout_is_read_only_whatever_the_last_one_did() {
    let cluster = cluster(1, LIFTS);
    let router = narrow(&cluster);
    // On the replica, and on the primary in its place.
    for paused in [false, true] {
        let mut conn = router.session();
        if paused {
            cluster.replica(0).pause_replay().unwrap();
            conn.batch_execute("UPDATE t SET v = v + 1").unwrap();
        }
        for what in WRITABLE {
            for lost_sight in [false, true] {
                let mut read = conn.checkout(ReadClass::MustSeeMyWrite).unwrap();
                assert_eq!(read.node().is_primary(), paused);
                if lost_sight {
                    // Past the guard.
                    (*read).set_instrumentation(|_: InstrumentationEvent<'_>| {});
                }
                read.batch_execute(what).unwrap();
                drop(read);
                let mut next = conn.checkout(ReadClass::MustSeeMyWrite).unwrap();
                assert_eq!(number(&mut next, IS_WRITABLE).unwrap(), Some(0), "{what}, {lost_sight}");
            }
        }
    }
    cluster.replica(0).resume_replay().unwrap();
}

/// Without replicas there is no catalogue, so that nobody knows what a view calls.
#[test]
fn a_checkout_without_a_catalogue_is_read_only_too() {
    let cluster = cluster(0, LIFTS);
    let view =
        "CREATE VIEW lifting AS SELECT 1::bigint AS v FROM set_config('default_transaction_read_only', 'off', false)";
    cluster.primary().sql(view).unwrap();
    let router = Router::builder(cluster.primary().url()).pool_size(1).connect().unwrap();
    for _ in 0..2 {
        let mut read = router.checkout(ReadClass::Eventual).unwrap();
        // It is not asked by a function, which would count as unknown.
        assert!(diesel::sql_query("INSERT INTO t VALUES (1)").execute(&mut read).is_err());
        assert_eq!(number(&mut read, "SELECT v FROM lifting").unwrap(), Some(1));
    }
}

#[test]
fn a_closed_router_gives_out_no_checkout() {
    for replicas in [0, 1] {
        let (_cluster, router) = stage(replicas, LIFTS);
        router.close();
        for class in [ReadClass::Eventual, ReadClass::MustSeeMyWrite] {
            for _ in 0..2 {
                let refused = router.checkout(class).unwrap_err();
                assert!(refused.to_string().contains("the router is closed"), "{refused}");
            }
        }
        let refused = router.checkout_write().unwrap_err();
        assert!(refused.to_string().contains("the router is closed"), "{refused}");
    }
}

/// The statements in a log of these settings, other than probes.
const LOGGED: [(&str, &str); 2] = [("log_statement", "all"), ("log_line_prefix", "")];

pub(crate) fn statements(log: &str) -> Vec<String> {
    let text = |line: &str| {
        let told = line.strip_prefix("LOG:  ")?;
        let text =
            told.strip_prefix("statement: ").or_else(|| told.strip_prefix("execute ")?.split_once(": ").map(|it| it.1));
        text.filter(|text| !text.contains("_lsn") && !text.contains("pg_stat_")).map(ToOwned::to_owned)
    };
    log.lines().filter_map(text).collect()
}

/// A cluster that logs what it is asked.
pub(crate) fn logged_cluster() -> Cluster {
    let mut builder = Cluster::builder().replicas(1);
    for (name, value) in LOGGED {
        builder = builder.setting(name, value);
    }
    let cluster = builder.start().unwrap_or_else(|error| panic!("{error}"));
    cluster.primary().sql(LIFTS).unwrap();
    cluster.wait_caught_up(LIMIT).unwrap();
    cluster
}

/// Such a cluster, and a router with one connection in each pool.
fn logged() -> (Cluster, Router) {
    let cluster = logged_cluster();
    let router = narrow(&cluster);
    (cluster, router)
}

/// The statements that five runs of `work` put to the primary and to the replica, after a first one.
fn asked(cluster: &Cluster, mut work: impl FnMut()) -> [Vec<String>; 2] {
    work();
    let nodes = [cluster.primary(), cluster.replica(0)];
    let marks = nodes.map(|node| node.log().unwrap().len());
    (0..5).for_each(|_| work());
    std::array::from_fn(|at| statements(&nodes[at].log().unwrap()[marks[at]..]))
}

#[test]
fn a_checkout_adds_no_statement() {
    let (cluster, router) = logged();
    let (read, write) = ("SELECT v FROM t", "UPDATE t SET v = v + 1");
    let seen = asked(&cluster, || {
        number(&mut router.checkout(ReadClass::Eventual).unwrap(), read).unwrap();
        router.checkout_write().unwrap().batch_execute(write).unwrap();
    });
    assert_eq!(seen, [vec![write; 5], vec![read; 5]]);
}

#[test]
fn a_write_and_a_transaction_add_no_statement() {
    let (cluster, router) = logged();
    let mut conn = router.session();
    let (read, write) = ("SELECT v FROM t", "INSERT INTO t VALUES (1) RETURNING v");
    let seen = asked(&cluster, || {
        number(&mut conn, write).unwrap();
        conn.transaction(|conn| {
            number(conn, read)?;
            number(conn, write)
        })
        .unwrap();
    });
    let expected = [write, "BEGIN", read, write, "COMMIT"].repeat(5);
    assert_eq!(seen, [expected, Vec::new()]);
}

/// Nobody else is asked about an error that no server could be the cause of.
#[test]
fn an_error_of_the_data_is_asked_once() {
    let (cluster, router) = logged();
    let mut conn = router.session();
    let divide = "SELECT 1 / v FROM t";
    let seen = asked(&cluster, || {
        let error = number(conn.eventual(), divide).unwrap_err();
        assert_eq!(error.to_string(), "division by zero");
    });
    assert_eq!(seen, [Vec::new(), vec![divide.to_owned(); 5]]);
}
