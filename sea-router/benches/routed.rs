//! A routed read against SeaORM's plain connection to the same replica, interleaved in one run. Measures and prints.
//!
//! Machines are noisy: each ratio pairs two blocks that ran right after each other, and the median over all pairs is
//! shown with the middle half of them.

use std::time::{Duration, Instant};

use read_router_testkit::Cluster;
use sea_orm::{ConnectOptions, ConnectionTrait, Database, DbBackend, Statement};
use sea_router::RoutingConnection;

const PAIRS: usize = 60;
const READS: usize = 400;

fn options(url: &str) -> ConnectOptions {
    let mut options = ConnectOptions::new(url);
    options.max_connections(4).sqlx_logging(false);
    options
}

async fn block(db: &impl ConnectionTrait) -> Duration {
    let started = Instant::now();
    for id in 0..READS {
        let id = i32::try_from(id % 100).expect("small");
        let find = Statement::from_sql_and_values(
            DbBackend::Postgres,
            r#"SELECT "ride"."id", "ride"."distance" FROM "ride" WHERE "ride"."id" = $1 LIMIT $2"#,
            [id.into(), 1_u64.into()],
        );
        db.query_one_raw(find).await.expect("the replica serves").expect("a row");
    }
    started.elapsed()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::builder().replicas(1).start()?;
    cluster.primary().sql("CREATE TABLE ride (id int PRIMARY KEY, distance int); INSERT INTO ride SELECT g, g FROM generate_series(0, 99) g")?;
    cluster.wait_caught_up(Duration::from_secs(10))?;
    let replica = cluster.replica(0).url();
    let plain = Database::connect(options(&replica)).await?;
    let db = RoutingConnection::builder(options(&cluster.primary().url())).replica(options(&replica)).connect().await?;
    let session = db.new_session();
    session.execute_unprepared("UPDATE ride SET distance = distance + 1").await?;
    session.token().await;
    let views = [
        ("must_see_my_write", session.must_see_my_write()),
        ("seconds_stale(1s)", session.seconds_stale(Duration::from_secs(1))),
        ("eventual", session.eventual()),
    ];
    println!("{PAIRS} pairs of {READS} reads by key: throughput of the routed read / of the plain one");
    for (name, view) in views {
        block(&view).await;
        let mut pairs = Vec::with_capacity(PAIRS);
        for pair in 0..PAIRS {
            // Which goes first alternates, so that neither gains from it.
            let (routed, direct) = if pair % 2 == 0 {
                let routed = block(&view).await;
                (routed, block(&plain).await)
            } else {
                let direct = block(&plain).await;
                (block(&view).await, direct)
            };
            pairs.push((direct.as_secs_f64() / routed.as_secs_f64(), routed));
        }
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let ratio = |at: usize| pairs[at * (PAIRS - 1) / 4].0;
        let each = pairs[PAIRS / 2].1 / u32::try_from(READS)?;
        println!("{name:20} {:.3}  (middle half {:.3} to {:.3}), {each:?} a read", ratio(2), ratio(1), ratio(3));
    }
    let stats = db.stats();
    println!("{} reads on the replica, {} fallbacks, {} probes", stats.replica_reads(), stats.fallbacks, stats.probes);
    Ok(())
}
