//! Many sessions that write and read back, under random faults.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use read_router::{Config, ReadClass, ReadOptions};
use read_router_testkit::Cluster;

use crate::{Stage, Subject, amount, fault};

/// Whether reads are gated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    /// `MustSeeMyWrite`.
    On,
    /// Any replica: the same load must then see stale reads, or it shows nothing.
    Off,
}

/// What a run saw.
#[derive(Debug)]
struct Outcome {
    /// Reads that missed the session's own write.
    stale: u64,
    /// Reads in all.
    reads: u64,
    /// Reads that replicas served.
    on_replicas: u64,
    /// Reads that failed.
    failed: u64,
}

const TASKS: u64 = 16;

/// No session misses its own writes, or falls behind what it has read, whatever happens to the standbys; and most reads are
/// served by them.
///
/// # Panics
/// If one does.
pub async fn writes_then_reads_are_never_stale<S: Subject>() {
    let outcome = writes_then_reads::<S>(Gate::On, amount(1_000, 20_000), 1).await;
    println!("gated: {outcome:?}");
    assert_eq!(outcome.stale, 0, "{outcome:?}");
    assert_eq!(outcome.failed, 0, "{outcome:?}");
    assert!(outcome.on_replicas * 4 > outcome.reads, "{outcome:?}");
}

/// The same load sees stale reads where nothing is gated: else the test above shows nothing.
///
/// # Panics
/// If it sees none.
pub async fn without_the_gate_the_same_load_sees_stale_reads<S: Subject>() {
    let outcome = writes_then_reads::<S>(Gate::Off, amount(1_000, 4_000), 1).await;
    println!("not gated: {outcome:?}");
    assert!(outcome.stale > 0, "{outcome:?}");
}

/// `writes` writes, each read back at once by its session, by [`TASKS`] tasks over two replicas, with random pauses,
/// delays, and crashes of a whole standby and of a standby's backend.
///
/// # Panics
/// If a write fails: no fault here touches the primary.
async fn writes_then_reads<S: Subject>(gate: Gate, writes: u64, seed: u64) -> Outcome {
    let schema = format!(
        "CREATE TABLE r (id bigint PRIMARY KEY, v bigint); INSERT INTO r SELECT g, 0 FROM generate_series(0, {}) g",
        TASKS - 1
    );
    // A short budget, so that a paused replica costs the run little time.
    let config = Config { strict_wait: Duration::from_millis(25), ..Config::default() };
    let Stage { cluster, db } = Stage::<S>::set(2, &schema, config, &[]).await;
    let stop = Arc::new(AtomicBool::new(false));
    let faults = tokio::spawn(make_trouble(cluster.clone(), stop.clone(), seed));
    let (stale, on_replicas, failed) = (counter(), counter(), counter());
    let each = writes / TASKS;
    let workers: Vec<_> = (0..TASKS)
        .map(|id| {
            let (db, stale, on_replicas, failed) = (db.clone(), stale.clone(), on_replicas.clone(), failed.clone());
            tokio::spawn(async move {
                let mut session = db.new_session();
                for value in 1..=i64::try_from(each).expect("few writes") {
                    if value % 50 == 0 {
                        session = db.resume(session.token().await);
                    }
                    session
                        .execute(&format!("UPDATE r SET v = {value} WHERE id = {id}"))
                        .await
                        .expect("the primary is up");
                    let options: ReadOptions = match gate {
                        Gate::On => ReadClass::MustSeeMyWrite.into(),
                        Gate::Off => ReadClass::Eventual.into(),
                    };
                    // Two reads: the second must not fall behind the first either.
                    for _ in 0..2 {
                        match session.number(Some(options), &format!("SELECT v FROM r WHERE id = {id}")).await {
                            Ok(seen) => {
                                stale.fetch_add(u64::from(seen != Some(value)), Relaxed);
                                let there = session.last_served().is_some_and(|s| s.reason.is_none());
                                on_replicas.fetch_add(u64::from(there), Relaxed);
                            }
                            Err(_) => {
                                failed.fetch_add(1, Relaxed);
                            }
                        }
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.expect("a worker does not panic");
    }
    stop.store(true, Relaxed);
    faults.await.expect("the faults do not panic");
    Outcome {
        stale: stale.load(Relaxed),
        reads: each * TASKS * 2,
        on_replicas: on_replicas.load(Relaxed),
        failed: failed.load(Relaxed),
    }
}

fn counter() -> Arc<AtomicU64> {
    Arc::default()
}

/// One fault after the other, each healed; every kind comes up in the first round.
async fn make_trouble(cluster: Arc<Cluster>, stop: Arc<AtomicBool>, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    for round in 0_u32.. {
        if stop.load(Relaxed) {
            return;
        }
        let index = random.random_range(0..2);
        let kind = if round < 4 { round } else { random.random_range(0..5) };
        match kind {
            0 => {
                fault(&cluster, move |c| c.replica(index).pause_replay()).await;
                pause(&mut random).await;
                fault(&cluster, move |c| c.replica(index).resume_replay()).await;
            }
            1 => {
                let delay = Duration::from_millis(random.random_range(5..60));
                fault(&cluster, move |c| c.replica(index).set_apply_delay(delay)).await;
                pause(&mut random).await;
                fault(&cluster, move |c| c.replica(index).set_apply_delay(Duration::ZERO)).await;
            }
            2 => fault(&cluster, move |c| c.replica(index).kill_backend()).await,
            3 => {
                fault(&cluster, move |c| c.replica(index).crash()).await;
                fault(&cluster, move |c| c.replica(index).start()).await;
            }
            _ => pause(&mut random).await,
        }
        pause(&mut random).await;
    }
}

async fn pause(random: &mut StdRng) {
    tokio::time::sleep(Duration::from_millis(random.random_range(20..200))).await;
}
