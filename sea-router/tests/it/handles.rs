//! Readers, checkouts, what replicas are for, and pools that the application brings.

use std::time::Duration;

use read_router::{Config, NodeId, PrimaryReason, ReadClass, Route, Standing};
use read_router_scenarios::{LIMIT, Stage, Subject, fault, until};
use sea_orm::{
    AccessMode, ConnectionTrait, Database, DatabaseConnection, DbBackend, DbErr, IsolationLevel, Statement,
    StreamTrait, TransactionTrait,
};
use sea_router::{Access, ClassName, PoolTracker, Replica, RoutingConnection, Unannotated, Unfit, refusal};
use sqlx::postgres::PgPoolOptions;

use crate::{Sea, options};

const SCHEMA: &str = "CREATE TABLE t (id int PRIMARY KEY, v bigint); INSERT INTO t VALUES (0, 0); \
    CREATE FUNCTION hidden_write() RETURNS bigint LANGUAGE sql AS 'INSERT INTO t VALUES (99, 0) RETURNING v'; \
    CREATE FUNCTION answer() RETURNS bigint LANGUAGE sql AS 'SELECT 42::bigint'; \
    CREATE SEQUENCE s; CREATE VIEW takes_a_number AS SELECT nextval('s') AS v";
const COUNT: &str = "SELECT count(*) FROM t";
const STRICT: ReadClass = ReadClass::MustSeeMyWrite;

async fn stage(replicas: usize) -> Stage<Sea> {
    Stage::set(replicas, SCHEMA, Config::default(), &[]).await
}

/// No replica is given up for being slow on a busy machine.
fn patient() -> Config {
    Config { probe_timeout: LIMIT, replica_acquire_timeout: LIMIT, ..Config::default() }
}

fn sql(text: &str) -> Statement {
    Statement::from_string(DbBackend::Postgres, text)
}

async fn number(db: &impl ConnectionTrait, text: &str) -> Result<i64, DbErr> {
    let row = db.query_one_raw(sql(text)).await?;
    row.ok_or(DbErr::RecordNotFound(text.to_owned()))?.try_get_by_index(0)
}

/// Rows of `t`, and whatever a server's log says was sent with `needle` in it.
async fn sent(stage: &Stage<Sea>, needle: &str) -> usize {
    let nodes = std::iter::once(stage.cluster.primary()).chain(stage.cluster.replicas());
    nodes.map(|node| node.log().expect("a log").matches(needle).count()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_through_a_reader_reaches_no_server() {
    let stage = Stage::<Sea>::set(1, SCHEMA, Config::default(), &[("log_statement", "all")]).await;
    let writes = [
        "INSERT INTO t VALUES (7, 7) RETURNING v",
        "UPDATE t SET v = 7777",
        "WITH gone AS (DELETE FROM t WHERE v = 7777 RETURNING v) SELECT v FROM gone",
        "WITH a AS (SELECT answer()), gone AS (DELETE FROM t WHERE v = 7777 RETURNING v) SELECT v FROM gone",
        "SELECT v FROM t WHERE v = 7777 FOR UPDATE",
        "SELECT 1; DELETE FROM t WHERE v = 7777",
        "SET application_name = 'x7777'",
        "BEGIN; SELECT 7777",
        "CREATE TABLE x7777 ()",
        "CALL x7777()",
        "DO 'BEGIN PERFORM 7777; END'",
        "COPY t TO '/x7777'",
    ];
    for class in [STRICT, ReadClass::SecondsStale(Duration::from_secs(5)), ReadClass::Eventual] {
        let reader = stage.db.0.new_session().reader(class);
        let transaction = reader.begin().await.expect("begun");
        for write in writes {
            for refused in [
                reader.execute_unprepared(write).await.err(),
                reader.execute_raw(sql(write)).await.err(),
                reader.query_one_raw(sql(write)).await.err(),
                reader.query_all_raw(sql(write)).await.err(),
                reader.stream_raw(sql(write)).await.err(),
                transaction.execute_unprepared(write).await.err(),
                transaction.execute_raw(sql(write)).await.err(),
                transaction.query_one_raw(sql(write)).await.err(),
                transaction.query_all_raw(sql(write)).await.err(),
                transaction.stream_raw(sql(write)).await.err(),
            ] {
                let error = refused.unwrap_or_else(|| panic!("not refused: {write}")).to_string();
                assert!(error.contains("read-only"), "{write}: {error}");
            }
        }
        // Nothing is wrong with the transaction after all that.
        let inner = transaction.begin().await.expect("a savepoint");
        assert!(inner.execute_unprepared(writes[1]).await.is_err());
        assert_eq!(number(&inner, COUNT).await.expect("read"), 1);
        inner.commit().await.expect("released");
        transaction.commit().await.expect("committed");
        assert!(reader.begin_with_config(None, Some(AccessMode::ReadWrite)).await.is_err());
        // What may be a read runs on the primary and cannot write there.
        assert_eq!(number(&reader, "SELECT answer()").await.expect("read"), 42);
        let hidden = number(&reader, "SELECT hidden_write()").await.expect_err("it writes").to_string();
        assert!(hidden.contains("read-only transaction"), "{hidden}");
        assert_eq!(number(&reader, COUNT).await.expect("read"), 1);
    }
    assert_eq!(sent(&stage, "7777").await, 0);
    assert_eq!(stage.cluster.primary().sql(COUNT).expect("asked")[0][0].as_deref(), Some("1"));
}

/// A reader's transaction stays on one server while that is paused, promoted or killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_readers_transaction_stays_where_it_began() {
    let stage = stage(1).await;
    let reader = stage.db.0.new_session().reader(STRICT.wait(LIMIT)).isolation_level(IsolationLevel::RepeatableRead);
    let place = "SELECT inet_server_port()::bigint";
    let replica = i64::from(stage.cluster.replica(0).port());
    let begin = || async {
        let transaction = reader.begin().await.expect("begun");
        assert_eq!(number(&transaction, place).await.expect("read"), replica, "{:?}", stage.db.stats());
        transaction
    };

    let paused = begin().await;
    fault(&stage.cluster, |c| c.replica(0).pause_replay()).await;
    stage.db.execute("INSERT INTO t VALUES (1, 1)").await.expect("written");
    assert_eq!(number(&paused, COUNT).await.expect("read"), 1, "its snapshot");
    paused.commit().await.expect("committed");
    fault(&stage.cluster, |c| c.replica(0).resume_replay()).await;
    stage.cluster.wait_caught_up(LIMIT).expect("caught up");

    // Promoted: it goes on, read-only, and its pool writes nothing there.
    let promoted = begin().await;
    fault(&stage.cluster, |c| c.replica(0).promote()).await;
    assert_eq!(number(&promoted, COUNT).await.expect("read"), 2);
    assert_eq!(number(&promoted, place).await.expect("read"), replica);
    // Past the wrapper the server itself refuses.
    let refused = std::ops::Deref::deref(&promoted).execute_unprepared("INSERT INTO t VALUES (5, 5)").await;
    let refused = refused.expect_err("READ ONLY").to_string();
    assert!(refused.contains("read-only transaction"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_readers_transaction_on_a_killed_replica_fails_and_the_next_is_elsewhere() {
    let stage = stage(1).await;
    let reader = stage.db.0.new_session().reader(STRICT.wait(LIMIT));
    let transaction = reader.begin().await.expect("begun");
    assert_eq!(number(&transaction, COUNT).await.expect("read"), 1);
    fault(&stage.cluster, |c| c.replica(0).crash()).await;
    assert!(number(&transaction, COUNT).await.is_err());
    drop(transaction);
    let next = reader.connection().reader(STRICT).begin().await.expect("the primary is up");
    assert_eq!(
        number(&next, "SELECT inet_server_port()::bigint").await.expect("read"),
        i64::from(stage.cluster.primary().port())
    );
    let error = next.execute_unprepared("INSERT INTO t VALUES (5, 5)").await.expect_err("READ ONLY there too");
    assert!(error.to_string().contains("read-only"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkout_is_one_proven_server() {
    async fn bound_to_the_type(db: &DatabaseConnection) -> i64 {
        number(db, COUNT).await.expect("read")
    }
    let stage = stage(1).await;
    let session = stage.db.0.new_session();
    session.execute_unprepared("INSERT INTO t VALUES (1, 1)").await.expect("written");
    let replica = session.checkout(STRICT.wait(LIMIT)).await.expect("checked out");
    assert_eq!((replica.node(), bound_to_the_type(&replica).await), (NodeId::replica(0), 2));
    let refused = replica.execute_unprepared("DELETE FROM t").await.expect_err("a replica");
    assert!(refused.to_string().contains("read-only"), "{refused}");
    drop(replica);

    fault(&stage.cluster, |c| c.replica(0).pause_replay()).await;
    session.execute_unprepared("INSERT INTO t VALUES (2, 2)").await.expect("written");
    let primary = session.checkout(STRICT).await.expect("checked out");
    assert_eq!((primary.node(), bound_to_the_type(&primary).await), (NodeId::PRIMARY, 3));
    let refused = primary.execute_unprepared("DELETE FROM t").await.expect_err("read-only on the primary too");
    assert!(refused.to_string().contains("read-only"), "{refused}");
    assert_eq!(session.explain(STRICT).route, Route::Primary(PrimaryReason::GivenOut));
    drop(primary);
    assert!(session.checkout(STRICT.or_error()).await.is_err());
    fault(&stage.cluster, |c| c.replica(0).resume_replay()).await;
    let again = session.checkout(STRICT.wait(LIMIT).or_error()).await.expect("the replica has it");
    assert_eq!(bound_to_the_type(&again).await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_serve_what_they_are_for() {
    let stage = stage(2).await;
    let (busy, reports) = (stage.cluster.replica(0).url(), stage.cluster.replica(1).url());
    let db = RoutingConnection::builder(options(&stage.cluster.primary().url()))
        .replica(Replica::new(options(&busy)).weight(3))
        .replica(Replica::new(options(&reports)).only([ClassName::Eventual]).group("reports"))
        .unannotated(STRICT)
        .config(patient())
        .connect()
        .await
        .expect("up");
    until("both are up", || async { db.stats().nodes.iter().all(|node| node.standing.serves()) }).await;
    let session = db.new_session();
    for _ in 0..10 {
        number(&session.eventual(), COUNT).await.expect("read");
        assert_eq!(session.last_served().expect("served").node, NodeId::replica(1));
        number(&session.seconds_stale(LIMIT), COUNT).await.expect("read");
        assert_eq!(session.last_served().expect("served").node, NodeId::replica(0));
    }
    // Not annotated: strict, as the builder says, and counted by its shape.
    until("the strict read leaves the primary", || async {
        number(&session, "SELECT count(*) FROM t WHERE id < 5").await.expect("read");
        session.last_served().is_some_and(|served| served.node == NodeId::replica(0))
    })
    .await;
    let counted = db.stats().unannotated;
    assert_eq!(counted[0].statement, "SELECT count (*) FROM t WHERE id < ?");
    let none = number(&session.read(STRICT.in_group("reports")), COUNT).await;
    none.expect("the primary serves it");
    assert_eq!(session.last_served().and_then(|s| s.reason), Some(PrimaryReason::NoReplica));

    let strict = RoutingConnection::builder(options(&stage.cluster.primary().url())).unannotated(Unannotated::Error);
    let strict = strict.replica(options(&busy)).connect().await.expect("up");
    let error = number(&strict, COUNT).await.expect_err("no class");
    assert!(error.to_string().contains("no class"), "{error}");
    assert_eq!(number(&strict.on_primary(), COUNT).await.expect("read"), 1);
    strict.execute_unprepared("INSERT INTO t VALUES (1, 1)").await.expect("a write needs no class");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_after_a_write_needs_no_token() {
    let stage = stage(1).await;
    let db = RoutingConnection::builder(options(&stage.cluster.primary().url()))
        .replica(options(&stage.cluster.replica(0).url()))
        .primary_window(LIMIT)
        .connect()
        .await
        .expect("up");
    let session = db.new_session();
    number(&session.eventual(), COUNT).await.expect("read");
    assert_eq!((session.last_served().and_then(|s| s.reason), session.last_write()), (None, None));
    fault(&stage.cluster, |c| c.replica(0).pause_replay()).await;
    session.execute_unprepared("INSERT INTO t VALUES (1, 1)").await.expect("written");
    assert_eq!(number(&session.eventual(), COUNT).await.expect("read"), 2);
    assert_eq!(session.last_served().and_then(|s| s.reason), Some(PrimaryReason::RecentWrite));
    let ago = session.last_write().expect("written");
    let elsewhere = db.new_session_after_write(ago);
    assert_eq!(number(&elsewhere.eventual(), COUNT).await.expect("read"), 2);
    let long_ago = db.new_session_after_write(LIMIT);
    assert_eq!(number(&long_ago.eventual(), COUNT).await.expect("read"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_explanation_names_each_replica() {
    let stage = stage(2).await;
    let session = stage.db.0.new_session();
    fault(&stage.cluster, |c| c.replica(0).pause_replay()).await;
    fault(&stage.cluster, |c| c.replica(1).crash()).await;
    until("the crash is seen", || async { !stage.db.stats().nodes[2].standing.serves() }).await;
    session.execute_unprepared("INSERT INTO t VALUES (1, 1)").await.expect("written");
    session.token().await;
    let explained = session.explain(STRICT.wait(Duration::ZERO));
    assert_eq!(explained.route, Route::Primary(PrimaryReason::Behind), "{explained}");
    assert_eq!((explained.nodes[0].standing, explained.nodes[0].unfit), (Standing::Replica, Some(Unfit::Behind)));
    assert_eq!(explained.nodes[1].unfit, Some(Unfit::Down));
    let text = explained.to_string();
    assert!(text.starts_with("primary: behind (") && text.contains("\n  replica1: does not serve: "), "{text}");
    assert!(
        matches!(session.explain(ReadClass::Eventual).route, Route::Replica(node, _) if node == NodeId::replica(0))
    );
}

/// What a replica refuses once is not put to it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_statement_is_remembered() {
    let stage = stage(1).await;
    let eventual = stage.db.0.eventual();
    // Made by someone else, after the catalogue was read.
    stage.cluster.primary().sql("CREATE VIEW late AS SELECT * FROM takes_a_number").expect("valid");
    stage.cluster.wait_caught_up(LIMIT).expect("caught up");
    for round in 1..=5 {
        assert_eq!(number(&eventual, "SELECT v FROM late").await.expect("repeated on the primary"), round);
    }
    let stats = stage.db.stats();
    assert_eq!((stats.misrouted, stats.primary_for(PrimaryReason::Misrouted)), (1, 5), "{stats:?}");
    assert_eq!(stats.misrouted_statements[0].statement, "SELECT v FROM late");
    assert_eq!(stats.misrouted_statements[0].names, ["table late"]);
    // What the catalogue knows is not put to a replica at all.
    number(&eventual, "SELECT v FROM takes_a_number").await.expect("run on the primary");
    assert_eq!(stage.db.stats().misrouted, 1);
}

/// Pools that the application has built already, with and without our hooks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn existing_pools_keep_every_promise() {
    let stage = stage(1).await;
    let (primary_url, replica_url) = (stage.cluster.primary().url(), stage.cluster.replica(0).url());
    let (primary, replica) = (PoolTracker::for_primary(), PoolTracker::for_replica());
    let writes = primary.track(PgPoolOptions::new().max_connections(4)).connect(&primary_url).await.expect("up");
    let reads = replica.track(PgPoolOptions::new().max_connections(4)).connect(&replica_url).await.expect("up");
    let tracked = RoutingConnection::builder(primary.source(writes)).replica(replica.source(reads));
    let plain_primary = Database::connect(options(&primary_url)).await.expect("up");
    let plain_replica = PgPoolOptions::new().connect_lazy(&replica_url).expect("a URL");
    let plain = RoutingConnection::builder(plain_primary).replica(plain_replica);
    for (name, builder, is_tracked) in [("tracked", tracked, true), ("plain", plain, false)] {
        let db = builder.table("takes_a_number", Access::Read).connect().await.expect("up");
        let mut rows = number(&db.on_primary(), COUNT).await.expect("read");
        for round in 0..20 {
            let session = db.new_session();
            let first = i64::from(is_tracked) * 1000 + round * 2 + 100;
            session.execute_unprepared(&format!("INSERT INTO t VALUES ({first}, 0)")).await.expect("written");
            let transaction = session.begin().await.expect("begun");
            transaction.execute_unprepared(&format!("INSERT INTO t VALUES ({}, 0)", first + 1)).await.expect("written");
            transaction.commit().await.expect("committed");
            rows += 2;
            let seen = number(&session.read(STRICT.wait(LIMIT).or_error()), COUNT).await.expect("the replica has it");
            assert_eq!(seen, rows, "{name}");
            assert!(!session.token().await.is_unknown(), "{name}");
        }
        let session = db.new_session();
        let begun =
            session.must_see_my_write().begin_with_config(None, Some(AccessMode::ReadOnly)).await.expect("begun");
        assert_eq!(number(&begun, COUNT).await.expect("read"), rows);
        let reason = session.last_served().and_then(|s| s.reason);
        assert_eq!(reason, (!is_tracked).then_some(PrimaryReason::Untracked), "{name}");
        drop(begun);
        if !is_tracked {
            let options = STRICT.or_error();
            let refused = session.read(options).begin_with_config(None, Some(AccessMode::ReadOnly)).await;
            assert_eq!(refusal(&refused.expect_err("not proven")), Some(PrimaryReason::Untracked));
        }
        // The replica's pool is read-only, whoever built it, and whatever is said of the view.
        let refused = number(&db.eventual(), "SELECT v FROM takes_a_number").await;
        refused.expect("repeated on the primary");
        assert_eq!(db.stats().misrouted, 1, "{name}");
        let own = db.stats().own_samples;
        assert_eq!(own > 40, !is_tracked, "{name}: {own}");
        db.close().await.expect("closed");
    }
    let sqlite = RoutingConnection::builder(DatabaseConnection::default()).connect().await;
    assert!(sqlite.expect_err("not PostgreSQL").to_string().contains("not a connection to PostgreSQL"));
}
