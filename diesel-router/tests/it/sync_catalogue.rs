//! What the primary's catalogue and the builder's pins say of statements.

use diesel::{Connection, QueryResult, RunQueryDsl, connection::SimpleConnection};
use diesel_router::{Access, NodeId, ReadClass, Router, RoutingConnection};
use read_router_scenarios::LIMIT;
use read_router_testkit::Cluster;

use crate::sync_support::{cluster, connect, node, number, until};

/// A function that the tests replace, and one that the catalogue cannot look into.
pub(crate) const CATALOGUE_SCHEMA: &str = "CREATE SEQUENCE s; CREATE TABLE t (id int PRIMARY KEY);
    CREATE VIEW takes AS SELECT nextval('s') AS v;
    CREATE FUNCTION which() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT 1::bigint';
    CREATE FUNCTION opaque() RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RETURN 7; END'";
pub(crate) const HARMFUL: &str =
    "CREATE OR REPLACE FUNCTION which() RETURNS bigint LANGUAGE sql AS 'SELECT nextval(''s'')'";
pub(crate) const HARMLESS: &str =
    "CREATE OR REPLACE FUNCTION which() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT 1::bigint'";

#[diesel::declare_sql_function]
extern "SQL" {
    /// Has a type of its own, and so an identity by which its text is remembered.
    fn which() -> BigInt;
}

fn read_which(conn: &mut RoutingConnection) -> QueryResult<i64> {
    diesel::select(which()).get_result(conn.eventual())
}

/// Reads until the replica serves it.
fn until_on_replica(conn: &mut RoutingConnection) {
    until("the function is read on the replica", || {
        assert_eq!(read_which(conn), Ok(1));
        node(conn) == NodeId::replica(0)
    });
}

fn refused(router: &Router) -> u64 {
    router.stats().misrouted
}

#[test]
fn a_view_that_takes_a_number_is_put_to_no_replica() {
    let cluster = cluster(1, CATALOGUE_SCHEMA);
    let router = connect(&cluster);
    let mut conn = router.session();
    for expected in 1..4 {
        let taken = number(conn.read(ReadClass::Eventual), "SELECT v FROM takes");
        assert_eq!((taken, node(&conn)), (Ok(Some(expected)), NodeId::PRIMARY));
    }
    assert_eq!(refused(&router), 0);
}

#[test]
fn a_pinned_function_is_a_read() {
    let cluster = cluster(1, CATALOGUE_SCHEMA);
    let builder = |access| {
        let builder = Router::builder(cluster.primary().url()).replica(cluster.replica(0).url());
        builder.function("opaque", access).connect().unwrap()
    };
    for (router, expected) in [
        (connect(&cluster), NodeId::PRIMARY),
        (builder(Access::Read), NodeId::replica(0)),
        (builder(Access::Primary), NodeId::PRIMARY),
    ] {
        let mut conn = router.session();
        assert_eq!(number(conn.eventual(), "SELECT opaque()"), Ok(Some(7)));
        assert_eq!(node(&conn), expected);
    }
    let none = Router::builder(cluster.primary().url()).function("no name", Access::Read).connect();
    assert!(none.is_err());
}

/// Each way of changing the schema through a connection of ours is seen before the next statement.
#[test]
fn a_function_that_has_become_harmful_is_put_to_no_replica() {
    type Change = fn(&mut RoutingConnection, &str) -> QueryResult<()>;
    let changes: [(&str, Change); 7] = [
        ("batch", |conn, sql| conn.batch_execute(sql)),
        ("query", |conn, sql| diesel::sql_query(sql).execute(conn).map(drop)),
        ("transaction", |conn, sql| conn.transaction(|conn| conn.batch_execute(sql))),
        ("text", |conn, sql| {
            conn.batch_execute("BEGIN")?;
            conn.batch_execute(sql)?;
            conn.batch_execute("COMMIT")
        }),
        ("write checkout", |conn, sql| conn.checkout_write()?.batch_execute(sql)),
        ("primary", |conn, sql| conn.primary()?.batch_execute(sql)),
        ("several", |conn, sql| conn.batch_execute(&format!("BEGIN; {sql}; COMMIT"))),
    ];
    let cluster = cluster(1, CATALOGUE_SCHEMA);
    let router = connect(&cluster);
    for (how, change) in changes {
        let mut conn = router.session();
        until_on_replica(&mut conn);
        change(&mut conn, HARMFUL).unwrap();
        is_kept_on_the_primary(&cluster, &mut conn, how);
        change(&mut conn, HARMLESS).unwrap();
        cluster.wait_caught_up(LIMIT).unwrap();
    }
    assert_eq!(refused(&router), 0);
}

/// At once, and once the catalogue has been read again.
fn is_kept_on_the_primary(cluster: &Cluster, conn: &mut RoutingConnection, how: &str) {
    for round in 0..100 {
        read_which(conn).unwrap();
        assert_eq!(node(conn), NodeId::PRIMARY, "{how}, {round}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    cluster.wait_caught_up(LIMIT).unwrap();
    read_which(conn).unwrap();
    assert_eq!(node(conn), NodeId::PRIMARY, "{how}");
}

/// What is rolled back has changed nothing.
#[test]
fn a_change_that_is_rolled_back_suspends_nothing() {
    let cluster = cluster(1, CATALOGUE_SCHEMA);
    let router = connect(&cluster);
    let mut conn = router.session();
    until_on_replica(&mut conn);
    let out = conn.transaction(|conn| {
        conn.batch_execute(HARMFUL)?;
        Err::<(), _>(diesel::result::Error::RollbackTransaction)
    });
    assert!(out.is_err());
    assert_eq!((read_which(&mut conn), node(&conn)), (Ok(1), NodeId::replica(0)));
}
