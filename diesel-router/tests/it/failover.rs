//! Promotions, moved names, strays, and servers that hang or break in mid-call, over both connections.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use diesel::{PgConnection, connection::LoadConnection, pg::PgRowByRowLoadingMode, r2d2};
use diesel_async::{
    AsyncConnectionCore, AsyncPgConnection,
    pooled_connection::{AsyncDieselConnectionManager, bb8, deadpool, mobc},
};
use diesel_router::{AsyncRouter, AsyncSource, NodeId, PrimaryReason, ReadClass, Router, Standing, Token};
use futures_util::TryStreamExt;
use read_router::Config;
use read_router_scenarios::{LIMIT, Setup, Stage, Subject, fault, until};
use read_router_testkit::{Cluster, Relay};

use crate::{
    asynchronous::scenarios::Async,
    sync_scenarios::Blocking,
    sync_support::{Number, ask, number},
};

const SCHEMA: &str = "CREATE TABLE t (id bigint PRIMARY KEY, v bigint); INSERT INTO t VALUES (0, 0)";
const COUNT: &str = "SELECT count(*) FROM t";
const STRICT: ReadClass = ReadClass::MustSeeMyWrite;
const LONG: &str = "SELECT count(*) FROM generate_series(1, 300000000)";
const RUNNING: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE query LIKE '%300000000%' AND state = 'active' AND pid <> pg_backend_pid()";

async fn stage<S: Subject>(replicas: usize, config: Config) -> Stage<S> {
    Stage::set(replicas, SCHEMA, config, &[]).await
}

/// Each for the sync connection and for the async one.
macro_rules! both {
    ($($test:ident)+) => {
        mod sync {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test::<super::Blocking>().await;
                }
            )+
        }

        mod asynchronous {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test::<super::Async>().await;
                }
            )+
        }
    };
}

both! {
    a_moved_name_is_followed_though_the_old_primary_still_answers
    tokens_of_an_idle_server_lose_nothing_in_a_failover
    a_stray_promotion_passes
    a_token_of_an_unknown_timeline_is_flagged_once
    a_write_cut_off_by_a_crash_is_settled
    a_replica_that_hangs_in_mid_read_is_left
    a_read_over_its_time_limit_goes_elsewhere
}

/// The name of the primary moves to a promoted standby while the old primary goes on answering: writes and strict reads
/// follow it, and no session is left behind.
async fn a_moved_name_is_followed_though_the_old_primary_still_answers<S: Subject>() {
    let Stage { cluster, db } = stage::<S>(2, Config::default()).await;
    drop(db);
    let name = Relay::to(cluster.primary()).unwrap();
    let setup = Setup { monotonic_fallback: true, ..Setup::default() };
    let db = S::connect(&name.url(), &[cluster.replica(1).url()], setup).await.unwrap();
    // A pool of several connections, all to the old primary.
    let warm: Vec<_> = (1..=4)
        .map(|id| {
            let session = db.new_session();
            tokio::spawn(async move { session.execute(&format!("INSERT INTO t VALUES ({id}, 0)")).await })
        })
        .collect();
    for write in warm {
        write.await.unwrap().unwrap();
    }
    let before = db.new_session();
    before.execute("INSERT INTO t VALUES (5, 0)").await.unwrap();
    let token = before.token().await;
    cluster.wait_caught_up(LIMIT).unwrap();
    fail_over(&cluster, &name).await;

    let mut id = 100;
    until("writes land on the new primary and are read from its follower", || {
        id += 1;
        let (session, cluster) = (db.new_session(), cluster.clone());
        async move {
            session.execute(&format!("INSERT INTO t VALUES ({id}, 0)")).await.expect("a primary answers");
            let one = format!("{COUNT} WHERE id = {id}");
            let read = session.number(Some(STRICT.into()), &one).await;
            let on_follower = session.last_served().is_some_and(|s| s.node == NodeId::replica(0));
            ask(cluster.replica(0), &one) == 1 && matches!(read, Ok(Some(1))) && on_follower
        }
    })
    .await;
    let settled = id;
    for id in settled + 1..settled + 50 {
        let session = db.new_session();
        session.execute(&format!("INSERT INTO t VALUES ({id}, 0)")).await.unwrap();
        let one = format!("{COUNT} WHERE id = {id}");
        assert_eq!(session.number(Some(STRICT.into()), &one).await.unwrap(), Some(1));
        assert_eq!(ask(cluster.primary(), &one), 0, "written on the old primary");
    }
    // Sessions and tokens from before go on: what they had seen had been replayed when the standby was promoted.
    for session in [before, db.resume(token)] {
        let one = format!("{COUNT} WHERE id = 5");
        assert_eq!(session.number(Some(STRICT.into()), &one).await.unwrap(), Some(1));
        assert!(!session.token().await.is_unknown(), "{:?}", session.last_served());
    }
}

/// The first replica takes over, the second follows it, and the primary's name leads there.
async fn fail_over(cluster: &Arc<Cluster>, name: &Relay) {
    fault(cluster, |c| c.replica(0).promote()).await;
    fault(cluster, |c| c.follow(1, c.replica(0))).await;
    name.point_to(cluster.replica(0));
}

/// A replica's position lies past the records that it shows, so a token of an idle server named what was never written;
/// after a failover that passed for a loss.
async fn tokens_of_an_idle_server_lose_nothing_in_a_failover<S: Subject>() {
    let Stage { cluster, db } = stage::<S>(2, Config::default()).await;
    cluster.wait_caught_up(LIMIT).unwrap();
    let mut tokens = Vec::new();
    for _ in 0..20 {
        let session = db.new_session();
        session.number(Some(ReadClass::Eventual.into()), COUNT).await.unwrap();
        tokens.push(session.token().await);
    }
    drop(db);
    let name = Relay::to(cluster.primary()).unwrap();
    let replicas = [cluster.replica(0).url(), cluster.replica(1).url()];
    let db = S::connect(&name.url(), &replicas, Setup::default()).await.unwrap();
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
        let follows = db.topology().surviving().is_some_and(|branch| branch.timeline.0 == 2);
        follows && db.stats().nodes[..2].iter().all(|node| node.standing == Standing::SamePrimary)
    })
    .await;
    for token in tokens {
        let session = db.resume(token.clone());
        assert_eq!(session.number(Some(STRICT.into()), COUNT).await.unwrap(), Some(1), "{token}");
        let reason = session.last_served().and_then(|served| served.reason);
        assert_ne!(reason, Some(PrimaryReason::BranchLost), "{token}");
    }
    assert_eq!(db.stats().branch_lost, 0);
}

/// A replica is promoted by mistake and goes away again: offload comes back, and sessions that had met it go on.
async fn a_stray_promotion_passes<S: Subject>() {
    let Stage { cluster, db } = stage::<S>(2, Config::default()).await;
    fault(&cluster, |c| c.replica(1).promote()).await;
    until("the stray is seen", || async { db.stats().nodes[2].standing == Standing::OtherPrimary }).await;
    let session = db.new_session();
    session.execute("INSERT INTO t VALUES (1, 0)").await.expect("the primary is what the URL says");
    assert_eq!(session.number(Some(STRICT.into()), COUNT).await.unwrap(), Some(2));
    fault(&cluster, |c| c.replica(1).stop()).await;
    until("the other replica serves again", || async {
        assert_eq!(session.number(Some(STRICT.into()), COUNT).await.unwrap(), Some(2));
        session.last_served().is_some_and(|s| s.node == NodeId::replica(0))
    })
    .await;
}

/// A token that speaks of a timeline that nobody knows costs a wait and a flag, not an error on every read.
async fn a_token_of_an_unknown_timeline_is_flagged_once<S: Subject>() {
    let Stage { cluster: _cluster, db } = stage::<S>(1, Config::default()).await;
    let writer = db.new_session();
    writer.execute("INSERT INTO t VALUES (1, 0)").await.unwrap();
    let system = writer.token().await.positions().next().expect("written").branch.system.0;
    let forged: Token = format!("rr1:{system}:9@0/1").parse().expect("well formed");
    let session = db.resume(forged.clone());
    assert_eq!(session.number(Some(STRICT.into()), COUNT).await.unwrap(), Some(2));
    assert_eq!(session.last_served().and_then(|s| s.reason), Some(PrimaryReason::BranchLost));
    until("it goes on as any other", || async {
        assert_eq!(session.number(Some(STRICT.into()), COUNT).await.unwrap(), Some(2));
        session.last_served().is_some_and(|s| s.reason.is_none())
    })
    .await;
    let refused = db.resume(forged).number(Some(STRICT.wait(Duration::from_millis(20)).or_error()), COUNT).await;
    assert!(refused.is_err());
}

/// The primary dies in mid-write: the session is in doubt, then settled, and then back on the replica.
async fn a_write_cut_off_by_a_crash_is_settled<S: Subject>() {
    let Stage { cluster, db } = stage::<S>(1, Config::default()).await;
    let session = db.new_session();
    let running = session.clone();
    let slow = tokio::spawn(async move { running.execute("INSERT INTO t SELECT 1, 0 FROM pg_sleep(60)").await });
    until("the write runs", || async {
        let active =
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'INSERT INTO t SELECT 1%' AND state = 'active'";
        ask(cluster.primary(), active) == 1
    })
    .await;
    fault(&cluster, |c| c.primary().crash()).await;
    assert!(slow.await.unwrap().is_err());
    assert!(session.token().await.is_unknown(), "its outcome is unknown");
    fault(&cluster, |c| c.primary().start()).await;
    until("it is settled", || async { !session.token().await.is_unknown() }).await;
    until("strict reads are back on the replica", || async {
        session.number(Some(STRICT.into()), COUNT).await.is_ok_and(|n| n == Some(1))
            && session.last_served().is_some_and(|s| s.reason.is_none())
    })
    .await;
}

/// A replica's host hangs while it answers. The async connection leaves it; the sync one cannot, but nobody else comes near
/// the host, and the read ends once the host is back.
async fn a_replica_that_hangs_in_mid_read_is_left<S: Subject>() {
    let Stage { cluster, db } = stage::<S>(1, Config::default()).await;
    let is_sync = std::any::TypeId::of::<S>() == std::any::TypeId::of::<Blocking>();
    let reads: Vec<_> = [ReadClass::Eventual, STRICT]
        .into_iter()
        .map(|class| {
            let session = db.new_session();
            tokio::spawn(async move {
                let started = Instant::now();
                (session.number(Some(class.or_error()), LONG).await.is_err(), started.elapsed())
            })
        })
        .collect();
    until("the reads run on the replica", || async { ask(cluster.replica(0), RUNNING) == 2 }).await;
    fault(&cluster, |c| c.replica(0).freeze()).await;
    if !is_sync {
        for read in reads {
            let (failed, took) = tokio::time::timeout(LIMIT, read).await.expect("it does not hang").unwrap();
            assert!(failed, "given up after {took:?}");
        }
        goes_on_without(&cluster, &db).await;
        return;
    }
    goes_on_without(&cluster, &db).await;
    let [eventual, strict] = <[_; 2]>::try_from(reads).unwrap();
    let (failed, _) = tokio::time::timeout(LIMIT, strict).await.expect("its time limit has passed").unwrap();
    assert!(failed);
    // It has no time limit; its server ends it.
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE query LIKE '%300000000%' AND pid <> pg_backend_pid()";
    cluster.replica(0).sql(end).unwrap();
    let (failed, _) = tokio::time::timeout(LIMIT, eventual).await.expect("it is ended").unwrap();
    assert!(failed);
}

/// Everybody else is served by the primary while the host hangs, and by the replica afterwards.
async fn goes_on_without<S: Subject>(cluster: &Arc<Cluster>, db: &S) {
    until("the replica is known to hang", || async { !db.stats().nodes[1].standing.serves() }).await;
    for class in [ReadClass::Eventual, STRICT] {
        let session = db.new_session();
        let read = session.number(Some(class.into()), COUNT);
        let read = tokio::time::timeout(LIMIT, read).await.expect("it does not hang");
        assert_eq!(read.unwrap(), Some(1));
        assert_eq!(session.last_served().map(|served| served.node), Some(NodeId::PRIMARY));
    }
    fault(cluster, |c| c.replica(0).thaw()).await;
    until("the replica serves again", || async {
        let session = db.new_session();
        session.number(Some(ReadClass::Eventual.into()), COUNT).await.is_ok_and(|count| count == Some(1))
            && session.last_served().is_some_and(|served| served.reason.is_none())
    })
    .await;
}

async fn a_read_over_its_time_limit_goes_elsewhere<S: Subject>() {
    let config = Config { replica_read_timeout: Duration::from_millis(200), ..Config::default() };
    let Stage { cluster: _cluster, db } = stage::<S>(1, config).await;
    let slow = "SELECT count(*) FROM pg_sleep(1)";
    for class in [STRICT, ReadClass::SecondsStale(LIMIT)] {
        let session = db.new_session();
        let read = tokio::time::timeout(LIMIT, session.number(Some(class.or_error()), slow)).await;
        assert!(read.expect("it does not hang").is_err());
        assert_eq!(session.number(Some(class.into()), slow).await.unwrap(), Some(1));
        assert_eq!(session.last_served().map(|served| served.node), Some(NodeId::PRIMARY));
        // It says nothing of the replica, nor of the statements that follow.
        assert_eq!(session.number(Some(class.or_error().wait(LIMIT)), COUNT).await.unwrap(), Some(1));
    }
}

/// More than the buffers between server and client hold.
const ROWS: &str = "SELECT g::bigint AS number FROM generate_series(1, 3000000) g";

/// The replica is killed under a stream: that ends with an error, and reads go elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_replica_is_killed_ends_with_an_error() {
    let Stage { cluster, db } = stage::<Async>(1, Config::default()).await;
    for freeze in [false, true] {
        let mut conn = db.0.new_session();
        until("the replica serves", async || {
            let mut conn = db.0.new_session();
            AsyncConnectionCore::execute_returning_count(conn.eventual(), Number(COUNT)).await.is_ok()
                && conn.last_served().is_some_and(|served| served.reason.is_none())
        })
        .await;
        let mut rows = AsyncConnectionCore::load(conn.eventual(), Number(ROWS)).await.unwrap();
        assert!(rows.try_next().await.unwrap().is_some());
        match freeze {
            false => fault(&cluster, |c| c.replica(0).kill_backend()).await,
            true => fault(&cluster, |c| c.replica(0).freeze()).await,
        }
        let rest = async {
            while rows.try_next().await?.is_some() {}
            Ok::<_, diesel::result::Error>(())
        };
        let rest = tokio::time::timeout(LIMIT, rest).await.expect("it does not hang");
        assert!(rest.is_err(), "rows are missing");
        let next = db.number(Some(ReadClass::Eventual.into()), COUNT);
        assert_eq!(tokio::time::timeout(LIMIT, next).await.expect("it does not hang").unwrap(), Some(1));
    }
    fault(&cluster, |c| c.replica(0).thaw()).await;
}

/// The replica is killed under a cursor.
#[test]
fn a_cursor_whose_replica_is_killed_ends_with_an_error() {
    let cluster = crate::sync_support::cluster(1, SCHEMA);
    let router = crate::sync_support::connect(&cluster);
    let mut conn = router.session();
    let mut rows = LoadConnection::<PgRowByRowLoadingMode>::load(conn.eventual(), Number(ROWS)).unwrap();
    assert!(rows.next().unwrap().is_ok());
    cluster.replica(0).kill_backend().unwrap();
    assert!(rows.any(|row| row.is_err()), "rows are missing");
    drop(rows);
    assert_eq!(number(conn.eventual(), COUNT).unwrap(), Some(1));
    assert_eq!(number(conn.must_see_my_write(), COUNT).unwrap(), Some(1));
}

/// The pools that an application may have already, for a primary of this URL.
async fn existing_pools(url: &str) -> [(&'static str, AsyncSource); 3] {
    let manager = || AsyncDieselConnectionManager::<AsyncPgConnection>::new(url);
    let deadpool = deadpool::Pool::builder(manager()).max_size(4).build().unwrap();
    let bb8 = bb8::Pool::builder().max_size(4).min_idle(4).build(manager()).await.unwrap();
    let mobc = mobc::Pool::builder().max_open(4).build(manager());
    [("deadpool", deadpool.into()), ("bb8", bb8.into()), ("mobc", mobc.into())]
}

/// Connections of a pool that was handed over must not go on writing on the old primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_existing_pool_follows_a_moved_name() {
    let Stage { cluster, db } = stage::<Async>(2, Config::default()).await;
    drop(db);
    let name = Relay::to(cluster.primary()).unwrap();
    let mut subjects: Vec<(&str, Either)> = Vec::new();
    for (which, pool) in existing_pools(&name.url()).await {
        let router = AsyncRouter::builder(pool).replica(cluster.replica(1).url()).connect().await.unwrap();
        subjects.push((which, Either::Async(Box::new(Async(router.session())))));
    }
    let manager = r2d2::ConnectionManager::<PgConnection>::new(name.url());
    let r2d2 = r2d2::Pool::builder().max_size(4).build(manager).unwrap();
    let router = Router::builder(r2d2).replica(cluster.replica(1).url()).connect().unwrap();
    subjects.push(("r2d2", Either::Sync(Blocking::of(router.session()))));
    // Each connection of the pool is open, and to the old primary.
    for (_, subject) in &subjects {
        let sleeps = (0..3).map(|_| subject.execute("UPDATE t SET v = 1 WHERE id = (SELECT 1 FROM pg_sleep(0.1))"));
        for done in futures_util::future::join_all(sleeps).await {
            done.unwrap();
        }
    }
    cluster.wait_caught_up(LIMIT).unwrap();
    fail_over(&cluster, &name).await;
    let mut id = 100;
    for (which, subject) in subjects {
        until("the new primary is known", async || subject.has_failed_over()).await;
        for round in 0..20 {
            id += 1;
            let insert = format!("INSERT INTO t VALUES ({id}, 0)");
            let text = if round % 2 == 0 { insert } else { format!("BEGIN; {insert}; COMMIT") };
            subject.execute(&text).await.unwrap_or_else(|error| panic!("{which}, {round}: {error}"));
            let one = format!("{COUNT} WHERE id = {id}");
            assert_eq!(ask(cluster.primary(), &one), 0, "{which}, {round}: written on the old primary");
            assert_eq!(ask(cluster.replica(0), &one), 1, "{which}, {round}");
        }
    }
}

/// One of the two connections.
enum Either {
    Async(Box<Async>),
    Sync(Blocking),
}

impl Either {
    /// In a session of its own.
    async fn execute(&self, sql: &str) -> Result<(), crate::failed::Failed> {
        match self {
            Self::Async(db) => db.new_session().execute(sql).await,
            Self::Sync(db) => db.new_session().execute(sql).await,
        }
    }

    fn has_failed_over(&self) -> bool {
        let (topology, stats) = match self {
            Self::Async(db) => (db.topology(), db.stats()),
            Self::Sync(db) => (db.topology(), db.stats()),
        };
        let follows = topology.surviving().is_some_and(|branch| branch.timeline.0 == 2);
        follows && stats.nodes[0].standing == Standing::SamePrimary
    }
}
