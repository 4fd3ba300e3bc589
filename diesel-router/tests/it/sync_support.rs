//! What the tests of the sync connection share.

use std::time::{Duration, Instant};

use diesel::{
    Connection, OptionalExtension, PgConnection, QueryResult, RunQueryDsl,
    connection::{DefaultLoadingMode, LoadConnection},
    pg::Pg,
    query_builder::{AstPass, Query, QueryFragment, QueryId},
    sql_types::BigInt,
};
use diesel_router::{NodeId, ReadClass, Router, RoutingConnection};
use read_router_scenarios::LIMIT;
use read_router_testkit::{Cluster, Node};

/// A text that answers with one number, whatever its column is called.
pub(crate) struct Number<'a>(pub(crate) &'a str);

impl QueryFragment<Pg> for Number<'_> {
    fn walk_ast<'b>(&'b self, mut pass: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        pass.push_sql(self.0);
        Ok(())
    }
}

impl QueryId for Number<'_> {
    type QueryId = ();

    const HAS_STATIC_QUERY_ID: bool = false;
}

impl Query for Number<'_> {
    type SqlType = BigInt;
}

impl<C> RunQueryDsl<C> for Number<'_> {}

/// Reads one number; `None` if there is no row. Takes any connection of Diesel's.
pub(crate) fn number<C: LoadConnection<DefaultLoadingMode, Backend = Pg>>(
    conn: &mut C,
    sql: &str,
) -> QueryResult<Option<i64>> {
    Number(sql).get_result::<i64>(conn).optional()
}

/// A cluster with so many replicas and this schema, and a router to all of it.
pub(crate) fn stage(replicas: usize, schema: &str) -> (Cluster, Router) {
    let cluster = cluster(replicas, schema);
    let router = connect(&cluster);
    (cluster, router)
}

pub(crate) fn cluster(replicas: usize, schema: &str) -> Cluster {
    let builder = Cluster::builder().replicas(replicas).setting("max_connections", "200");
    let cluster = builder.start().unwrap_or_else(|error| panic!("{error}"));
    cluster.primary().sql(schema).unwrap();
    cluster.wait_caught_up(LIMIT).unwrap();
    cluster
}

pub(crate) fn connect(cluster: &Cluster) -> Router {
    let replicas = cluster.replicas().iter().map(Node::url);
    Router::builder(cluster.primary().url()).replicas(replicas).connect().unwrap()
}

/// What rounds of transactions write to.
pub(crate) const ROUNDS_SCHEMA: &str = "CREATE TABLE t (id bigint PRIMARY KEY, v bigint NOT NULL);
    CREATE TABLE d (v int UNIQUE DEFERRABLE INITIALLY DEFERRED);
    CREATE TABLE skew (id bigint PRIMARY KEY, v bigint NOT NULL)";

/// One number, from outside of the router.
pub(crate) fn ask(node: &Node, sql: &str) -> i64 {
    let rows = node.sql(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    rows[0][0].as_deref().unwrap().parse().unwrap()
}

/// Whether a server has a connection that is in a transaction and does nothing.
pub(crate) fn is_left_open(cluster: &Cluster) -> bool {
    let open = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
    [cluster.primary(), cluster.replica(0)].iter().any(|node| ask(node, open) > 0)
}

/// Whether no server has a connection left, in a transaction or out of one.
pub(crate) fn has_no_connections(cluster: &Cluster) -> bool {
    let others =
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    [cluster.primary(), cluster.replica(0)].iter().all(|node| ask(node, others) == 0)
}

/// Waits until the condition holds.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "waited {LIMIT:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Where the session's last statement was served.
pub(crate) fn node(conn: &RoutingConnection) -> NodeId {
    conn.last_served().unwrap().node
}

/// Waits until the replica serves the session's strict reads.
pub(crate) fn until_on_replica(conn: &mut RoutingConnection) {
    until("a strict read is served by a replica", || {
        number(conn.read(ReadClass::MustSeeMyWrite), "SELECT 1::bigint").unwrap();
        !node(conn).is_primary()
    });
}

/// Nothing is idle in a transaction, and the pools know of all their connections.
pub(crate) fn assert_clean(cluster: &Cluster, router: &Router) {
    for status in router.status() {
        assert_eq!(status.connections, status.idle, "{status:?}");
    }
    let open = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
    for server in std::iter::once(cluster.primary()).chain(cluster.replicas()) {
        until("nothing is idle in a transaction", || {
            let mut conn = PgConnection::establish(&server.url()).unwrap();
            number(&mut conn, open).unwrap() == Some(0)
        });
    }
}
