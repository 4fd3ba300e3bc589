//! Reads that follow a replica's must not go back: between replicas, and on the primary where that is asked for.

use std::time::{Duration, Instant};

use read_router::{Config, NodeId, PrimaryReason, ReadClass};

use crate::{
    Isolation, LIMIT, Setup, Stage, Subject, Transaction, amount, fault,
    rules::{BROKEN, switch_off},
    until,
};

const STRICT: ReadClass = ReadClass::MustSeeMyWrite;
const COUNT: &str = "SELECT count(*) FROM t";

/// A strict read that goes to the primary whatever the replicas have: they know no SERIALIZABLE.
async fn strict_on_primary<S: Subject>(session: &S, budget: Duration, sql: &str) -> Result<i64, S::Error> {
    let mut transaction = session.begin_read(STRICT.wait(budget), Isolation::Serializable).await?;
    let count = transaction.number(sql).await?;
    transaction.commit().await?;
    Ok(count.expect("an aggregate has a row"))
}

async fn connect<S: Subject>(stage: &Stage<S>, replicas: &[usize], monotonic: bool) -> S {
    let replicas: Vec<_> = replicas.iter().map(|index| stage.cluster.replica(*index).url()).collect();
    let setup = Setup { monotonic_fallback: monotonic, ..Setup::default() };
    S::connect(&stage.cluster.primary().url(), &replicas, setup).await.expect("all servers are up")
}

/// Rule 1, the moment held open: the primary waits for a synchronous standby that does not answer, while another one
/// shows the commit already.
///
/// # Panics
/// If the promise is broken.
pub async fn a_fallback_does_not_go_back_where_that_is_asked_for<S: Subject>() {
    switch_off();
    let stage = Stage::<S>::set(2, "CREATE TABLE t (id int)", Config::default(), &[]).await;
    let cluster = stage.cluster.clone();
    fault(&cluster, |c| c.primary().set("synchronous_standby_names", c.replica(1).name())).await;
    fault(&cluster, |c| c.replica(1).freeze_receiver()).await;
    let writer = stage.db.new_session();
    let write = tokio::spawn(async move { writer.execute("INSERT INTO t VALUES (1)").await });
    let (plain, asked) = (connect(&stage, &[0], false).await, connect(&stage, &[0], true).await);
    let (plain, asked) = (plain.new_session(), asked.new_session());
    for session in [&plain, &asked] {
        until("the replica shows the commit", || async {
            session.number(Some(STRICT.into()), COUNT).await.expect("read") == Some(1)
        })
        .await;
        assert_eq!(session.last_served().expect("served").node, NodeId::replica(0));
    }
    assert!(!write.is_finished(), "the commit is not acknowledged");

    // Documented: without the option it is gone again.
    assert_eq!(strict_on_primary(&plain, Duration::from_millis(300), COUNT).await.expect("read"), 0);
    match strict_on_primary(&asked, Duration::from_millis(300), COUNT).await {
        Ok(count) => panic!("{BROKEN} a read after one that saw the row found {count}"),
        Err(refused) => assert_eq!(S::refusal(&refused), Some(PrimaryReason::Unsettled), "{refused}"),
    }
    // What was shown travels with the token.
    let elsewhere = connect(&stage, &[0], true).await.resume(asked.token().await);
    let refused = strict_on_primary(&elsewhere, Duration::from_millis(300), COUNT).await.expect_err("as before");
    assert_eq!(S::refusal(&refused), Some(PrimaryReason::Unsettled), "{refused}");
    // A strict read as a replica can serve it, a plain one and a write do not wait.
    assert_eq!(asked.number(Some(STRICT.into()), COUNT).await.expect("read"), Some(1));
    assert_eq!(asked.number(None, "SELECT 5::bigint").await.expect("read"), Some(5));

    fault(&cluster, |c| c.replica(1).thaw_receiver()).await;
    write.await.expect("no panic").expect("committed");
    for session in [&plain, &asked, &elsewhere] {
        assert_eq!(strict_on_primary(session, LIMIT, COUNT).await.expect("read"), 1);
    }
}

/// Where a replica's life is over before it was asked again, another one that is past it settles what it showed; a
/// long transaction on the primary does so only once it is over.
///
/// # Panics
/// If the promise is broken.
pub async fn a_fallback_waits_for_older_transactions_of_the_primary<S: Subject>() {
    let stage = Stage::<S>::set(2, "CREATE TABLE t (id int)", Config::default(), &[]).await;
    let db = connect(&stage, &[0, 1], true).await;
    let session = db.new_session();
    let mut old = db.begin().await.expect("begun");
    old.execute("INSERT INTO t VALUES (1)").await.expect("written");
    stage.db.new_session().execute("INSERT INTO t VALUES (2)").await.expect("written");
    until("a replica shows the newer one", || async {
        session.number(Some(STRICT.into()), COUNT).await.expect("read") == Some(1)
    })
    .await;
    let node = session.last_served().expect("served").node;
    let refused = strict_on_primary(&session, Duration::from_millis(200), COUNT).await.expect_err("one is older");
    assert_eq!(S::refusal(&refused), Some(PrimaryReason::Unsettled), "{refused}");
    assert_eq!(session.last_served(), None, "it was served nowhere");
    fault(&stage.cluster, move |c| c.replica(node.index() - 1).crash()).await;
    old.commit().await.expect("committed");
    assert_eq!(strict_on_primary(&session, LIMIT, COUNT).await.expect("read"), 2);
}

/// A standby shows a commit before its position has passed it, and does so for as long as it takes to remove the files
/// that the commit drops. Held open by stopping the replay there; the other replica has replayed all but that record.
///
/// # Panics
/// If the promise is broken.
pub async fn what_one_replica_is_still_replaying_no_other_read_misses<S: Subject>() {
    switch_off();
    const TABLES: &str = "DO $$ BEGIN FOR i IN 1..1500 LOOP EXECUTE 'CREATE TABLE x' || i || '()'; END LOOP; END $$";
    const DROP: &str = "BEGIN; INSERT INTO t VALUES (1); \
        DO $$ BEGIN FOR i IN 1..1500 LOOP EXECUTE 'DROP TABLE x' || i; END LOOP; END $$; COMMIT";
    let settings = [("max_locks_per_transaction", "4000")];
    let stage = Stage::<S>::set(2, "CREATE TABLE t (id int)", Config::default(), &settings).await;
    let cluster = &stage.cluster;
    let mut held = false;
    while !held {
        fault(cluster, |c| c.primary().sql(TABLES).map(drop)).await;
        cluster.wait_caught_up(LIMIT).expect("caught up");
        // It replays everything but the record of the commit itself.
        fault(cluster, |c| c.replica(1).set_apply_delay(Duration::from_secs(3600))).await;
        fault(cluster, |c| {
            let shown = || c.replica(0).sql(COUNT).map(|rows| rows[0][0].as_deref() == Some("1"));
            std::thread::scope(|scope| {
                let commit = scope.spawn(|| c.primary().sql(DROP));
                while !shown()? {}
                c.replica(0).freeze_replay()?;
                commit.join().expect("no panic").map(drop)
            })
        })
        .await;
        let position = |index: usize| {
            let rows = cluster.replica(index).sql("SELECT pg_last_wal_replay_lsn()").expect("asked");
            rows[0][0].as_deref().and_then(|text| text.parse::<read_router::Lsn>().ok()).expect("a position")
        };
        until("the other replica is at the commit", || async {
            let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'RecoveryApplyDelay'";
            cluster.replica(1).sql(waits).expect("asked")[0][0].as_deref() == Some("1")
        })
        .await;
        held = position(0) == position(1);
        if !held {
            // Too late: the files were gone already.
            fault(cluster, |c| c.replica(0).thaw_replay()).await;
            fault(cluster, |c| c.replica(1).set_apply_delay(Duration::ZERO)).await;
            cluster.primary().sql("DELETE FROM t").expect("written");
            cluster.wait_caught_up(LIMIT).expect("caught up");
        }
    }
    // A session whose first read has seen the commit. It may keep to its replica; where it is resumed it has none.
    let db = loop {
        let db = connect(&stage, &[0, 1], false).await;
        if db.number(Some(ReadClass::Eventual.into()), COUNT).await.expect("read") == Some(1) {
            break db;
        }
    };
    let token = db.token().await;
    let mut on_first = 0;
    for round in 0..200 {
        let session = if round % 2 == 0 { db.clone() } else { db.resume(token.clone()) };
        let seen = session.number(Some(STRICT.into()), COUNT).await.expect("read");
        assert!(seen == Some(1), "{BROKEN} the row is gone again: {:?}", session.last_served());
        on_first += u32::from(session.last_served().is_some_and(|s| s.node == NodeId::replica(0)));
    }
    assert!(on_first > 0, "{:?}", db.stats());
    fault(cluster, |c| c.replica(0).thaw_replay()).await;
    fault(cluster, |c| c.replica(1).set_apply_delay(Duration::ZERO)).await;
    until("the other one serves it too", || async {
        let session = db.resume(token.clone());
        assert_eq!(session.number(Some(STRICT.into()), COUNT).await.expect("read"), Some(1));
        session.last_served().is_some_and(|s| s.node == NodeId::replica(1))
    })
    .await;
}

/// The closing notes' figures: how many replica-then-primary pairs go back, and what not going back costs.
///
/// # Panics
/// If the promise is broken.
pub async fn pairs_of_a_replica_read_and_a_fallback<S: Subject>() {
    let pairs = amount(100, 2_000);
    let schema =
        "CREATE TABLE r (id int PRIMARY KEY, v bigint); INSERT INTO r SELECT g, 0 FROM generate_series(1, 16) g";
    let stage = Stage::<S>::set(2, schema, Config::default(), &[]).await;
    // As with a synchronous standby in another place: commits take a few milliseconds more, and the near one shows them.
    fault(&stage.cluster, |c| c.primary().set("synchronous_standby_names", c.replica(1).name())).await;
    fault(&stage.cluster, |c| c.primary().set("synchronous_commit", "remote_apply")).await;
    fault(&stage.cluster, |c| c.replica(1).set_apply_delay(Duration::from_millis(5))).await;
    let writers: Vec<_> = (1..=4)
        .map(|id| {
            let session = stage.db.new_session();
            tokio::spawn(async move {
                loop {
                    session.execute(&format!("UPDATE r SET v = v + 1 WHERE id = {id}")).await.expect("written");
                }
            })
        })
        .collect();
    for monotonic in [false, true] {
        let db = connect(&stage, &[0], monotonic).await;
        let (mut back, mut refused, mut took) = (0, 0, Vec::new());
        let session = db.new_session();
        while took.len() < usize::try_from(pairs).expect("few") {
            let sum = "SELECT sum(v)::bigint FROM r";
            let shown =
                session.number(Some(STRICT.wait(LIMIT)), sum).await.expect("read").expect("an aggregate has a row");
            if session.last_served().is_none_or(|served| served.node.is_primary()) {
                continue;
            }
            let began = Instant::now();
            match strict_on_primary(&session, LIMIT, sum).await {
                Ok(then) => back += u32::from(then < shown),
                Err(error) if S::refusal(&error).is_some() => refused += 1,
                Err(error) => panic!("{error}"),
            }
            took.push(began.elapsed());
        }
        took.sort_unstable();
        let at = |part: usize| took[took.len() * part / 1000].as_secs_f64() * 1000.0;
        println!(
            "monotonic fallback {monotonic}: {back} of {pairs} pairs went back, {refused} refused; \
             the fallback took {:.2} ms (median), {:.2} ms (p99)",
            at(500),
            at(990)
        );
        assert_eq!(refused, 0);
        assert!(if monotonic { back == 0 } else { back > 0 }, "{BROKEN} {back} of {pairs} went back");
    }
    writers.iter().for_each(tokio::task::JoinHandle::abort);
}
