//! Routed calls against the same calls on SeaORM's plain connection to the same server, with and without a metric
//! callback. Measures and prints.
//!
//! Machines are noisy: each ratio pairs two blocks that ran right after each other, and the median over all pairs is
//! shown with the middle half of them. The first line compares the plain connection with another of its kind: so far from
//! 1 is the machine's own doing. An argument leaves the lines that have it in their name.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use read_router_testkit::Cluster;
use sea_orm::{
    ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DbBackend, DbErr, Statement, TransactionTrait,
    metric::Info,
};
use sea_router::RoutingConnection;

const PAIRS: usize = 800;

#[derive(Clone, Copy)]
enum Call {
    FindByKey,
    ListFifty,
    Insert,
    /// Begins, reads, inserts, commits.
    Transaction,
}

impl Call {
    /// So many in a block that it takes a few milliseconds: short beside what disturbs a machine.
    fn in_block(self) -> i32 {
        match self {
            Self::FindByKey => 20,
            Self::ListFifty | Self::Insert => 12,
            Self::Transaction => 4,
        }
    }

    async fn run(self, db: &(impl ConnectionTrait + TransactionTrait), number: i32) -> Result<(), DbErr> {
        match self {
            Self::FindByKey => find(db, number).await,
            Self::ListFifty => {
                let text = r#"SELECT "ride"."id", "ride"."distance" FROM "ride" WHERE "ride"."id" >= $1 ORDER BY "ride"."id" ASC LIMIT $2"#;
                let rows = db.query_all_raw(statement(text, [(number % 50).into(), 50_u64.into()])).await?;
                assert_eq!(rows.len(), 50);
                Ok(())
            }
            Self::Insert => insert(db, number).await,
            Self::Transaction => {
                let transaction = db.begin().await?;
                find(&transaction, number).await?;
                insert(&transaction, number).await?;
                sea_orm::TransactionSession::commit(transaction).await
            }
        }
    }
}

fn statement<const N: usize>(text: &str, values: [sea_orm::Value; N]) -> Statement {
    Statement::from_sql_and_values(DbBackend::Postgres, text, values)
}

async fn find(db: &impl ConnectionTrait, number: i32) -> Result<(), DbErr> {
    let text = r#"SELECT "ride"."id", "ride"."distance" FROM "ride" WHERE "ride"."id" = $1 LIMIT $2"#;
    let row = db.query_one_raw(statement(text, [(number % 100).into(), 1_u64.into()])).await?;
    row.map(drop).ok_or_else(|| DbErr::RecordNotFound("ride".into()))
}

async fn insert(db: &impl ConnectionTrait, number: i32) -> Result<(), DbErr> {
    let text = r#"INSERT INTO "written" ("distance") VALUES ($1) RETURNING "id""#;
    db.query_one_raw(statement(text, [number.into()])).await.map(drop)
}

async fn block<C: ConnectionTrait + TransactionTrait>(db: &C, call: Call) -> Result<Duration, DbErr> {
    let started = Instant::now();
    for number in 0..call.in_block() {
        call.run(db, number).await?;
    }
    Ok(started.elapsed())
}

/// Prints the time of the routed call / that of the plain one.
async fn compare<C: ConnectionTrait + TransactionTrait>(
    name: &str,
    call: Call,
    routed: &C,
    plain: &DatabaseConnection,
) -> Result<(), DbErr> {
    if std::env::args().skip(1).any(|argument| !argument.starts_with("--") && !name.contains(&argument)) {
        return Ok(());
    }
    block(routed, call).await?;
    block(plain, call).await?;
    let mut pairs = Vec::with_capacity(PAIRS);
    for pair in 0..PAIRS {
        // Which goes first alternates, so that neither gains from it.
        let (ours, theirs) = if pair % 2 == 0 {
            let ours = block(routed, call).await?;
            (ours, block(plain, call).await?)
        } else {
            let theirs = block(plain, call).await?;
            (block(routed, call).await?, theirs)
        };
        pairs.push((ours.as_secs_f64() / theirs.as_secs_f64(), ours / call.in_block().unsigned_abs()));
    }
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let ratio = |quarter: usize| pairs[quarter * (PAIRS - 1) / 4].0;
    let each = pairs[PAIRS / 2].1;
    println!("{name:48} {:.3}  (middle half {:.3} to {:.3}), {each:?} a call", ratio(2), ratio(1), ratio(3));
    Ok(())
}

fn options(url: &str) -> ConnectOptions {
    let mut options = ConnectOptions::new(url);
    options.max_connections(4).sqlx_logging(false);
    options
}

/// A callback that costs next to nothing itself.
fn counting(told: &Arc<AtomicU64>) -> impl Fn(&Info<'_>) + Send + Sync + 'static {
    let told = told.clone();
    move |_| {
        told.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::builder().replicas(1).start()?;
    cluster.primary().sql(
        "CREATE TABLE ride (id int PRIMARY KEY, distance int); INSERT INTO ride SELECT g, g FROM generate_series(0, 99) g; \
         CREATE TABLE written (id bigserial PRIMARY KEY, distance int)",
    )?;
    cluster.wait_caught_up(Duration::from_secs(10))?;
    let (primary, replica) = (cluster.primary().url(), cluster.replica(0).url());
    let mut plain_primary = Database::connect(options(&primary)).await?;
    let mut plain_replica = Database::connect(options(&replica)).await?;
    let mut db = RoutingConnection::builder(options(&primary)).replica(options(&replica)).connect().await?;
    let told = Arc::new(AtomicU64::new(0));
    println!("{PAIRS} pairs of blocks: time of the routed call / of the plain one");
    let same = Database::connect(options(&primary)).await?;
    compare("insert, plain against plain", Call::Insert, &same, &plain_primary).await?;
    for callback in ["", ", metric callback"] {
        if !callback.is_empty() {
            db.set_metric_callback(counting(&told));
            plain_primary.set_metric_callback(counting(&told));
            plain_replica.set_metric_callback(counting(&told));
        }
        let reads = db.new_session();
        reads.execute_unprepared("UPDATE ride SET distance = distance + 1").await?;
        reads.token().await;
        let bounded = reads.seconds_stale(Duration::from_secs(1));
        for (name, call, view, plain) in [
            ("find by key, must_see_my_write", Call::FindByKey, reads.must_see_my_write(), &plain_replica),
            ("find by key, seconds_stale(1s)", Call::FindByKey, bounded, &plain_replica),
            ("find by key, eventual", Call::FindByKey, reads.eventual(), &plain_replica),
            ("find by key, on_primary", Call::FindByKey, db.new_session().on_primary(), &plain_primary),
            ("50 rows, must_see_my_write", Call::ListFifty, reads.must_see_my_write(), &plain_replica),
            ("insert", Call::Insert, db.new_session(), &plain_primary),
            ("transaction", Call::Transaction, db.new_session(), &plain_primary),
        ] {
            compare(&format!("{name}{callback}"), call, &view, plain).await?;
        }
    }
    let stats = db.stats();
    println!("{} reads on the replica, {} fallbacks, {} probes", stats.replica_reads(), stats.fallbacks, stats.probes);
    println!("the callbacks were told of {} statements", told.load(Ordering::Relaxed));
    Ok(())
}
