//! Promotions, moved names, strays, and servers that hang or break in mid-call.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use read_router::{Config, NodeId, PrimaryReason, ReadClass, Token};
use read_router_scenarios::{LIMIT, Setup, Stage, Subject, fault, until};
use read_router_testkit::Relay;
use sea_orm::{AccessMode, ConnectionTrait, DbBackend, DbErr, Statement, StreamTrait, TransactionTrait};
use sea_router::{PoolTracker, RoutingConnection, Source, Standing};
use sqlx::postgres::PgPoolOptions;

use crate::{Sea, options};

const SCHEMA: &str = "CREATE TABLE t (id bigint PRIMARY KEY, v bigint); INSERT INTO t VALUES (0, 0)";
const COUNT: &str = "SELECT count(*) FROM t";
const STRICT: ReadClass = ReadClass::MustSeeMyWrite;

/// The name of the primary moves to a promoted standby while the old primary goes on answering: writes and strict reads
/// follow it, and no session is left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moved_name_is_followed_though_the_old_primary_still_answers() {
    let Stage { cluster, db } = Stage::<Sea>::set(2, SCHEMA, Config::default(), &[]).await;
    drop(db);
    let name = Relay::to(cluster.primary()).expect("a free port");
    let db = Sea::connect(&name.url(), &[cluster.replica(1).url()], Setup::default()).await.expect("up");
    // A pool of several connections, all to the old primary.
    let warm: Vec<_> = (1..=4)
        .map(|id| {
            let session = db.new_session();
            tokio::spawn(async move { session.execute(&format!("INSERT INTO t VALUES ({id}, 0)")).await })
        })
        .collect();
    for write in warm {
        write.await.expect("no panic").expect("written");
    }
    let before = db.new_session();
    before.execute("INSERT INTO t VALUES (5, 0)").await.expect("written");
    let token = before.token().await;
    cluster.wait_caught_up(LIMIT).expect("caught up");

    fault(&cluster, |c| c.replica(0).promote()).await;
    fault(&cluster, |c| c.follow(1, c.replica(0))).await;
    name.point_to(cluster.replica(0));

    let mut id = 100;
    until("writes land on the new primary and are read from its follower", || {
        id += 1;
        let (session, cluster) = (db.new_session(), cluster.clone());
        async move {
            session.execute(&format!("INSERT INTO t VALUES ({id}, 0)")).await.expect("a primary answers");
            let there = cluster.replica(0).sql(&format!("SELECT 1 FROM t WHERE id = {id}")).expect("asked").len() == 1;
            let read = session.number(Some(STRICT.into()), &format!("{COUNT} WHERE id = {id}")).await;
            let on_follower = session.last_served().is_some_and(|s| s.node == NodeId::replica(0));
            there && matches!(read, Ok(Some(1))) && on_follower
        }
    })
    .await;
    let settled = id;
    for id in settled + 1..settled + 50 {
        let session = db.new_session();
        session.execute(&format!("INSERT INTO t VALUES ({id}, 0)")).await.expect("written");
        let seen = session.number(Some(STRICT.into()), &format!("{COUNT} WHERE id = {id}")).await;
        assert_eq!(seen.expect("read"), Some(1));
        assert_eq!(cluster.primary().sql(&format!("SELECT 1 FROM t WHERE id = {id}")).expect("asked").len(), 0);
    }
    // Sessions and tokens from before go on: what they had seen had been replayed when the standby was promoted.
    for session in [before, db.resume(token)] {
        assert_eq!(session.number(Some(STRICT.into()), &format!("{COUNT} WHERE id = 5")).await.expect("read"), Some(1));
        assert!(!session.token().await.is_unknown(), "{:?}", session.last_served());
    }
}

/// The pools that an application may have already, for a primary of this URL.
async fn existing_pools(url: &str) -> [(&'static str, Source); 3] {
    let options = || PgPoolOptions::new().max_connections(4).min_connections(4);
    let untracked = options().connect(url).await.expect("up");
    let tracker = PoolTracker::for_primary();
    let tracked = tracker.track(options()).connect(url).await.expect("up");
    let tracker_of_another = PoolTracker::for_primary();
    let of_another = tracker_of_another.track(options()).connect(url).await.expect("up");
    let another = RoutingConnection::builder(tracker_of_another.source(of_another.clone())).connect().await;
    drop(another.expect("up"));
    [("untracked", untracked.into()), ("tracked", tracker.source(tracked)), ("of another", of_another.into())]
}

/// Connections of a pool that was handed over went on writing on the old primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_existing_pool_follows_a_moved_name() {
    let Stage { cluster, db } = Stage::<Sea>::set(2, SCHEMA, Config::default(), &[]).await;
    drop(db);
    let name = Relay::to(cluster.primary()).expect("a free port");
    let follower = options(&cluster.replica(1).url());
    let mut connections = Vec::new();
    for (which, pool) in existing_pools(&name.url()).await {
        let db = RoutingConnection::builder(pool).replica(follower.clone()).connect().await.expect("up");
        // Each connection of the pool is open, and to the old primary.
        for transaction in futures_util::future::join_all((0..4).map(|_| db.begin())).await {
            transaction.expect("begun").rollback().await.expect("rolled back");
        }
        connections.push((which, db));
    }
    cluster.wait_caught_up(LIMIT).expect("caught up");
    fault(&cluster, |c| c.replica(0).promote()).await;
    fault(&cluster, |c| c.follow(1, c.replica(0))).await;
    name.point_to(cluster.replica(0));
    let mut id = 100;
    for (which, db) in connections {
        until("the new primary is known", || async {
            let follows = db.topology().surviving().is_some_and(|branch| branch.timeline.0 == 2);
            follows && db.stats().nodes[0].standing == Standing::SamePrimary
        })
        .await;
        for round in 0..20 {
            id += 1;
            let insert = format!("INSERT INTO t VALUES ({id}, 0)");
            let session = db.new_session();
            let write = async {
                if round % 2 == 0 {
                    return session.execute_unprepared(&insert).await.map(drop);
                }
                let transaction = session.begin().await?;
                transaction.execute_unprepared(&insert).await?;
                transaction.commit().await
            };
            write.await.unwrap_or_else(|error| panic!("{which}, {round}: {error}"));
            let on_old = cluster.primary().sql(&format!("SELECT 1 FROM t WHERE id = {id}")).expect("asked");
            assert!(on_old.is_empty(), "{which}, {round}: written on the old primary");
        }
    }
}

/// A replica's position lies past the records that it shows, so a token of an idle server named what was never written;
/// after a failover that passed for a loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_an_idle_server_lose_nothing_in_a_failover() {
    let Stage { cluster, db } = Stage::<Sea>::set(2, SCHEMA, Config::default(), &[]).await;
    cluster.wait_caught_up(LIMIT).expect("caught up");
    let mut tokens = Vec::new();
    for _ in 0..20 {
        let session = db.new_session();
        session.number(Some(ReadClass::Eventual.into()), COUNT).await.expect("read");
        tokens.push(session.token().await);
    }
    drop(db);
    let name = Relay::to(cluster.primary()).expect("a free port");
    let replicas = [cluster.replica(0).url(), cluster.replica(1).url()];
    let db = Sea::connect(&name.url(), &replicas, Setup::default()).await.expect("up");
    until("the replicas are known to have everything", || async {
        db.stats().nodes[1..].iter().all(|node| node.standing.serves() && node.bytes_behind == Some(0))
    })
    .await;
    fault(&cluster, |c| c.primary().crash()).await;
    fault(&cluster, |c| c.replica(0).promote()).await;
    // Heard of by the follower first, it would not be known up to where it had followed.
    until("the promotion is seen", || async { db.stats().nodes[1].standing == Standing::OtherPrimary }).await;
    fault(&cluster, |c| c.follow(1, c.replica(0))).await;
    name.point_to(cluster.replica(0));
    // By both its names: what it had replayed as a standby is known of the node that was one.
    until("the new primary is known", || async {
        let follows = db.0.topology().surviving().is_some_and(|branch| branch.timeline.0 == 2);
        follows && db.stats().nodes[..2].iter().all(|node| node.standing == Standing::SamePrimary)
    })
    .await;
    for token in tokens {
        let session = db.resume(token.clone());
        assert_eq!(session.number(Some(STRICT.into()), COUNT).await.expect("read"), Some(1), "{token}");
        let reason = session.last_served().and_then(|served| served.reason);
        assert_ne!(reason, Some(PrimaryReason::BranchLost), "{token}");
    }
    assert_eq!(db.stats().branch_lost, 0);
}

/// A replica is promoted by mistake and goes away again: offload comes back, and sessions that had met it go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stray_promotion_passes() {
    let Stage { cluster, db } = Stage::<Sea>::set(2, SCHEMA, Config::default(), &[]).await;
    fault(&cluster, |c| c.replica(1).promote()).await;
    until("the stray is seen", || async { db.stats().nodes[2].standing == Standing::OtherPrimary }).await;
    let session = db.new_session();
    session.execute("INSERT INTO t VALUES (1, 0)").await.expect("the primary is what the URL says");
    assert_eq!(session.number(Some(STRICT.into()), COUNT).await.expect("read"), Some(2));
    fault(&cluster, |c| c.replica(1).stop()).await;
    until("the other replica serves again", || async {
        assert_eq!(session.number(Some(STRICT.into()), COUNT).await.expect("read"), Some(2));
        session.last_served().is_some_and(|s| s.node == NodeId::replica(0))
    })
    .await;
}

/// A token that speaks of a timeline that nobody knows costs a wait and a flag, not an error on every read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_of_an_unknown_timeline_is_flagged_once() {
    let Stage { cluster: _cluster, db } = Stage::<Sea>::set(1, SCHEMA, Config::default(), &[]).await;
    let writer = db.new_session();
    writer.execute("INSERT INTO t VALUES (1, 0)").await.expect("written");
    let system = writer.token().await.positions().next().expect("written").branch.system.0;
    let forged: Token = format!("rr1:{system}:9@0/1").parse().expect("well formed");
    let session = db.resume(forged.clone());
    assert_eq!(session.number(Some(STRICT.into()), COUNT).await.expect("served"), Some(2));
    assert_eq!(session.last_served().and_then(|s| s.reason), Some(PrimaryReason::BranchLost));
    until("it goes on as any other", || async {
        assert_eq!(session.number(Some(STRICT.into()), COUNT).await.expect("served"), Some(2));
        session.last_served().is_some_and(|s| s.reason.is_none())
    })
    .await;
    let refused = db.resume(forged).number(Some(STRICT.wait(Duration::from_millis(20)).or_error()), COUNT).await;
    assert!(refused.is_err());
}

/// The primary dies in mid-write: the session is in doubt, then settled, and then back on the replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_cut_off_by_a_crash_is_settled() {
    let Stage { cluster, db } = Stage::<Sea>::set(1, SCHEMA, Config::default(), &[]).await;
    let session = db.new_session();
    let running = session.clone();
    let slow = tokio::spawn(async move { running.execute("INSERT INTO t SELECT 1, 0 FROM pg_sleep(60)").await });
    until("the write runs", || async {
        let active =
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'INSERT INTO t SELECT 1%' AND state = 'active'";
        cluster.primary().sql(active).expect("asked")[0][0].as_deref() == Some("1")
    })
    .await;
    fault(&cluster, |c| c.primary().crash()).await;
    assert!(slow.await.expect("no panic").is_err());
    assert!(session.token().await.is_unknown(), "its outcome is unknown");
    fault(&cluster, |c| c.primary().start()).await;
    until("it is settled", || async { !session.token().await.is_unknown() }).await;
    until("strict reads are back on the replica", || async {
        session.number(Some(STRICT.into()), COUNT).await.is_ok_and(|n| n == Some(1))
            && session.last_served().is_some_and(|s| s.reason.is_none())
    })
    .await;
}

/// A statement's own error under a code that a dying server uses too is no doubt and no fault of the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordinary_error_leaves_nothing_in_doubt() {
    let Stage { cluster: _cluster, db } = Stage::<Sea>::set(1, SCHEMA, Config::default(), &[]).await;
    let session = db.new_session();
    let error = session.execute("COPY t FROM '/no/such/file'").await.expect_err("58P01");
    assert!(error.to_string().contains("/no/such/file"), "{error}");
    assert!(!session.token().await.is_unknown());
    assert_eq!(session.number(Some(STRICT.wait(LIMIT)), COUNT).await.expect("read"), Some(1));
    assert_eq!(session.last_served().and_then(|s| s.reason), None);
}

/// A replica's host hangs while it answers: nobody hangs with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_hangs_in_mid_read_is_left() {
    let Stage { cluster, db } = Stage::<Sea>::set(1, SCHEMA, Config::default(), &[]).await;
    let long = "SELECT count(*) FROM generate_series(1, 300000000)";
    let reads: Vec<_> = [ReadClass::Eventual, STRICT]
        .into_iter()
        .map(|class| {
            let session = db.new_session();
            tokio::spawn(async move {
                let started = Instant::now();
                let read = session.number(Some(class.or_error()), long).await;
                (read.is_err(), started.elapsed())
            })
        })
        .collect();
    let view = db.0.new_session().eventual();
    let transaction = view.begin_with_config(None, Some(AccessMode::ReadOnly)).await.expect("begun");
    until("the reads run on the replica", || async {
        let active = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%300000000%' AND state = 'active' AND pid <> pg_backend_pid()";
        cluster.replica(0).sql(active).expect("asked")[0][0].as_deref() == Some("2")
    })
    .await;
    fault(&cluster, |c| c.replica(0).freeze()).await;
    for read in reads {
        let (failed, took) = tokio::time::timeout(LIMIT, read).await.expect("it does not hang").expect("no panic");
        assert!(failed, "given up after {took:?}");
    }
    let statement = Statement::from_string(DbBackend::Postgres, COUNT);
    let inside = tokio::time::timeout(LIMIT, transaction.query_one_raw(statement)).await.expect("it does not hang");
    assert!(inside.is_err());
    fault(&cluster, |c| c.replica(0).thaw()).await;
}

/// A stream hung with the host that it came from.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_from_a_replica_that_hangs_ends_with_an_error() {
    let Stage { cluster, db } = Stage::<Sea>::set(1, SCHEMA, Config::default(), &[]).await;
    let session = db.0.new_session();
    // More than the buffers between server and client hold.
    let rows = "SELECT g, repeat('x', 1000) FROM generate_series(1, 200000) g";
    let rows = Statement::from_string(DbBackend::Postgres, rows);
    let mut stream = session.eventual().stream_raw(rows.clone()).await.expect("begun");
    assert_eq!(session.last_served().map(|served| served.node), Some(NodeId::replica(0)));
    assert!(stream.next().await.is_some_and(|row| row.is_ok()));
    fault(&cluster, |c| c.replica(0).freeze()).await;
    let rest = async {
        while let Some(row) = stream.next().await {
            row?;
        }
        Ok::<_, DbErr>(())
    };
    let rest = tokio::time::timeout(LIMIT, rest).await.expect("it does not hang");
    assert!(rest.expect_err("rows are missing").to_string().contains("no longer answers"));

    // Before its first row a stream can still go elsewhere.
    let mut stream = tokio::time::timeout(LIMIT, session.eventual().stream_raw(rows)).await.expect("it does not hang");
    assert!(stream.as_mut().expect("the primary serves").next().await.is_some_and(|row| row.is_ok()));
    assert_eq!(session.last_served().map(|served| served.node), Some(NodeId::PRIMARY));
    fault(&cluster, |c| c.replica(0).thaw()).await;
}

/// The time limit of a read counts for the first row of a stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_first_row_does_not_come_is_given_up() {
    let config = Config { replica_read_timeout: Duration::from_millis(200), ..Config::default() };
    let Stage { cluster: _cluster, db } = Stage::<Sea>::set(1, SCHEMA, config, &[]).await;
    let long = "SELECT count(*) FROM generate_series(1, 300000000)";
    let long = Statement::from_string(DbBackend::Postgres, long);
    for class in [STRICT, ReadClass::SecondsStale(LIMIT)] {
        let stream = db.0.new_session().read(class.or_error()).stream_raw(long.clone()).await;
        let error = stream.expect_err("it takes seconds").to_string();
        assert!(error.contains("replica_read_timeout"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_nobody_reads_writes_nothing() {
    let Stage { cluster, db } = Stage::<Sea>::set(1, SCHEMA, Config::default(), &[]).await;
    let session = db.0.new_session();
    let insert = Statement::from_string(DbBackend::Postgres, "INSERT INTO t VALUES (1, 0) RETURNING id");
    drop(session.stream_raw(insert.clone()).await.expect("not sent yet"));
    assert!(!session.token().await.is_unknown(), "nothing is in doubt");
    assert_eq!(cluster.primary().sql(COUNT).expect("asked")[0][0].as_deref(), Some("1"));
    let mut stream = session.stream_raw(insert).await.expect("not sent yet");
    assert!(stream.next().await.is_some_and(|row| row.is_ok()));
}
