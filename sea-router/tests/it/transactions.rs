//! Transactions: whole on one server, and clean however they end.

use std::{pin::Pin, sync::Arc, task::Poll, time::Duration};

use read_router::{Config, PrimaryReason, ReadClass};
use read_router_scenarios::{LIMIT, Stage, Subject, amount, fault, until};
use sea_orm::{
    AccessMode, ConnectionTrait, DatabaseConnection, DbBackend, DbErr, IsolationLevel, Statement, StreamTrait,
    TransactionError, TransactionTrait,
};
use sea_router::{RoutedTransaction, RoutingConnection};

use crate::Sea;

const SCHEMA: &str = "CREATE TABLE t (id int PRIMARY KEY, v bigint); INSERT INTO t VALUES (0, 0)";

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

async fn is_replica(db: &impl ConnectionTrait) -> bool {
    let recovering = "SELECT (setting = 'on')::int::bigint FROM pg_settings WHERE name = 'in_hot_standby'";
    number(db, recovering).await.expect("a setting") == 1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_of_a_transaction_is_on_the_primary() {
    let Stage { cluster: _cluster, db } = stage(1).await;
    let session = db.0.new_session();
    for view in [session.clone(), session.eventual(), session.must_see_my_write(), session.on_primary()] {
        let outer = view.begin().await.unwrap();
        assert!(!is_replica(&outer).await);
        outer.execute_unprepared("UPDATE t SET v = v + 1 WHERE id = 0").await.unwrap();
        let inner = outer.begin().await.unwrap();
        assert!(!is_replica(&inner).await);
        inner.execute_unprepared("UPDATE t SET v = v + 10 WHERE id = 0").await.unwrap();
        inner.rollback().await.unwrap();
        let inner = outer.begin().await.unwrap();
        inner.execute_unprepared("UPDATE t SET v = v + 100 WHERE id = 0").await.unwrap();
        inner.commit().await.unwrap();
        outer.commit().await.unwrap();
    }
    assert_eq!(number(&session.must_see_my_write(), "SELECT v FROM t").await.unwrap(), 404);
    let failed: Result<(), _> = session
        .transaction::<_, (), DbErr>(|transaction| {
            Box::pin(async move {
                transaction.execute_unprepared("UPDATE t SET v = 0").await?;
                Err(DbErr::Custom("no".to_owned()))
            }) as Pin<Box<dyn Future<Output = _> + Send + '_>>
        })
        .await;
    assert!(matches!(failed, Err(TransactionError::Transaction(DbErr::Custom(_)))), "{failed:?}");
    assert_eq!(number(&session.must_see_my_write(), "SELECT v FROM t").await.unwrap(), 404);
    let token = {
        let transaction = session.begin().await.unwrap();
        transaction.execute_unprepared("UPDATE t SET v = 7").await.unwrap();
        transaction.commit_token().await.unwrap()
    };
    assert_eq!(number(&db.0.resume(token).must_see_my_write(), "SELECT v FROM t").await.unwrap(), 7);
    assert!(db.stats().primary_for(PrimaryReason::Transaction) >= 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_transaction_of_a_class_runs_whole_on_one_replica() {
    let Stage { cluster, db } = stage(2).await;
    let session = db.0.new_session();
    session.execute_unprepared("UPDATE t SET v = 5").await.unwrap();
    for isolation in [None, Some(IsolationLevel::RepeatableRead)] {
        let view = session.read(ReadClass::MustSeeMyWrite.wait(LIMIT));
        let transaction = view.begin_with_config(isolation, Some(AccessMode::ReadOnly)).await.unwrap();
        assert!(is_replica(&transaction).await);
        assert_eq!(number(&transaction, "SELECT v FROM t").await.unwrap(), 5);
        let error = transaction.execute_unprepared("UPDATE t SET v = 6").await.unwrap_err();
        assert!(error.to_string().contains("read-only"), "{error}");
        transaction.rollback().await.unwrap();
    }
    // A write in it is loud, and is not repeated elsewhere.
    assert_eq!(number(&session.on_primary(), "SELECT v FROM t").await.unwrap(), 5);
    // Without a class, or not READ ONLY, it is the primary's.
    let plain = session.begin_with_config(None, Some(AccessMode::ReadOnly)).await.unwrap();
    assert!(!is_replica(&plain).await);
    drop(plain);
    // No standby has SERIALIZABLE: READ ONLY on the primary.
    let view = session.eventual();
    let serializable =
        view.begin_with_config(Some(IsolationLevel::Serializable), Some(AccessMode::ReadOnly)).await.unwrap();
    assert!(!is_replica(&serializable).await);
    assert!(serializable.execute_unprepared("UPDATE t SET v = 6").await.is_err());
    drop(serializable);
    assert_eq!(session.last_served().and_then(|s| s.reason), Some(PrimaryReason::Isolation));
    // No replica has the write in time: READ ONLY on the primary, which sees it.
    for index in 0..2 {
        fault(&cluster, move |c| c.replica(index).pause_replay()).await;
    }
    session.execute_unprepared("UPDATE t SET v = 8").await.unwrap();
    let view = session.must_see_my_write();
    let late = view.begin_with_config(None, Some(AccessMode::ReadOnly)).await.unwrap();
    assert_eq!(number(&late, "SELECT v FROM t").await.unwrap(), 8);
    assert!(late.execute_unprepared("UPDATE t SET v = 6").await.is_err());
    late.commit().await.unwrap();
    let refused = session.read(ReadClass::MustSeeMyWrite.or_error());
    assert!(refused.begin_with_config(None, Some(AccessMode::ReadOnly)).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_writes_counts_as_contact() {
    use futures_util::StreamExt;
    let Stage { cluster: _cluster, db } = stage(1).await;
    let strict = ReadClass::MustSeeMyWrite;
    for round in 1..=50 {
        let session = db.0.new_session();
        let text = format!(
            "INSERT INTO t SELECT g, 1 FROM generate_series({}, {}) g RETURNING id",
            round * 100,
            round * 100 + 99
        );
        let mut stream = session.stream_raw(sql(&text)).await.unwrap();
        let rows = if round % 2 == 0 { 100 } else { 3 };
        for _ in 0..rows {
            assert!(stream.next().await.unwrap().is_ok());
        }
        if round % 2 == 0 {
            assert!(stream.next().await.is_none());
        }
        drop(stream);
        // Dropped early it is in doubt, then done: in either case nothing is missing.
        until("the write is settled", || async {
            let seen = number(&session.read(strict), &format!("SELECT count(*) FROM t WHERE id / 100 = {round}")).await;
            seen.unwrap() == 100 && !session.token().await.is_unknown()
        })
        .await;
    }
    // A stream of a read is served by the replica, and its errors are the statement's.
    let session = db.0.new_session();
    let mut stream = session.eventual().stream_raw(sql("SELECT id FROM t")).await.unwrap();
    assert!(stream.next().await.unwrap().is_ok());
    drop(stream);
    assert_eq!(session.last_served().and_then(|s| s.reason), None);
    let view = session.eventual();
    let mut failing = view.stream_raw(sql("SELECT 1 / (id - id) FROM t")).await.unwrap();
    let error = failing.next().await.unwrap().unwrap_err();
    assert!(error.to_string().contains("division by zero"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_looks_like_a_read_is_repeated_loudly_or_fails() {
    let Stage { cluster, db } = Stage::<Sea>::set(1, "CREATE SEQUENCE s", Config::default(), &[]).await;
    // Made by someone else, after the catalogue was read.
    cluster.primary().sql("CREATE VIEW next AS SELECT nextval('s') AS n").unwrap();
    cluster.wait_caught_up(Duration::from_secs(30)).unwrap();
    let session = db.0.new_session();
    assert_eq!(number(&session.eventual(), "SELECT n FROM next").await.unwrap(), 1);
    assert_eq!(session.last_served().and_then(|s| s.reason), Some(PrimaryReason::Misrouted));
    assert_eq!(db.stats().misrouted, 1);
    let strict = RoutingConnection::builder(cluster.primary().url())
        .replica(cluster.replica(0).url())
        .on_misrouted(sea_router::Misrouted::Fail)
        .table("next", sea_router::Access::Read)
        .connect()
        .await
        .unwrap();
    let error = number(&strict.eventual(), "SELECT n FROM next").await.unwrap_err();
    assert!(error.to_string().contains("nextval"), "{error}");
}

/// Rounds of transactions that are nested, rolled back, panic, or are cancelled in `BEGIN`, in a statement or in
/// `COMMIT`: afterwards no connection is left in a transaction, and no session has forgotten a write.
///
/// Each worker has a pool of one connection: if a round left it in a transaction, the next statement of the same pool
/// would not be seen from outside.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_behind() {
    let Stage { cluster, db } = stage(1).await;
    fault(&cluster, |c| c.replica(0).set_apply_delay(Duration::from_millis(30))).await;
    let outside = sea_orm::Database::connect(crate::options(&cluster.primary().url())).await.unwrap();
    let (rounds, pools) = (amount(150, 2_000), 8_u64);
    let workers: Vec<_> = (0..pools)
        .map(|worker| {
            let (outside, primary, replica) = (outside.clone(), cluster.primary().url(), cluster.replica(0).url());
            tokio::spawn(async move {
                let (mut primary, mut replica) = (crate::options(&primary), crate::options(&replica));
                primary.max_connections(1);
                replica.max_connections(1);
                let db = RoutingConnection::builder(primary).replica(replica).connect().await.unwrap();
                let marker = -1 - i64::try_from(worker).unwrap();
                db.execute_unprepared(&format!("INSERT INTO t VALUES ({marker}, 0)")).await.unwrap();
                for round in (worker..rounds).step_by(usize::try_from(pools).unwrap()) {
                    one_round(&db, &outside, round).await;
                    let mark = format!("UPDATE t SET v = {round} WHERE id = {marker}");
                    assert_eq!(db.execute_unprepared(&mark).await.unwrap().rows_affected(), 1);
                    let seen = number(&outside, &format!("SELECT v FROM t WHERE id = {marker}")).await.unwrap();
                    assert_eq!(seen, i64::try_from(round).unwrap(), "a transaction was left open by round {round}");
                }
                db.close().await.unwrap();
            })
        })
        .collect();
    for worker in workers {
        worker.await.expect("a worker does not panic");
    }
    let open = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
    for node in [cluster.primary(), cluster.replica(0)] {
        assert_eq!(node.sql(open).expect("a superuser asks")[0][0].as_deref(), Some("0"));
    }
    drop(db);
}

async fn one_round(db: &RoutingConnection, outside: &DatabaseConnection, round: u64) {
    let session = db.new_session();
    let id = round + 1;
    let insert = format!("INSERT INTO t VALUES ({id}, {id}) ON CONFLICT DO NOTHING");
    // Each step is dropped at each of the points where it waits, from the first one on.
    let polls = 1 + (round / 8) % 6;
    match round % 8 {
        0 => drop(polled(polls, session.begin()).await),
        1 => {
            let transaction = session.begin().await.unwrap();
            drop(polled(polls, transaction.execute_unprepared(&insert)).await);
        }
        2 => {
            let transaction = session.begin().await.unwrap();
            transaction.execute_unprepared(&insert).await.unwrap();
            let committed = polled(polls, transaction.commit()).await;
            sees_what_became_of_it(&session, outside, id, committed.is_some_and(|c| c.is_ok())).await;
        }
        3 => {
            let transaction = session.begin().await.unwrap();
            let nested = transaction.begin().await.unwrap();
            nested.execute_unprepared(&insert).await.unwrap();
            drop(nested);
            transaction.rollback().await.unwrap();
        }
        4 => panics_inside(session.clone(), insert).await,
        5 => {
            let cancelled = polled(polls, session.execute_unprepared(&insert)).await;
            sees_what_became_of_it(&session, outside, id, cancelled.is_some_and(|c| c.is_ok())).await;
        }
        6 => {
            let view = session.eventual();
            drop(polled(polls, view.begin_with_config(None, Some(AccessMode::ReadOnly))).await);
        }
        _ => {
            let transaction = session.begin().await.unwrap();
            transaction.execute_unprepared("SELECT 1 / 0").await.unwrap_err();
            transaction.commit().await.unwrap();
        }
    }
}

/// Polls `work` up to `polls` times and then drops it, as a caller that goes away does; `None` if it was not done.
async fn polled<T>(polls: u64, work: impl Future<Output = T>) -> Option<T> {
    let mut work = std::pin::pin!(work);
    let mut left = polls;
    std::future::poll_fn(|context| {
        left -= 1;
        match work.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// A write of which the caller may not have heard the end. Once the session knows the outcome, it sees a write that did
/// happen, though the replica applies it late; and an acknowledged one did happen.
async fn sees_what_became_of_it(
    session: &RoutingConnection,
    outside: &DatabaseConnection,
    id: u64,
    acknowledged: bool,
) {
    until("the session knows the outcome", || async { !session.token().await.is_unknown() }).await;
    let count = format!("SELECT count(*) FROM t WHERE id = {id}");
    let happened = number(outside, &count).await.unwrap();
    assert!(happened == 1 || !acknowledged, "an acknowledged write is gone");
    assert_eq!(number(&session.must_see_my_write(), &count).await.unwrap(), happened, "the session forgot its write");
}

async fn panics_inside(session: RoutingConnection, insert: String) {
    let task = tokio::spawn(async move {
        let _: Result<(), TransactionError<DbErr>> = session
            .transaction(|transaction: &RoutedTransaction| {
                Box::pin(async move {
                    transaction.execute_unprepared(&insert).await?;
                    std::panic::resume_unwind(Box::new("on purpose"));
                })
            })
            .await;
    });
    assert!(task.await.is_err_and(|error| error.is_panic()));
}

/// Dropping the last clone ends the probes and the pools; so does `close`, for all clones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_outlives_the_last_clone() {
    let Stage { cluster, db } = stage(1).await;
    let cluster = Arc::clone(&cluster);
    let others =
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let connections = || [cluster.primary(), cluster.replica(0)].map(|n| n.sql(others).expect("asked")[0][0].clone());
    let clone = db.0.must_see_my_write();
    number(&clone, "SELECT v FROM t").await.unwrap();
    drop(db);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(number(&clone, "SELECT v FROM t").await.unwrap(), 0, "a clone keeps it alive");
    drop(clone);
    until("all connections are gone", || async { connections().iter().all(|n| n.as_deref() == Some("0")) }).await;

    let db =
        Sea::connect(&cluster.primary().url(), &[cluster.replica(0).url()], Config::default().into()).await.unwrap();
    let clone = db.0.clone();
    db.0.close().await.unwrap();
    assert!(number(&clone, "SELECT v FROM t").await.is_err());
    until("all connections are gone", || async { connections().iter().all(|n| n.as_deref() == Some("0")) }).await;
}
