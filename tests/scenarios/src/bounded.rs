//! Bounded staleness, judged from the recorded history of commits.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use read_router::{Config, NodeId, ReadClass};

use crate::{Stage, Subject, amount, fault, until};

const SCHEMA: &str = "CREATE TABLE t (id int PRIMARY KEY, v bigint); INSERT INTO t VALUES (1, 0)";
const READ: &str = "SELECT v FROM t WHERE id = 1";
const BOUND: Duration = Duration::from_millis(300);

/// When each value had been acknowledged, by value.
type Commits = Arc<Mutex<Vec<Instant>>>;

/// No read misses a commit that was acknowledged longer than the bound before the read was sent: with the replica well,
/// with replay paused, with the link frozen, with the standby killed; and the replica serves again afterwards.
///
/// # Panics
/// If one does.
pub async fn no_commit_older_than_the_bound_is_missed<S: Subject>() {
    let Stage { cluster, db } = Stage::<S>::set(1, SCHEMA, Config::default(), &[]).await;
    let commits: Commits = Arc::default();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn(write(db.new_session(), commits.clone(), stop.clone()));

    serves(&db, &commits, "well").await;
    fault(&cluster, |c| c.replica(0).pause_replay()).await;
    lags(&db, &commits, "replay paused").await;
    fault(&cluster, |c| c.replica(0).resume_replay()).await;
    serves(&db, &commits, "replay resumed").await;

    fault(&cluster, |c| c.freeze_link(0)).await;
    lags(&db, &commits, "link frozen").await;
    fault(&cluster, |c| c.thaw_link(0)).await;
    serves(&db, &commits, "link thawed").await;

    fault(&cluster, |c| c.replica(0).crash()).await;
    lags(&db, &commits, "standby killed").await;
    fault(&cluster, |c| c.replica(0).start()).await;
    serves(&db, &commits, "standby restarted").await;

    stop.store(true, Relaxed);
    writer.await.expect("the writer does not panic");
}

/// On a primary where nothing happens the replica goes on serving.
///
/// # Panics
/// If a read goes elsewhere.
pub async fn idle_primary<S: Subject>() {
    let time = Duration::from_secs(amount(5, 60));
    let Stage { cluster: _cluster, db } = Stage::<S>::set(1, SCHEMA, Config::default(), &[]).await;
    let session = db.new_session();
    let bounded = Some(ReadClass::SecondsStale(Duration::from_secs(2)).into());
    let started = Instant::now();
    let (mut reads, mut on_primary) = (0, 0);
    while started.elapsed() < time {
        assert_eq!(session.number(bounded, READ).await.expect("read"), Some(0));
        reads += 1;
        on_primary += usize::from(session.last_served().is_none_or(|s| s.node.is_primary()));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(on_primary * 100 <= reads, "{on_primary} of {reads} reads left the replica: {:?}", db.stats());
}

async fn write<S: Subject>(session: S, commits: Commits, stop: Arc<AtomicBool>) {
    while !stop.load(Relaxed) {
        let value = commits.lock().expect("not poisoned").len() + 1;
        session.execute(&format!("UPDATE t SET v = {value} WHERE id = 1")).await.expect("the primary is up");
        commits.lock().expect("not poisoned").push(Instant::now());
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

/// Reads once and judges the answer; returns whether the replica gave it.
async fn read_and_judge<S: Subject>(db: &S, commits: &Commits, phase: &str) -> bool {
    let session = db.new_session();
    let asked = Instant::now();
    let seen = session.number(Some(ReadClass::SecondsStale(BOUND).into()), READ).await.expect("read").expect("a row");
    let due = commits.lock().expect("not poisoned").iter().filter(|at| **at + BOUND < asked).count();
    let due = i64::try_from(due).expect("few commits");
    assert!(
        seen >= due,
        "{phase}: saw {seen}, but {due} was acknowledged {BOUND:?} before; {:?}",
        session.last_served()
    );
    session.last_served().is_some_and(|s| s.node == NodeId::replica(0))
}

async fn serves<S: Subject>(db: &S, commits: &Commits, phase: &str) {
    for _ in 0..20 {
        until(&format!("{phase}: the replica serves"), || read_and_judge(db, commits, phase)).await;
    }
}

/// Reads while the replica does not follow, until it has fallen behind by more than the bound, and longer.
async fn lags<S: Subject>(db: &S, commits: &Commits, phase: &str) {
    let end = Instant::now() + BOUND * 5;
    let mut last_on_replica = false;
    while Instant::now() < end {
        last_on_replica = read_and_judge(db, commits, phase).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(!last_on_replica, "{phase}: the replica still served after {:?}", BOUND * 5);
}
