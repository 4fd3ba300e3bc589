//! Many rounds of transactions that end in every way there is: nothing is left behind.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use diesel::{
    Connection, PgConnection, QueryResult,
    connection::{AnsiTransactionManager, LoadConnection, SimpleConnection, TransactionManager},
    pg::PgRowByRowLoadingMode,
    result::{DatabaseErrorKind, Error},
};
use diesel_router::{ReadClass, Router, RoutingConnection};
use read_router_scenarios::{LIMIT, amount};
use read_router_testkit::{Cluster, Hold, Relay};

use crate::sync_support::{Number, ROUNDS_SCHEMA, ask, cluster, has_no_connections, number, until};

/// What one worker has: pools of one connection each, behind a name of its own.
struct Worker<'a> {
    cluster: &'a Cluster,
    name: Relay,
    router: Router,
    /// How often the server refused to serialise.
    conflicts: &'a AtomicU64,
}

const KINDS: u64 = 17;
const WORKERS: u64 = 4;

/// No connection is left in a transaction or lost to its pool, and no session has forgotten a write, whatever the round.
#[test]
fn nothing_is_left_behind() {
    let cluster = cluster(1, ROUNDS_SCHEMA);
    cluster.replica(0).set_apply_delay(Duration::from_millis(30)).unwrap();
    let rounds = amount(100, 2_000);
    let conflicts = AtomicU64::new(0);
    thread::scope(|scope| {
        for index in 0..WORKERS {
            let (cluster, conflicts) = (&cluster, &conflicts);
            scope.spawn(move || {
                let name = Relay::to(cluster.primary()).unwrap();
                let builder = Router::builder(name.url()).replica(cluster.replica(0).url()).pool_size(1);
                let worker = Worker { cluster, name, router: builder.connect().unwrap(), conflicts };
                let marker = -1 - i64::try_from(index).unwrap();
                ask(cluster.primary(), &format!("INSERT INTO t VALUES ({marker}, 0) RETURNING id"));
                for round in (index..rounds).step_by(usize::try_from(WORKERS).unwrap()) {
                    worker.round(round);
                    worker.is_clean_after(round, marker);
                }
            });
        }
    });
    let conflicts = conflicts.into_inner();
    println!("{rounds} rounds, {conflicts} serialization failures");
    assert!(conflicts > 0);
    until("nothing is left on the servers", || has_no_connections(&cluster));
}

impl Worker<'_> {
    fn round(&self, round: u64) {
        let id = round + 1;
        let insert = format!("INSERT INTO t VALUES ({id}, {id})");
        let (turn, mut conn) = (round / KINDS, self.router.session());
        let is_odd = turn % 2 == 1;
        let acknowledged = match round % KINDS {
            0 => {
                let out = conn.transaction::<_, Error, _>(|conn| {
                    conn.batch_execute(&insert)?;
                    conn.batch_execute("INSERT INTO d VALUES (1), (1)")
                });
                assert!(out.is_err(), "the constraint is checked by COMMIT");
                false
            }
            1 => {
                let work = AssertUnwindSafe(|| {
                    conn.transaction::<(), Error, _>(|conn| {
                        conn.batch_execute(&insert)?;
                        resume_unwind(Box::new("in the closure"))
                    })
                });
                assert!(catch_unwind(work).is_err());
                false
            }
            2 => {
                let held = self.name.hold_question("BEGIN");
                // Nothing was begun, so that it is begun again elsewhere.
                self.broken(held, || begin(&mut conn)).unwrap();
                conn.batch_execute(&insert).unwrap();
                commit(&mut conn).is_ok()
            }
            3 => {
                begin(&mut conn).unwrap();
                let held = self.hold(is_odd, &insert);
                assert!(self.broken(held, || conn.batch_execute(&insert)).is_err());
                assert!(conn.batch_execute("SELECT 1").is_err(), "the transaction is lost");
                let _ = rollback(&mut conn);
                false
            }
            4 => {
                begin(&mut conn).unwrap();
                conn.batch_execute(&insert).unwrap();
                let held = self.hold(is_odd, "COMMIT");
                assert!(self.broken(held, || commit(&mut conn)).is_err());
                false
            }
            5 => {
                let held = self.hold(is_odd, &insert);
                assert!(self.broken(held, || conn.batch_execute(&insert)).is_err());
                false
            }
            6 => {
                begin(&mut conn).unwrap();
                conn.batch_execute(&insert).unwrap();
                let process = number(&mut conn, "SELECT pg_backend_pid()::bigint").unwrap().unwrap();
                let end = || ask(self.cluster.primary(), &format!("SELECT pg_terminate_backend({process})::int"));
                match turn % 3 {
                    0 => {
                        end();
                        assert!(conn.batch_execute("SELECT 1").is_err());
                    }
                    1 => {
                        end();
                        assert!(commit(&mut conn).is_err());
                    }
                    _ => {
                        let held = self.name.hold_question("COMMIT");
                        let out = meanwhile(
                            held,
                            || commit(&mut conn),
                            || {
                                end();
                                until("it has ended", || {
                                    let alive = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {process}");
                                    ask(self.cluster.primary(), &alive) == 0
                                });
                            },
                        );
                        assert!(out.is_err());
                    }
                }
                false
            }
            7 => {
                begin(&mut conn).unwrap();
                conn.batch_execute(&insert).unwrap();
                begin(&mut conn).unwrap();
                assert!(conn.batch_execute("SELECT 1 / 0").is_err());
                rollback(&mut conn).unwrap();
                begin(&mut conn).unwrap();
                conn.batch_execute("DELETE FROM d").unwrap();
                commit(&mut conn).unwrap();
                commit(&mut conn).is_ok()
            }
            8 => self.updated_by_another(&mut conn, id),
            9 => self.written_askew(&mut conn, id),
            10 => {
                begin(&mut conn).unwrap();
                conn.batch_execute(&insert).unwrap();
                if is_odd {
                    begin(&mut conn).unwrap();
                }
                false
            }
            11 => {
                let view = conn.eventual();
                AnsiTransactionManager::begin_transaction_sql(view, "BEGIN READ ONLY").unwrap();
                number(&mut conn, "SELECT count(*) FROM t").unwrap();
                is_odd && commit(&mut conn).is_err()
            }
            12 => {
                begin(&mut conn).unwrap();
                conn.batch_execute(&insert).unwrap();
                assert!(conn.batch_execute("SELECT 1 / 0").is_err());
                let _ = commit(&mut conn);
                false
            }
            13 => self.row_by_row(&mut conn, turn, &format!("{insert} RETURNING id")),
            14 => {
                conn.begin_test_transaction().unwrap();
                conn.batch_execute(&insert).unwrap();
                false
            }
            15 => {
                let mut checkout = conn.checkout_write().unwrap();
                if is_odd {
                    AnsiTransactionManager::begin_transaction(&mut *checkout).unwrap();
                }
                checkout.batch_execute(&insert).unwrap();
                !is_odd
            }
            _ => {
                let given: &mut PgConnection = conn.primary().unwrap();
                given.batch_execute(&insert).unwrap();
                if is_odd {
                    AnsiTransactionManager::begin_transaction(given).unwrap();
                }
                true
            }
        };
        let rest = conn.same_session();
        drop(conn);
        self.sees_what_became_of_it(rest, id, acknowledged, round);
    }

    /// Keeps the question or the answer.
    fn hold(&self, answer: bool, text: &str) -> Hold {
        if answer { self.name.hold_answer(text) } else { self.name.hold_question(text) }
    }

    /// Breaks the link while the work waits for its answer.
    fn broken<T>(&self, held: Hold, work: impl FnOnce() -> T) -> T {
        meanwhile(held, work, || self.name.cut())
    }

    /// Rows of a write that are read one by one: all, not all, or with the link broken.
    fn row_by_row(&self, conn: &mut RoutingConnection, turn: u64, sql: &str) -> bool {
        let load = |conn: &mut RoutingConnection| -> QueryResult<bool> {
            let mut rows = LoadConnection::<PgRowByRowLoadingMode>::load(conn, Number(sql))?;
            Ok(turn.is_multiple_of(3) || rows.next().is_some_and(|row| row.is_ok()))
        };
        match turn % 3 {
            2 => {
                let held = self.hold(turn % 2 == 1, sql);
                // The first row is waited for by whoever asks for it.
                self.broken(held, || load(conn)).is_ok_and(|is_there| is_there)
            }
            _ => load(conn).unwrap(),
        }
    }

    /// A conflict with a row that another has changed since: tried again, it works.
    fn updated_by_another(&self, conn: &mut RoutingConnection, id: u64) -> bool {
        ask(self.cluster.primary(), &format!("INSERT INTO t VALUES ({id}, 0) RETURNING v"));
        for attempt in 0.. {
            let out = conn.build_transaction().repeatable_read().run(|conn| {
                number(conn, &format!("SELECT v FROM t WHERE id = {id}"))?;
                if attempt == 0 {
                    ask(self.cluster.primary(), &format!("UPDATE t SET v = -1 WHERE id = {id} RETURNING v"));
                }
                conn.batch_execute(&format!("UPDATE t SET v = {id} WHERE id = {id}"))
            });
            if !self.is_to_be_tried_again(out) {
                assert!(attempt > 0, "it met the conflict");
                return true;
            }
        }
        false
    }

    /// A conflict that COMMIT finds, or the last statement before: tried again, it works.
    fn written_askew(&self, conn: &mut RoutingConnection, id: u64) -> bool {
        let mut other = PgConnection::establish(&self.cluster.primary().url()).unwrap();
        for attempt in 0.. {
            let (mine, its) = (2 * id, 2 * id + 1);
            let out = conn.build_transaction().serializable().run(|conn| {
                number(conn, &format!("SELECT count(*) FROM skew WHERE id = {its}"))?;
                conn.batch_execute(&format!("INSERT INTO skew VALUES ({mine}, 0)"))?;
                if attempt == 0 {
                    // It may be the one to be refused.
                    let _: Result<(), Error> = other.build_transaction().serializable().run(|other| {
                        number(other, &format!("SELECT count(*) FROM skew WHERE id = {mine}"))?;
                        other.batch_execute(&format!("INSERT INTO skew VALUES ({its}, 0)"))
                    });
                }
                conn.batch_execute(&format!("INSERT INTO t VALUES ({id}, {id})"))
            });
            if !self.is_to_be_tried_again(out) {
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

    /// A write of which the caller may not have heard the end. Once the session knows the outcome it sees a write that did
    /// happen, though the replica applies it late; and an acknowledged one did happen.
    fn sees_what_became_of_it(&self, mut conn: RoutingConnection, id: u64, acknowledged: bool, round: u64) {
        until("the session knows the outcome", || !conn.token().is_unknown());
        let count = format!("SELECT count(*) FROM t WHERE id = {id} AND v = {id}");
        let happened = ask(self.cluster.primary(), &count);
        assert!(happened == 1 || !acknowledged, "round {round}: an acknowledged write is gone");
        let strict = ReadClass::MustSeeMyWrite;
        let seen = number(conn.read(strict.wait(LIMIT).or_error()), &count);
        assert_eq!(seen, Ok(Some(happened)), "round {round}: the session forgot its write");
    }

    /// The pools have their connection back, with no transaction on it.
    fn is_clean_after(&self, round: u64, marker: i64) {
        let update = format!("UPDATE t SET v = {round} WHERE id = {marker}");
        until("the primary is reached", || self.router.session().batch_execute(&update).is_ok());
        let seen = ask(self.cluster.primary(), &format!("SELECT v FROM t WHERE id = {marker}"));
        assert_eq!(seen, i64::try_from(round).unwrap(), "round {round} has left a transaction open");
        until("the pools have their connections back", || {
            let status = self.router.status();
            status.iter().all(|pool| pool.connections == pool.idle && pool.connections <= pool.max_size)
        });
    }
}

/// Does something else once the question or the answer of `work` is held, and then lets it go on.
fn meanwhile<T>(held: Hold, work: impl FnOnce() -> T, other: impl FnOnce() + Send) -> T {
    thread::scope(|scope| {
        scope.spawn(move || {
            held.wait(LIMIT).unwrap();
            other();
            held.release();
        });
        work()
    })
}

fn begin(conn: &mut RoutingConnection) -> QueryResult<()> {
    AnsiTransactionManager::begin_transaction(conn)
}

fn commit(conn: &mut RoutingConnection) -> QueryResult<()> {
    AnsiTransactionManager::commit_transaction(conn)
}

fn rollback(conn: &mut RoutingConnection) -> QueryResult<()> {
    AnsiTransactionManager::rollback_transaction(conn)
}
