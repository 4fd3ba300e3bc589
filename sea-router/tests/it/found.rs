//! What was found to break once, and must not again.

use std::time::Duration;

use futures_util::TryStreamExt;
use read_router::{Config, NodeId, PrimaryReason, ReadClass, Token, Unfit};
use read_router_scenarios::{LIMIT, Stage, fault, until};
use read_router_testkit::Relay;
use sea_orm::{ConnectionTrait, Database, DbBackend, DbErr, Statement, StreamTrait, TransactionTrait};
use sea_router::{Error, Misrouted, PoolTracker, Replica, RoutingConnection, refusal};
use sqlx::{Executor, postgres::PgPoolOptions};

use crate::{Sea, options};

const SCHEMA: &str = "CREATE TABLE t (id int PRIMARY KEY, v bigint); INSERT INTO t VALUES (0, 0); \
    CREATE SEQUENCE s; CREATE VIEW takes AS SELECT nextval('s') AS v; CREATE VIEW takes_too AS SELECT nextval('s') AS v; \
    CREATE FUNCTION which() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'; \
    CREATE SCHEMA app; CREATE FUNCTION app.which() RETURNS bigint LANGUAGE sql AS 'SELECT 7::bigint'";
const COUNT: &str = "SELECT count(*) FROM t";
const STRICT: ReadClass = ReadClass::MustSeeMyWrite;

async fn stage(replicas: usize) -> Stage<Sea> {
    Stage::set(replicas, SCHEMA, Config::default(), &[]).await
}

fn sql(text: &str) -> Statement {
    Statement::from_string(DbBackend::Postgres, text)
}

async fn number(db: &impl ConnectionTrait, text: &str) -> Result<i64, DbErr> {
    let row = db.query_one_raw(sql(text)).await?;
    row.ok_or(DbErr::RecordNotFound(text.to_owned()))?.try_get_by_index(0)
}

/// A view that takes a number passes for a read: refused by a replica, it was repeated on the writable primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_does_not_write_through_a_view() {
    let stage = stage(1).await;
    let alone = RoutingConnection::builder(options(&stage.cluster.primary().url())).connect().await.expect("up");
    for reader in [stage.db.0.reader(ReadClass::Eventual), stage.db.0.reader(STRICT), alone.reader(STRICT)] {
        for round in 0..3 {
            let hidden = number(&reader, "SELECT v FROM takes").await.expect_err("it writes").to_string();
            assert!(hidden.contains("read-only transaction"), "{round}: {hidden}");
            let rows = match reader.stream_raw(sql("SELECT v FROM takes_too")).await {
                Ok(rows) => rows.try_collect::<Vec<_>>().await.map(|rows| rows.len()),
                Err(error) => Err(error),
            };
            assert!(rows.is_err(), "{round}: {rows:?}");
        }
    }
    let taken = stage.cluster.primary().sql("SELECT is_called FROM s").expect("asked");
    assert_eq!(taken[0][0].as_deref(), Some("f"), "a number was taken");
}

/// One pool in both roles would be made read-only under the writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_pool_is_not_both() {
    let stage = stage(0).await;
    let pool = Database::connect(options(&stage.cluster.primary().url())).await.expect("up");
    let error = RoutingConnection::builder(pool.clone()).replica(pool).connect().await.expect_err("refused");
    assert!(error.to_string().contains("the same pool as the primary"), "{error}");
}

/// The transaction was left open on the pool's connection, and the next write ran inside of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_begin_on_an_existing_pool_leaves_nothing_open() {
    let stage = stage(0).await;
    let relay = Relay::to(stage.cluster.primary()).expect("a free port");
    let pool = PgPoolOptions::new().max_connections(1).connect(&relay.url()).await.expect("up");
    let db = RoutingConnection::builder(pool).connect().await.expect("up");
    db.ping().await.expect("up");
    let hold = relay.hold_answer("BEGIN");
    assert!(tokio::time::timeout(Duration::from_millis(300), db.begin()).await.is_err(), "the answer is held");
    until("the answer is held", || async { hold.has_arrived() }).await;
    hold.release();
    db.execute_unprepared("INSERT INTO t VALUES (5, 5)").await.expect("written");
    assert_eq!(stage.cluster.primary().sql(COUNT).expect("asked")[0][0].as_deref(), Some("2"), "committed");
}

/// What a read needed was taken for what only the lagging replica could show.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn monotonic_fallback_does_not_wait_for_a_paused_replica() {
    let stage = stage(1).await;
    let builder = RoutingConnection::builder(options(&stage.cluster.primary().url())).monotonic_fallback(true);
    let db = builder.replica(options(&stage.cluster.replica(0).url())).connect().await.expect("up");
    fault(&stage.cluster, |c| c.replica(0).pause_replay()).await;
    stage.cluster.primary().sql("INSERT INTO t VALUES (50, 0)").expect("written");
    let session = db.new_session();
    assert_eq!(number(&session.eventual(), COUNT).await.expect("read"), 1);
    session.execute_unprepared("INSERT INTO t VALUES (1, 1)").await.expect("written");
    for _ in 0..3 {
        // Long enough for a busy machine, and spent: the replica may yet come.
        let read = number(&session.read(STRICT.wait(Duration::from_secs(2))), COUNT).await;
        assert_eq!(read.expect("the primary shows all that the replica did"), 3);
    }
}

/// A plan that a migration made stale, and a view that was not filled yet, are no writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_passing_error_is_not_remembered() {
    let stage = stage(1).await;
    let db = stage.db.0.new_session();
    let on_replica = |db: &RoutingConnection| db.last_served().map(|served| (served.node, served.reason));
    let star = "SELECT * FROM t WHERE id = 0";
    for _ in 0..3 {
        db.eventual().query_one_raw(sql(star)).await.expect("read");
    }
    db.execute_unprepared("ALTER TABLE t ADD COLUMN w int").await.expect("altered");
    stage.cluster.wait_caught_up(LIMIT).expect("caught up");
    for _ in 0..3 {
        db.eventual().query_one_raw(sql(star)).await.expect("read");
        assert_eq!(on_replica(&db), Some((NodeId::replica(0), None)));
    }
    db.execute_unprepared("CREATE MATERIALIZED VIEW mv AS SELECT 1::bigint AS x WITH NO DATA").await.expect("made");
    stage.cluster.wait_caught_up(LIMIT).expect("caught up");
    assert!(number(&db.eventual(), "SELECT x FROM mv").await.is_err());
    db.execute_unprepared("REFRESH MATERIALIZED VIEW mv").await.expect("filled");
    stage.cluster.wait_caught_up(LIMIT).expect("caught up");
    assert_eq!(number(&db.eventual(), "SELECT x FROM mv").await.expect("read"), 1);
    assert_eq!(on_replica(&db), Some((NodeId::replica(0), None)));
}

/// What is to fail went to the primary the second time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_misrouted_statement_that_is_to_fail_fails_each_time() {
    let stage = stage(1).await;
    let builder = RoutingConnection::builder(options(&stage.cluster.primary().url())).on_misrouted(Misrouted::Fail);
    let failing = builder.replica(options(&stage.cluster.replica(0).url())).connect().await.expect("up");
    // Made by someone else, after the catalogue was read.
    stage.cluster.primary().sql("CREATE VIEW late AS SELECT * FROM takes").expect("valid");
    stage.cluster.wait_caught_up(LIMIT).expect("caught up");
    for view in [failing.eventual(), stage.db.0.read(ReadClass::Eventual.or_error())] {
        for round in 0..3 {
            let error = number(&view, "SELECT v FROM late").await.expect_err("it writes");
            assert_eq!(refusal(&error), Some(PrimaryReason::Misrouted), "{round}: {error}");
            // Where it was sent, what the server said, what to do.
            let error = error.to_string();
            for part in ["sent to replica0", "read-only transaction", "on_primary()"] {
                assert!(error.contains(part), "{round}: {error}");
            }
        }
    }
}

/// What the user's callbacks run on a connection, such as `RESET ALL`, made it writable again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_by_a_callback_lifts_no_read_only_mode() {
    let stage = stage(0).await;
    let primary = stage.cluster.primary().url();
    let builder = || RoutingConnection::builder(options(&primary));
    let taken = async || stage.cluster.primary().sql("SELECT is_called FROM s").expect("asked")[0][0].clone();
    let when_taken = builder()
        .before_acquire(|connection, _| Box::pin(async move { connection.execute("RESET ALL").await.map(|_| true) }));
    let when_given_back = builder().map_pool_options(|pool| {
        pool.after_release(|connection, _| Box::pin(async move { connection.execute("RESET ALL").await.map(|_| true) }))
    });
    for builder in [when_taken, when_given_back] {
        // The replica is the primary under another name, where a write would not fail by itself.
        let db = builder.replica(options(&primary)).on_misrouted(Misrouted::Fail).connect().await.expect("up");
        until("both serve", || async { db.stats().nodes.iter().all(|node| node.standing.serves()) }).await;
        let reader = db.reader(STRICT);
        for round in 0..3 {
            // The first by the replica's pool, the second, no provable read, by the primary's read-only one.
            for (what, text) in [("view", "SELECT v FROM takes"), ("function", "SELECT which() + nextval('s')")] {
                let error = number(&reader, text).await.expect_err("it writes").to_string();
                assert!(error.contains("read-only"), "{what}, {round}: {error}");
            }
            assert_eq!(taken().await.as_deref(), Some("f"), "{round}: a number was taken");
        }
        db.execute_unprepared("INSERT INTO t VALUES (9, 9); DELETE FROM t WHERE id = 9").await.expect("writable");
    }
}

/// A query through a reader that is no provable read was served by any primary, whatever its session had seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strict_query_through_a_reader_is_gated_on_the_primary() {
    let stage = stage(1).await;
    let writer = stage.db.0.new_session();
    writer.execute_unprepared("INSERT INTO t VALUES (1, 1)").await.expect("written");
    let system = writer.token().await.positions().next().expect("written").branch.system.0;
    // Of a primary that was promoted after this one.
    let newer: Token = format!("rr1:{system}:9@0/1").parse().expect("well formed");
    let strict = STRICT.wait(Duration::from_millis(20)).or_error();
    let reader = stage.db.0.resume(newer.clone()).reader(strict);
    let error = number(&reader, "SELECT which()").await.expect_err("this primary is older").to_string();
    assert!(error.contains("timeline"), "{error}");
    let streamed = match reader.stream_raw(sql("SELECT which()")).await {
        Ok(rows) => rows.try_collect::<Vec<_>>().await.map(drop),
        Err(error) => Err(error),
    };
    streamed.expect_err("this primary is older");
    let weak = stage.db.0.resume(newer).reader(ReadClass::Eventual);
    assert_eq!(number(&weak, "SELECT which()").await.expect("any state will do"), 1);
}

/// A replica that was known to lag far cost each strict read its whole budget.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_replica_is_not_waited_for_again_and_again() {
    let stage = stage(1).await;
    let builder = RoutingConnection::builder(options(&stage.cluster.primary().url()));
    let builder = builder.replica(options(&stage.cluster.replica(0).url())).strict_wait(Duration::from_millis(50));
    let session = builder.connect().await.expect("up").new_session();
    fault(&stage.cluster, |c| c.replica(0).pause_replay()).await;
    session.execute_unprepared("INSERT INTO t VALUES (1, 1)").await.expect("written");
    session.token().await;
    until("it lags far", || async { session.explain(STRICT).nodes[0].unfit == Some(Unfit::FarBehind) }).await;
    assert_eq!(number(&session.must_see_my_write(), COUNT).await.expect("read"), 2);
    let served = session.last_served().expect("served");
    assert_eq!((served.reason, served.waited), (Some(PrimaryReason::Behind), Duration::ZERO));
    fault(&stage.cluster, |c| c.replica(0).resume_replay()).await;
    until("it serves again", || async {
        assert_eq!(number(&session.must_see_my_write(), COUNT).await.expect("read"), 2);
        session.last_served().is_some_and(|served| served.reason.is_none())
    })
    .await;
}

/// Errors that left it to the reader to find out what was wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_say_what_was_wrong() {
    let stage = stage(1).await;
    let (primary, replica) = (stage.cluster.primary().url(), stage.cluster.replica(0).url());
    let builder = || RoutingConnection::builder(options(&primary));
    let grouped = |replica: Replica| builder().replica(replica).connect();
    let typo = ReadClass::Eventual.in_group("reprots").or_error();
    let db = grouped(Replica::new(options(&replica)).group("reports")).await.expect("up");
    let error = number(&db.read(typo), COUNT).await.expect_err("no such group");
    assert_eq!(refusal(&error), Some(PrimaryReason::NoReplica));
    let error = error.to_string();
    assert!(error.contains(r#"no replica is in a group "reprots" (there are "reports")"#), "{error}");
    let db = grouped(Replica::new(options(&replica))).await.expect("up");
    let error = number(&db.read(typo), COUNT).await.expect_err("no such group").to_string();
    assert!(error.contains(r#""reprots" (no replica is in any)"#), "{error}");

    let nobody = options(&replica.replacen("postgres@", "nobody@", 1));
    let Err(Error::Connect { node, source }) = builder().replica(nobody).connect().await else {
        panic!("a user that does not exist was let in")
    };
    assert_eq!(node, NodeId::replica(0));
    let DbErr::Conn(sea_orm::RuntimeErr::SqlxError(driver)) = source else { panic!("{source:?}") };
    assert!(driver.as_database_error().and_then(|error| error.code()).is_some_and(|code| code.starts_with("28")));

    for (tracker, as_replica) in [(PoolTracker::for_primary(), true), (PoolTracker::for_replica(), false)] {
        let pool = tracker.track(PgPoolOptions::new()).connect_lazy(&primary).expect("a URL");
        let source = tracker.source(pool);
        let builder = if as_replica { builder().replica(source) } else { RoutingConnection::builder(source) };
        let error = builder.connect().await.expect_err("the tracker is for the other role");
        assert!(matches!(error, Error::WrongTracker { .. }), "{error}");
    }
}

/// Statements on the primary's pool may have been writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_window_opens_after_settle() {
    let stage = stage(1).await;
    let builder = RoutingConnection::builder(options(&stage.cluster.primary().url())).primary_window(LIMIT);
    let db = builder.replica(options(&stage.cluster.replica(0).url())).connect().await.expect("up");
    let session = db.new_session();
    fault(&stage.cluster, |c| c.replica(0).pause_replay()).await;
    let insert = sqlx::query("INSERT INTO t VALUES (1, 1)");
    insert.execute(session.get_postgres_connection_pool()).await.expect("written");
    session.settle().await.expect("settled");
    assert_eq!(number(&session.eventual(), COUNT).await.expect("read"), 2);
    assert_eq!(session.last_served().and_then(|s| s.reason), Some(PrimaryReason::RecentWrite));
}

/// Read-only handles read the primary in another schema than the pool that was handed over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only_handles_have_the_search_path_of_an_existing_pool() {
    let stage = stage(0).await;
    let mut in_app = options(&stage.cluster.primary().url());
    in_app.set_schema_search_path("app");
    let db = RoutingConnection::builder(Database::connect(in_app).await.expect("up")).connect().await.expect("up");
    assert_eq!(number(&db, "SELECT which()").await.expect("read"), 7);
    assert_eq!(number(&db.reader(STRICT), "SELECT which()").await.expect("read"), 7);
    let checkout = db.checkout(ReadClass::Eventual).await.expect("checked out");
    assert_eq!(number(&*checkout, "SELECT which()").await.expect("read"), 7);
}
