//! Many rounds of transactions that end in every way there is: nothing is left behind.

use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use diesel::result::{DatabaseErrorKind, Error};
use diesel_async::{
    AsyncConnection, AsyncConnectionCore, AsyncPgConnection, SimpleAsyncConnection, TransactionManager,
};
use diesel_router::{AsyncRouter, AsyncRoutingConnection, ReadClass, RoutedTransactions};
use futures_util::{FutureExt, TryStreamExt};
use read_router_scenarios::{LIMIT, amount, fault, until};
use read_router_testkit::{Cluster, Hold, Relay};

use super::number;
use crate::sync_support::{ROUNDS_SCHEMA, ask, cluster, has_no_connections};

/// What one worker has: pools of one connection each, behind a name of its own.
struct Worker {
    cluster: Arc<Cluster>,
    name: Relay,
    router: AsyncRouter,
    /// How often the server refused to serialise.
    conflicts: Arc<AtomicU64>,
}

const KINDS: u64 = 19;
const WORKERS: u64 = 4;

/// No connection is left in a transaction or lost to its pool, and no session has forgotten a write, whatever the round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_behind() {
    let cluster = tokio::task::spawn_blocking(|| cluster(1, ROUNDS_SCHEMA)).await.unwrap();
    let cluster = Arc::new(cluster);
    fault(&cluster, |c| c.replica(0).set_apply_delay(Duration::from_millis(30))).await;
    let rounds = amount(100, 2_000);
    let conflicts = Arc::new(AtomicU64::new(0));
    let running: Vec<_> = (0..WORKERS)
        .map(|index| {
            let (cluster, conflicts) = (cluster.clone(), conflicts.clone());
            tokio::spawn(async move {
                let name = Relay::to(cluster.primary()).unwrap();
                let builder = AsyncRouter::builder(name.url()).replica(cluster.replica(0).url()).pool_size(1);
                let router = builder.connect().await.unwrap();
                let worker = Worker { cluster, name, router, conflicts };
                let marker = -1 - i64::try_from(index).unwrap();
                ask(worker.cluster.primary(), &format!("INSERT INTO t VALUES ({marker}, 0) RETURNING id"));
                for round in (index..rounds).step_by(usize::try_from(WORKERS).unwrap()) {
                    worker.round(round).await;
                    worker.is_clean_after(round, marker).await;
                }
            })
        })
        .collect();
    for worker in running {
        worker.await.expect("a worker does not panic");
    }
    let conflicts = conflicts.load(Ordering::Relaxed);
    println!("{rounds} rounds, {conflicts} serialization failures");
    assert!(conflicts > 0);
    until("nothing is left on the servers", async || has_no_connections(&cluster)).await;
}

impl Worker {
    async fn round(&self, round: u64) {
        let id = round + 1;
        let insert = format!("INSERT INTO t VALUES ({id}, {id})");
        // Each step is dropped at each of the points where it waits, from the first one on.
        let (turn, mut conn) = (round / KINDS, self.router.session());
        let (polls, is_odd) = (1 + turn % 8, turn % 2 == 1);
        let acknowledged = match round % KINDS {
            0 => {
                let out = conn.transaction::<_, Error, _>(async |conn| {
                    conn.batch_execute(&insert).await?;
                    conn.batch_execute("INSERT INTO d VALUES (1), (1)").await
                });
                assert!(out.await.is_err(), "the constraint is checked by COMMIT");
                false
            }
            1 => {
                let work = conn.transaction::<(), Error, _>(async |conn| {
                    conn.batch_execute(&insert).await?;
                    resume_unwind(Box::new("in the closure"))
                });
                assert!(AssertUnwindSafe(work).catch_unwind().await.is_err());
                false
            }
            2 => {
                polled(polls, begin(&mut conn)).await;
                false
            }
            3 => {
                begin(&mut conn).await.unwrap();
                let out = polled(polls, conn.batch_execute(&insert)).await;
                is_odd && commit(&mut conn).await.is_ok() && out.is_some()
            }
            4 => {
                begin(&mut conn).await.unwrap();
                conn.batch_execute(&insert).await.unwrap();
                polled(polls, commit(&mut conn)).await.is_some_and(|out| out.is_ok())
            }
            5 => polled(polls, conn.batch_execute(&insert)).await.is_some_and(|out| out.is_ok()),
            6 => {
                polled(polls, conn.eventual().batch_execute("BEGIN READ ONLY")).await;
                false
            }
            7 => nested(&mut conn, &insert, turn, polls).await,
            8 => {
                let held = self.name.hold_question("BEGIN");
                assert!(self.broken(&held, begin(&mut conn)).await.is_err());
                false
            }
            9 => {
                begin(&mut conn).await.unwrap();
                let held = self.hold(is_odd, &insert);
                assert!(self.broken(&held, conn.batch_execute(&insert)).await.is_err());
                assert!(conn.batch_execute("SELECT 1").await.is_err(), "the transaction is lost");
                let _ = RoutedTransactions::rollback_transaction(&mut conn).await;
                false
            }
            10 => {
                begin(&mut conn).await.unwrap();
                conn.batch_execute(&insert).await.unwrap();
                let held = self.hold(is_odd, "COMMIT");
                assert!(self.broken(&held, commit(&mut conn)).await.is_err());
                false
            }
            11 => {
                begin(&mut conn).await.unwrap();
                conn.batch_execute(&insert).await.unwrap();
                let process = number(&mut conn, "SELECT pg_backend_pid()").await.unwrap();
                ask(self.cluster.primary(), &format!("SELECT pg_terminate_backend({process})::int"));
                match is_odd {
                    true => assert!(commit(&mut conn).await.is_err()),
                    false => assert!(conn.batch_execute("SELECT 1").await.is_err()),
                }
                false
            }
            12 => self.updated_by_another(&mut conn, id).await,
            13 => {
                let held = self.hold(is_odd, "BEGIN");
                dropped_in_flight(&held, begin(&mut conn)).await;
                held.release();
                false
            }
            14 => self.dropped_with_its_write(&mut conn, turn, &insert).await,
            15 => {
                begin(&mut conn).await.unwrap();
                conn.batch_execute(&insert).await.unwrap();
                assert!(conn.batch_execute("SELECT 1 / 0").await.is_err());
                let _ = commit(&mut conn).await;
                false
            }
            16 => {
                let sql = format!("{insert} RETURNING id");
                let rows = AsyncConnectionCore::load(&mut conn, diesel::sql_query(sql));
                if let Some(Ok(mut rows)) = polled(polls, rows).await {
                    assert!(is_odd || rows.try_next().await.unwrap().is_some());
                }
                false
            }
            17 => self.written_askew(&mut conn, id).await,
            _ => {
                let mut checkout = conn.checkout_write().await.unwrap();
                polled(polls, checkout.batch_execute(&insert)).await;
                let mut nested = conn.checkout_write().boxed();
                assert!((&mut nested).now_or_never().is_none(), "there is one connection");
                drop(nested);
                begin_plain(&mut checkout, polls).await;
                false
            }
        };
        let rest = conn.same_session();
        drop(conn);
        self.sees_what_became_of_it(rest, id, acknowledged, round).await;
    }

    /// Keeps the question or the answer.
    fn hold(&self, answer: bool, text: &str) -> Hold {
        if answer { self.name.hold_answer(text) } else { self.name.hold_question(text) }
    }

    /// Breaks the link while the work waits for its answer.
    async fn broken<T>(&self, held: &Hold, work: impl Future<Output = T>) -> T {
        let cut = async {
            until("it is under way", async || held.has_arrived()).await;
            self.name.cut();
        };
        tokio::join!(work, cut).0
    }

    /// A conflict with a row that another has changed since: tried again, it works.
    async fn updated_by_another(&self, conn: &mut AsyncRoutingConnection, id: u64) -> bool {
        ask(self.cluster.primary(), &format!("INSERT INTO t VALUES ({id}, 0) RETURNING v"));
        for attempt in 0.. {
            let mut transaction = conn.build_transaction().repeatable_read();
            let work = transaction.run(async |conn| {
                number(conn, &format!("SELECT v FROM t WHERE id = {id}")).await?;
                if attempt == 0 {
                    ask(self.cluster.primary(), &format!("UPDATE t SET v = -1 WHERE id = {id} RETURNING v"));
                }
                conn.batch_execute(&format!("UPDATE t SET v = {id} WHERE id = {id}")).await
            });
            if !self.is_to_be_tried_again(work.await) {
                assert!(attempt > 0, "it met the conflict");
                return true;
            }
        }
        false
    }

    /// A conflict that COMMIT finds, or the last statement before: tried again, it works.
    async fn written_askew(&self, conn: &mut AsyncRoutingConnection, id: u64) -> bool {
        let mut other = AsyncPgConnection::establish(&self.cluster.primary().url()).await.unwrap();
        for attempt in 0.. {
            let (mine, its) = (2 * id, 2 * id + 1);
            let mut transaction = conn.build_transaction().serializable();
            let work = transaction.run(async |conn| {
                number(conn, &format!("SELECT count(*) FROM skew WHERE id = {its}")).await?;
                conn.batch_execute(&format!("INSERT INTO skew VALUES ({mine}, 0)")).await?;
                if attempt == 0 {
                    // It may be the one to be refused.
                    let _: Result<(), Error> = other
                        .build_transaction()
                        .serializable()
                        .run(async |other| {
                            number(other, &format!("SELECT count(*) FROM skew WHERE id = {mine}")).await?;
                            other.batch_execute(&format!("INSERT INTO skew VALUES ({its}, 0)")).await
                        })
                        .await;
                }
                conn.batch_execute(&format!("INSERT INTO t VALUES ({id}, {id})")).await
            });
            if !self.is_to_be_tried_again(work.await) {
                return true;
            }
        }
        false
    }

    fn is_to_be_tried_again(&self, out: Result<(), Error>) -> bool {
        match out {
            Ok(()) => false,
            Err(Error::DatabaseError(DatabaseErrorKind::SerializationFailure, _)) => {
                self.conflicts.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// The caller goes away while the question or the answer is on its way, for certain.
    async fn dropped_with_its_write(&self, conn: &mut AsyncRoutingConnection, turn: u64, insert: &str) -> bool {
        let answer = turn % 2 == 1;
        match turn / 2 % 3 {
            0 => {
                begin(conn).await.unwrap();
                conn.batch_execute(insert).await.unwrap();
                let held = self.hold(answer, "COMMIT");
                dropped_in_flight(&held, commit(conn)).await;
                is_in_doubt(conn).await;
                held.release();
            }
            1 => {
                let held = self.hold(answer, insert);
                dropped_in_flight(&held, conn.batch_execute(insert)).await;
                is_in_doubt(conn).await;
                held.release();
            }
            _ => {
                begin(conn).await.unwrap();
                let held = self.hold(answer, insert);
                dropped_in_flight(&held, conn.batch_execute(insert)).await;
                held.release();
                // It is done in its turn, and so is what follows.
                return commit(conn).await.is_ok();
            }
        }
        false
    }

    /// A write of which the caller may not have heard the end. Once the session knows the outcome it sees a write that did
    /// happen, though the replica applies it late; and an acknowledged one did happen.
    async fn sees_what_became_of_it(&self, mut conn: AsyncRoutingConnection, id: u64, acknowledged: bool, round: u64) {
        until("the session knows the outcome", async || !conn.token().await.is_unknown()).await;
        let count = format!("SELECT count(*) FROM t WHERE id = {id} AND v = {id}");
        let happened = ask(self.cluster.primary(), &count);
        assert!(happened == 1 || !acknowledged, "round {round}: an acknowledged write is gone");
        let strict = ReadClass::MustSeeMyWrite;
        let seen = number(conn.read(strict.wait(LIMIT).or_error()), &count).await;
        assert_eq!(seen, Ok(happened), "round {round}: the session forgot its write");
    }

    /// The pools have their connection back, with no transaction on it.
    async fn is_clean_after(&self, round: u64, marker: i64) {
        let update = format!("UPDATE t SET v = {round} WHERE id = {marker}");
        let write = async || self.router.session().batch_execute(&update).await.is_ok();
        until("the primary is reached", write).await;
        let seen = ask(self.cluster.primary(), &format!("SELECT v FROM t WHERE id = {marker}"));
        assert_eq!(seen, i64::try_from(round).unwrap(), "round {round} has left a transaction open");
        until("the pools have their connections back", async || {
            let status = self.router.status().await;
            status.iter().all(|pool| pool.connections == pool.idle && pool.connections <= pool.max_size)
        })
        .await;
    }
}

async fn begin(conn: &mut AsyncRoutingConnection) -> Result<(), Error> {
    RoutedTransactions::begin_transaction(conn).await
}

async fn commit(conn: &mut AsyncRoutingConnection) -> Result<(), Error> {
    RoutedTransactions::commit_transaction(conn).await
}

/// A transaction of a checkout that is dropped with it.
async fn begin_plain(conn: &mut AsyncPgConnection, polls: u64) {
    type Manager = <AsyncPgConnection as AsyncConnection>::TransactionManager;
    polled(polls, Manager::begin_transaction(conn)).await;
}

/// A savepoint whose caller goes away while it is set, released, or rolled back to.
async fn nested(conn: &mut AsyncRoutingConnection, insert: &str, turn: u64, polls: u64) -> bool {
    begin(conn).await.unwrap();
    conn.batch_execute(insert).await.unwrap();
    match turn % 3 {
        0 => {
            polled(polls, begin(conn)).await;
        }
        1 => {
            begin(conn).await.unwrap();
            polled(polls, commit(conn)).await;
        }
        _ => {
            begin(conn).await.unwrap();
            polled(polls, RoutedTransactions::rollback_transaction(conn)).await;
        }
    }
    let depth = |conn: &mut AsyncRoutingConnection| {
        RoutedTransactions::transaction_manager_status_mut(conn).transaction_depth().unwrap()
    };
    let mut done = true;
    while depth(conn).is_some() {
        done = commit(conn).await.is_ok();
        if !done {
            let _ = RoutedTransactions::rollback_transaction(conn).await;
        }
    }
    done
}

/// Its caller has gone, and nobody knows yet what became of the write.
async fn is_in_doubt(conn: &AsyncRoutingConnection) {
    assert!(conn.same_session().token().await.is_unknown());
}

/// Polls `work` up to `polls` times and then drops it, as a caller that goes away does; `None` if it was not done.
async fn polled<T>(polls: u64, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
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

/// Drops `work` once what it has sent, or what it is answered, is held.
async fn dropped_in_flight<T>(held: &Hold, work: impl Future<Output = T>) {
    let mut work = pin!(work);
    tokio::select! {
        _ = &mut work => panic!("it is held"),
        () = until("it is held", async || held.has_arrived()) => {}
    }
}
