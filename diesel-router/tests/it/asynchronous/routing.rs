//! Where statements go, and what the session hears of them.

use std::time::Duration;

use diesel::{dsl::sql, prelude::*, result::Error, sql_types::BigInt};
use diesel_async::{AsyncConnection, AsyncConnectionCore, RunQueryDsl, SimpleAsyncConnection};
use diesel_router::{
    AsyncRouter, AsyncRoutingConnection, NodeId, PrimaryReason, QueryClass, ReadClass, Refusal, Unannotated, refusal,
};
use futures_util::TryStreamExt;
use read_router::Config;
use read_router_scenarios::{LIMIT, Stage, until};

use super::{number, scenarios::Async};

diesel::table! {
    t (id) {
        id -> Integer,
        v -> BigInt,
    }
}

pub(super) const SCHEMA: &str = "CREATE TABLE t (id int PRIMARY KEY, v bigint NOT NULL); INSERT INTO t VALUES (0, 0)";

pub(super) async fn stage(replicas: usize) -> Stage<Async> {
    Stage::set(replicas, SCHEMA, Config::default(), &[]).await
}

fn served(connection: &AsyncRoutingConnection) -> (NodeId, Option<PrimaryReason>) {
    let served = connection.last_served().unwrap();
    (served.node, served.reason)
}

/// Repository code that does not choose the connection.
async fn sum<C: AsyncConnection<Backend = diesel::pg::Pg>>(connection: &mut C) -> QueryResult<Option<i64>> {
    t::table.select(sql::<diesel::sql_types::Nullable<BigInt>>("max(v)")).get_result(connection).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_statement_goes_where_it_belongs() {
    let Stage { cluster: _cluster, db } = stage(1).await;
    let mut conn = db.0.new_session();
    let written = diesel::insert_into(t::table).values((t::id.eq(1), t::v.eq(5))).execute(&mut conn).await.unwrap();
    assert_eq!(written, 1);
    assert_eq!(served(&conn), (NodeId::PRIMARY, Some(PrimaryReason::NotARead)));
    let back: (i32, i64) =
        diesel::insert_into(t::table).values((t::id.eq(2), t::v.eq(7))).get_result(&mut conn).await.unwrap();
    assert_eq!(back, (2, 7));
    assert_eq!(sum(conn.read(ReadClass::MustSeeMyWrite.wait(LIMIT))).await.unwrap(), Some(7));
    assert_eq!(served(&conn), (NodeId(1), None));
    assert_eq!(sum(&mut conn).await.unwrap(), Some(7));
    assert_eq!(served(&conn), (NodeId::PRIMARY, Some(PrimaryReason::Unannotated)), "the class does not leak");
    sum(conn.on_primary()).await.unwrap();
    assert_eq!(served(&conn), (NodeId::PRIMARY, Some(PrimaryReason::Asked)));
    sum(conn.eventual()).await.unwrap();
    assert_eq!(served(&conn), (NodeId(1), None));
    sum(conn.read(ReadClass::SecondsStale(LIMIT).wait(LIMIT))).await.unwrap();
    assert_eq!(served(&conn), (NodeId(1), None));
    // What the query says goes before what the connection says.
    let all: Vec<(i32, i64)> = t::table.read_class(ReadClass::Eventual).load(conn.on_primary()).await.unwrap();
    assert_eq!(all.len(), 3);
    assert_eq!(served(&conn), (NodeId(1), None));
    let locked: Vec<(i32, i64)> = t::table.for_update().load(conn.eventual()).await.unwrap();
    assert_eq!(locked.len(), 3);
    assert_eq!(served(&conn), (NodeId::PRIMARY, Some(PrimaryReason::NotARead)));
    let counted = t::table.select(t::id).execute(conn.eventual()).await.unwrap();
    assert_eq!((counted, served(&conn)), (3, (NodeId(1), None)), "a count of rows is a read too");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_hold_their_connection_until_the_last() {
    let Stage { cluster: _cluster, db } = stage(1).await;
    let mut conn = db.0.new_session();
    let rows = "INSERT INTO t SELECT n, n FROM generate_series(1, 5000) AS n";
    conn.batch_execute(rows).await.unwrap();
    let token = conn.token().await;
    let mut conn = conn.resume(token);
    let view = conn.read(ReadClass::MustSeeMyWrite.wait(LIMIT));
    let mut stream = t::table.load_stream::<(i32, i64)>(view).await.unwrap();
    assert!(stream.try_next().await.unwrap().is_some());
    let busy = |db: &Async| db.0.stats().nodes[1].in_flight;
    assert_eq!(busy(&db), 1, "the rows are not over");
    let rest: Vec<_> = stream.try_collect().await.unwrap();
    assert_eq!((rest.len(), busy(&db)), (5000, 0));
    let status = conn.router().status().await;
    assert_eq!(status[1].connections, status[1].idle);
    // A write's rows that nobody wants are read to their end.
    let sql = "UPDATE t SET v = v + 1 RETURNING v";
    let mut stream = AsyncConnectionCore::load(&mut conn, diesel::sql_query(sql).into_boxed()).await.unwrap();
    assert!(stream.try_next().await.unwrap().is_some());
    drop(stream);
    // Its commit comes after its rows: up to there it is the primary that shows the older state.
    let seen = sum(conn.read(ReadClass::MustSeeMyWrite.wait(LIMIT))).await.unwrap();
    assert!(seen == Some(5001) || seen == Some(5000) && served(&conn).0.is_primary(), "{seen:?} {:?}", served(&conn));
    until("the session knows the outcome", async || !conn.token().await.is_unknown()).await;
    assert_eq!(sum(conn.read(ReadClass::MustSeeMyWrite.wait(LIMIT))).await.unwrap(), Some(5001));
}

/// They were asked for without end once their connection was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_nobody_wants_end_with_their_connection() {
    let Stage { cluster, db } = stage(1).await;
    let mut conn = db.0.new_session();
    // More than lies between the server and us: it waits for us to take it.
    let sql = "INSERT INTO t SELECT n, n FROM generate_series(1, 2000) AS n RETURNING repeat('x', 20000)";
    let mut stream = AsyncConnectionCore::load(&mut conn, diesel::sql_query(sql)).await.unwrap();
    assert!(stream.try_next().await.unwrap().is_some());
    let end = "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity \
               WHERE query LIKE 'INSERT INTO t%' AND state = 'active' AND pid <> pg_backend_pid()";
    assert_eq!(cluster.primary().sql(end).unwrap()[0][0].as_deref(), Some("1"));
    drop(stream);
    until("the session knows the outcome", async || !conn.token().await.is_unknown()).await;
    let view = conn.read(ReadClass::MustSeeMyWrite.wait(LIMIT).or_error());
    assert_eq!(sum(view).await.unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_passes_for_a_read_is_repeated_and_remembered() {
    let Stage { cluster, db } = stage(1).await;
    let define = "CREATE FUNCTION hidden() RETURNS bigint LANGUAGE sql AS 'INSERT INTO t VALUES (9, 9) RETURNING v'; \
                  CREATE VIEW w AS SELECT hidden() AS v";
    cluster.primary().sql(define).unwrap();
    cluster.wait_caught_up(LIMIT).unwrap();
    let mut conn = db.0.new_session();
    assert_eq!(number(conn.eventual(), "SELECT v FROM w").await.unwrap(), 9);
    assert_eq!(served(&conn), (NodeId::PRIMARY, Some(PrimaryReason::Misrouted)));
    cluster.primary().sql("DELETE FROM t WHERE id = 9").unwrap();
    assert_eq!(number(conn.eventual(), "SELECT v FROM w").await.unwrap(), 9);
    assert_eq!((db.0.stats().misrouted, served(&conn).0), (1, NodeId::PRIMARY), "it is not tried on a replica again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unannotated_reads_may_have_a_class_or_be_an_error() {
    let Stage { cluster, db: _db } = stage(1).await;
    let (primary, replica) = (cluster.primary().url(), cluster.replica(0).url());
    let builder = || AsyncRouter::builder(&primary).replica(&replica);
    let router = builder().unannotated(ReadClass::MustSeeMyWrite.wait(LIMIT)).connect().await.unwrap();
    let mut conn = router.session();
    sum(&mut conn).await.unwrap();
    assert_eq!(served(&conn), (NodeId(1), None));
    let router = builder().unannotated(Unannotated::Error).connect().await.unwrap();
    let error = sum(&mut router.session()).await.unwrap_err();
    assert_eq!(refusal(&error), Some(Refusal::Unannotated));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_dies_is_left_and_returned_to() {
    let Stage { cluster, db } = stage(1).await;
    let mut conn = db.0.new_session();
    sum(conn.eventual()).await.unwrap();
    assert_eq!(served(&conn), (NodeId(1), None));
    cluster.replica(0).crash().unwrap();
    sum(conn.eventual()).await.unwrap();
    assert_eq!(served(&conn).0, NodeId::PRIMARY);
    let error = sum(conn.read(ReadClass::Eventual.or_error())).await.unwrap_err();
    assert!(
        matches!(refusal(&error), Some(Refusal::NoReplica(_))) || matches!(error, Error::DatabaseError(..)),
        "{error}"
    );
    cluster.replica(0).start().unwrap();
    until("the replica serves again", async || {
        sum(db.0.new_session().eventual()).await.unwrap();
        let mut conn = db.0.new_session();
        sum(conn.eventual()).await.unwrap();
        served(&conn).0 == NodeId(1)
    })
    .await;
    // Its server processes are ended while the pool has connections to them.
    cluster.replica(0).kill_backend().unwrap();
    sum(conn.eventual()).await.unwrap();
    let error = diesel::sql_query("SELECT 1 / 0 AS number").execute(conn.eventual()).await.unwrap_err();
    assert!(matches!(error, Error::DatabaseError(..)), "a statement's own error comes through: {error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_not_needed_at_the_start_and_the_primary_is() {
    let Stage { cluster, db: _db } = stage(1).await;
    let (primary, replica) = (cluster.primary().url(), cluster.replica(0).url());
    cluster.replica(0).stop().unwrap();
    let router = AsyncRouter::builder(&primary).replica(&replica).connect().await.unwrap();
    let mut conn = router.session();
    sum(conn.eventual()).await.unwrap();
    assert_eq!(served(&conn).0, NodeId::PRIMARY);
    let refused = AsyncRouter::builder(&replica).connect().await;
    assert!(matches!(refused, Err(diesel_router::Error::Connect { node: NodeId::PRIMARY, .. })), "{refused:?}");
    cluster.replica(0).start().unwrap();
    let swapped = AsyncRouter::builder(&replica).replica(&primary).connect().await;
    assert!(matches!(swapped, Err(diesel_router::Error::Setup(_))), "{swapped:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_url_of_several_hosts_is_a_router() {
    let Stage { cluster, db: _db } = stage(2).await;
    let ports: Vec<_> = [cluster.replica(0), cluster.primary(), cluster.replica(1)].iter().map(|n| n.port()).collect();
    let url = cluster.primary().url();
    let (front, database) = url.rsplit_once('/').unwrap();
    let user = front.split("//").nth(1).and_then(|rest| rest.split('@').next()).unwrap();
    let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let url = format!("postgres://{user}@{}/{database}", hosts.join(","));
    let mut conn = AsyncRoutingConnection::establish(&url).await.unwrap();
    conn.batch_execute("UPDATE t SET v = 3").await.unwrap();
    assert_eq!(sum(conn.read(ReadClass::MustSeeMyWrite.wait(LIMIT))).await.unwrap(), Some(3));
    assert!(!served(&conn).0.is_primary());
    assert_eq!(conn.topology().nodes().len(), 3);
    let conn = AsyncRoutingConnection::establish(&format!("{url}?read_class=must_see_my_write")).await.unwrap();
    until("a read without a class is served by a replica", async || {
        let mut conn = conn.same_session();
        assert_eq!(sum(&mut conn).await.unwrap(), Some(3));
        !served(&conn).0.is_primary()
    })
    .await;
    assert!(AsyncRoutingConnection::establish(&format!("{url}?read_class=nonsense")).await.is_err());
    let mut conn = AsyncRoutingConnection::establish(&cluster.primary().url()).await.unwrap();
    conn.begin_test_transaction().await.unwrap();
    conn.batch_execute("CREATE TEMPORARY TABLE mine (v int)").await.unwrap();
    assert_eq!(number(&mut conn, "SELECT count(*) FROM mine").await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_statement_leaves_with_a_connection_is_found_there_and_by_nobody_else() {
    use futures_util::StreamExt;
    let Stage { cluster, db } = stage(1).await;
    let (mut mine, mut other) = (db.0.new_session(), db.0.new_session());
    mine.batch_execute("CREATE TEMPORARY TABLE mine AS SELECT 1 AS v").await.unwrap();
    diesel::sql_query("SET application_name = 'mine'").execute(&mut mine).await.unwrap();
    mine.batch_execute("LISTEN here").await.unwrap();
    for _ in 0..2 {
        assert_eq!(number(&mut other, "SELECT count(*) FROM t").await.unwrap(), 1);
        assert_eq!(number(&mut mine, "SELECT count(*) FROM mine").await.unwrap(), 1);
        let named = "SELECT (current_setting('application_name') = 'mine')::int";
        assert_eq!(number(&mut mine, named).await.unwrap(), 1);
        assert_eq!(number(&mut other, named).await.unwrap(), 0);
        mine.transaction::<_, Error, _>(async |conn| number(conn, "SELECT count(*) FROM mine").await).await.unwrap();
    }
    cluster.primary().sql("NOTIFY here, 'now'").unwrap();
    let notified = tokio::time::timeout(LIMIT, std::pin::pin!(mine.notifications_stream()).next()).await;
    assert_eq!(notified.expect("in time").unwrap().unwrap().payload, "now");
    drop(mine);
    let left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mine'";
    until("the connection is closed", async || number(&mut db.0.new_session(), left).await.unwrap() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_router_says_so() {
    let Stage { cluster: _cluster, db } = stage(1).await;
    let mut conn = db.0.new_session();
    sum(&mut conn).await.unwrap();
    conn.router().close();
    let late = tokio::time::timeout(Duration::from_secs(5), sum(&mut conn)).await.expect("it does not wait");
    assert!(late.is_err());
}
