//! A small application on Diesel's own connection types that moved to checkouts, before and after.

mod handlers;
mod moved;
mod plain;

use diesel::result::{DatabaseErrorKind, Error};
use read_router_scenarios::{LIMIT, until};
use read_router_testkit::Cluster;

use self::handlers::{Passenger, Ride};

type Trouble = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, Copy, Debug)]
enum Request {
    Register { name: &'static str, balance: i64 },
    Book { name: &'static str, fare: i64 },
    RidesOf { name: &'static str },
    Overview,
    Report,
}

#[derive(Debug, PartialEq)]
enum Answer {
    Passenger(Passenger),
    Ride(Ride),
    Rides(Vec<Ride>),
    Overview((i64, i64, Option<String>)),
    Report(Vec<(String, i64, Option<i64>)>),
}

const DAY: [Request; 11] = [
    Request::Overview,
    Request::Register { name: "Ada", balance: 30 },
    Request::Register { name: "Bob", balance: 5 },
    Request::Register { name: "Ada", balance: 1 },
    Request::Book { name: "Ada", fare: 12 },
    Request::RidesOf { name: "Ada" },
    Request::Book { name: "Bob", fare: 6 },
    Request::RidesOf { name: "Bob" },
    Request::RidesOf { name: "nobody" },
    Request::Book { name: "Ada", fare: 11 },
    Request::RidesOf { name: "Ada" },
];
const READS: [Request; 3] = [Request::RidesOf { name: "Ada" }, Request::Overview, Request::Report];

fn cluster() -> Cluster {
    let cluster = Cluster::builder().start().unwrap();
    cluster.primary().sql(handlers::SCHEMA).unwrap();
    cluster.wait_caught_up(LIMIT).unwrap();
    cluster
}

async fn moved(cluster: &Cluster) -> moved::App {
    moved::App::start(&cluster.primary().url(), &cluster.replica(0).url()).await.unwrap()
}

/// As the users see it.
fn shown(answer: Result<Answer, Trouble>) -> Result<Answer, String> {
    answer.map_err(|trouble| trouble.to_string())
}

/// Each read, answered by the primary. At first a checkout may still hold a connection whose server has just ended, and says
/// so.
async fn reads_on_the_primary(app: &moved::App) {
    for request in &READS {
        until("the primary serves", async || app.answer(request).await.is_ok()).await;
    }
    let before = [app.router.stats().replica_reads(), app.reports.stats().replica_reads()];
    for request in &READS {
        app.answer(request).await.unwrap_or_else(|error| panic!("{request:?}: {error}"));
    }
    assert_eq!([app.router.stats().replica_reads(), app.reports.stats().replica_reads()], before);
}

async fn replica_serves_all_reads(app: &moved::App) {
    until("the replica serves each read", async || {
        let before = app.router.stats().replica_reads() + app.reports.stats().replica_reads();
        for request in &READS {
            app.answer(request).await.unwrap();
        }
        app.router.stats().replica_reads() + app.reports.stats().replica_reads() == before + READS.len() as u64
    })
    .await;
}

#[test]
fn the_change_touches_only_where_connections_are_obtained() {
    let body = |text: &'static str| text.split_once("async fn answer").unwrap().1.lines();
    let (before, after) = (include_str!("application/plain.rs"), include_str!("application/moved.rs"));
    assert_eq!(body(before).count(), body(after).count());
    let changed = body(before).zip(body(after)).filter(|(before, after)| before != after);
    let changed: Vec<_> = changed.map(|(before, after)| (before.trim(), after.trim())).collect();
    assert_eq!(changed.len(), 5, "one for each request");
    for (before, after) in changed {
        let (name, obtained) = before.split_once(" = ").unwrap();
        assert!(obtained.contains(".get()") && after.starts_with(&format!("{name} = self.")), "{before} {after}");
        assert!(after.contains(".checkout"), "{after}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_answers_as_before() {
    let (old, new) = (cluster(), cluster());
    let before = plain::App::start(&old.primary().url()).unwrap();
    let after = moved(&new).await;
    for request in &DAY {
        let expected = shown(before.answer(request).await);
        assert_eq!(shown(after.answer(request).await), expected, "{request:?}");
    }
    old.wait_caught_up(LIMIT).unwrap();
    new.wait_caught_up(LIMIT).unwrap();
    for request in &READS {
        assert_eq!(after.answer(request).await.unwrap(), before.answer(request).await.unwrap(), "{request:?}");
    }
    replica_serves_all_reads(&after).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_dead_at_the_start_is_used_when_it_comes() {
    let cluster = cluster();
    cluster.replica(0).stop().unwrap();
    let app = moved(&cluster).await;
    app.answer(&DAY[1]).await.unwrap();
    reads_on_the_primary(&app).await;
    cluster.replica(0).start().unwrap();
    replica_serves_all_reads(&app).await;
}

/// What had begun on it is the application's to repeat, for it holds the connection; all that comes after is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_killed_in_mid_query_ends_that_query_only() {
    let cluster = cluster();
    let app = moved(&cluster).await;
    app.answer(&DAY[1]).await.unwrap();
    replica_serves_all_reads(&app).await;
    let mut conn = app.router.checkout(diesel_router::ReadClass::Eventual).await.unwrap();
    let mut report = tokio::task::block_in_place(|| app.reports.checkout(diesel_router::ReadClass::Eventual)).unwrap();
    assert!(!conn.node().is_primary() && !report.node().is_primary());
    const SLOW: &str = "SELECT pg_sleep(600)";
    let slow_report = std::thread::spawn(move || diesel::RunQueryDsl::execute(diesel::sql_query(SLOW), &mut *report));
    let slow = diesel_async::RunQueryDsl::execute(diesel::sql_query(SLOW), &mut *conn);
    let kill = async {
        until("both run", async || {
            let running = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
            cluster.replica(0).sql(running).unwrap()[0][0].as_deref() == Some("2")
        })
        .await;
        cluster.replica(0).crash().unwrap();
    };
    let (ended, ()) = tokio::join!(slow, kill);
    for ended in [ended, slow_report.join().unwrap()] {
        let error = ended.unwrap_err();
        let Error::DatabaseError(kind, _) = &error else { panic!("{error:?}") };
        use DatabaseErrorKind::{ClosedConnection, UnableToSendCommand, Unknown};
        assert!(matches!(kind, ClosedConnection | UnableToSendCommand | Unknown), "{error:?}");
    }
    drop(conn);
    reads_on_the_primary(&app).await;
    app.answer(&DAY[4]).await.unwrap();
    assert_eq!(app.answer(&READS[0]).await.unwrap(), app.answer(&READS[0]).await.unwrap());
    cluster.replica(0).start().unwrap();
    replica_serves_all_reads(&app).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_read_only_answers_reads_and_says_so_to_writes() {
    let cluster = cluster();
    let app = moved(&cluster).await;
    app.answer(&DAY[1]).await.unwrap();
    cluster.primary().set("default_transaction_read_only", "on").unwrap();
    until("the primary refuses to write", async || app.answer(&DAY[4]).await.is_err()).await;
    for _ in 0..10 {
        let error = app.answer(&DAY[4]).await.unwrap_err();
        let error = error.downcast::<Error>().expect("Diesel's own");
        assert!(matches!(*error, Error::DatabaseError(DatabaseErrorKind::ReadOnlyTransaction, _)), "{error:?}");
        for request in &READS {
            app.answer(request).await.unwrap();
        }
    }
    cluster.replica(0).stop().unwrap();
    reads_on_the_primary(&app).await;
    cluster.primary().set("default_transaction_read_only", "off").unwrap();
    until("the primary writes again", async || app.answer(&DAY[4]).await.is_ok()).await;
}
