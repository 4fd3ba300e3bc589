//! Whose connection a pool hands out, and since when it has been open.
//!
//! A read may trust an observation of a server only on a connection that was open before the server was asked,
//! and a write's token lies on the branch of the write's own connection. sqlx keeps no such notes with a
//! connection: it shows its age alone, and that only inside the pool's hooks. So each pool logs its openings here,
//! and a connection that comes back from the idle queue is found again by its age; where the log is not clear,
//! the connection itself is asked.

use std::{
    cell::Cell,
    future::Future,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use read_router::{Greeting, NodeId, Opened, Time, UnexpectedAnswer, live::now, probe};
use sqlx::{PgConnection, Row, pool::PoolConnectionMetadata, postgres::PgRow};

tokio::task_local! {
    /// Filled by the pool's hooks while a connection is acquired inside [`acquiring`]. The one task-local there
    /// is: sqlx gives its hooks no other way to say something to the one who acquires.
    static ACQUIRED: Cell<Acquired>;
    /// Set with it, for those who may go away while they acquire.
    static ARRIVED: Arc<AtomicBool>;
}

/// What is known of an acquired connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Acquired {
    /// No hook has run yet.
    #[default]
    Nothing,
    /// The server would not say whose connection it is.
    Unknown,
    /// Whose it is, and since when at the latest.
    Known(Opened),
}

impl Acquired {
    pub(crate) fn opened(self) -> Option<Opened> {
        match self {
            Self::Known(opened) => Some(opened),
            Self::Nothing | Self::Unknown => None,
        }
    }
}

/// Runs `acquire` and returns what the pool's hooks said of the connection that it acquired.
pub(crate) async fn acquiring<T>(acquire: impl Future<Output = T>) -> (T, Acquired) {
    let scoped = async {
        let out = acquire.await;
        (out, ACQUIRED.with(Cell::get))
    };
    ACQUIRED.scope(Cell::new(Acquired::Nothing), scoped).await
}

/// The same, and sets `arrived` as soon as there is a connection.
pub(crate) async fn acquiring_until<T>(arrived: Arc<AtomicBool>, acquire: impl Future<Output = T>) -> (T, Acquired) {
    ARRIVED.scope(arrived, acquiring(acquire)).await
}

fn tell(acquired: Acquired) {
    // Outside of `acquiring`, as when the pool opens connections ahead, nobody asks.
    let _ = ACQUIRED.try_with(|cell| cell.set(acquired));
    let _ = ARRIVED.try_with(|arrived| arrived.store(true, Ordering::Release));
}

/// The connections that one pool has opened.
#[derive(Debug)]
pub(crate) struct Openings {
    /// A write's fate is asked for by its server process, so of the primary's pool each connection must be known for
    /// itself, and its branch with it.
    is_primary: bool,
    log: Mutex<Vec<Entry>>,
    /// One opening at a time is logged, so that the entries lie apart.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The connection was logged at this moment and became a member of the pool right after.
    logged_at: Time,
    greeting: Option<Greeting>,
    /// Found by its age before, so that the age points at no other.
    exact: bool,
}

/// Entries lie at least this far apart, so that an age points at one of them.
const APART: Duration = Duration::from_millis(2);
/// A task may be held up this long between logging a connection and handing it to the pool.
const HELD_UP: Duration = Duration::from_millis(50);
/// More than the connections of any pool.
const KEPT: usize = 4096;

impl Openings {
    pub(crate) fn new(id: NodeId) -> Self {
        Self { is_primary: id.is_primary(), log: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    /// To be run last when a connection has been opened.
    pub(crate) async fn opened(&self, connection: &mut PgConnection) -> Result<Option<Opened>, sqlx::Error> {
        let greeting = greet(connection).await?;
        let turn = self.turn.lock().await;
        let last = self.with_log(|log| log.last().map(|entry| entry.logged_at));
        if let Some(wait) = last.map(|last| APART.saturating_sub(now().since(last))).filter(|w| !w.is_zero()) {
            tokio::time::sleep(wait).await;
        }
        let logged_at = self.with_log(|log| {
            let logged_at = now();
            if log.len() >= KEPT {
                log.drain(..KEPT / 2);
            }
            log.push(Entry { logged_at, greeting, exact: false });
            logged_at
        });
        drop(turn);
        let opened = greeting.map(|greeting| Opened { at: logged_at, greeting });
        tell(opened.map_or(Acquired::Unknown, Acquired::Known));
        Ok(opened)
    }

    /// To be run when an idle connection is about to be handed out. One of the primary's pool that had no branch when it
    /// was opened, since its server was a standby, is asked again: it may have been promoted.
    pub(crate) async fn acquired(
        &self,
        connection: &mut PgConnection,
        meta: &PoolConnectionMetadata,
    ) -> Result<Acquired, sqlx::Error> {
        let born = now().before(meta.age);
        let settled = self.find(born).filter(|found| !self.is_primary || found.is_none_or(|g| g.branch.is_some()));
        let acquired = match settled {
            Some(Some(greeting)) => Acquired::Known(Opened { at: born, greeting }),
            Some(None) => Acquired::Unknown,
            None => match greet(connection).await? {
                Some(greeting) => {
                    self.note(born, greeting);
                    Acquired::Known(Opened { at: born, greeting })
                }
                None => Acquired::Unknown,
            },
        };
        tell(acquired);
        Ok(acquired)
    }

    /// The greeting of the connection born at `born`; `None` if the log does not settle it.
    fn find(&self, born: Time) -> Option<Option<Greeting>> {
        self.with_log(|log| {
            let end = log.partition_point(|entry| entry.logged_at <= born);
            let start = log[..end].partition_point(|entry| entry.logged_at < born.before(HELD_UP));
            let (nearest, others) = log[start..end].split_last()?;
            let is_it = nearest.exact && born.since(nearest.logged_at) < APART / 2;
            let side = |entry: &Entry| entry.greeting.map(|g| (g.instance, g.branch));
            let alike = !self.is_primary && others.iter().all(|other| side(other) == side(nearest));
            (is_it || alike || others.is_empty()).then_some(nearest.greeting)
        })
    }

    /// The connection born at `born` has said whose it is.
    fn note(&self, born: Time, greeting: Greeting) {
        self.with_log(|log| {
            log.retain(|entry| entry.greeting.is_none_or(|g| g.backend != greeting.backend));
            let at = log.partition_point(|entry| entry.logged_at <= born);
            log.insert(at, Entry { logged_at: born, greeting: Some(greeting), exact: true });
        });
    }

    fn with_log<T>(&self, f: impl FnOnce(&mut Vec<Entry>) -> T) -> T {
        // A panic while it is held leaves a log that is at worst unclear, and unclear is asked again.
        f(&mut self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

/// Asks a connection whose it is; `None` if the server refuses to say or says something unexpected.
pub(crate) async fn greet(connection: &mut PgConnection) -> Result<Option<Greeting>, sqlx::Error> {
    match greeting(connection).await {
        Ok(greeting) => Ok(Some(greeting)),
        Err(sqlx::Error::Database(error)) => {
            tracing::warn!(target: "read_router::monitor", code = ?error.code(), "a server refused to say which one it is; connections to it prove nothing");
            Ok(None)
        }
        Err(sqlx::Error::Decode(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Asks a connection whose it is.
pub(crate) async fn greeting(connection: &mut PgConnection) -> Result<Greeting, sqlx::Error> {
    let row = sqlx::raw_sql(probe::GREETING).fetch_one(connection).await?;
    Greeting::read(texts(&row)?).map_err(unexpected)
}

/// Asks a connection of a pool without our hooks whose it is, and makes it read-only first where it must be.
pub(crate) async fn greet_untracked(
    connection: &mut PgConnection,
    read_only: bool,
) -> Result<Option<Greeting>, sqlx::Error> {
    static READ_ONLY_FIRST: LazyLock<String> = LazyLock::new(|| format!("{}; {}", probe::READ_ONLY, probe::GREETING));
    if !read_only {
        return greet(connection).await;
    }
    let row = sqlx::raw_sql(sqlx::AssertSqlSafe(READ_ONLY_FIRST.as_str())).fetch_one(connection).await?;
    Ok(Greeting::read(texts(&row)?).ok())
}

/// Asks a server where it is.
pub(crate) async fn position(connection: &mut PgConnection) -> Result<read_router::Answer, sqlx::Error> {
    let rows = probe(connection).await?;
    let [first, second] = rows.as_slice() else {
        return Err(sqlx::Error::Protocol(format!("the probe was answered by {} rows in place of two", rows.len())));
    };
    let (position, rest) = (texts(first)?, texts(second)?);
    read_router::Answer::read(position, rest).map_err(unexpected)
}

pub(crate) fn texts<const N: usize>(row: &PgRow) -> Result<[Option<&str>; N], sqlx::Error> {
    let mut columns = [None; N];
    for (index, column) in columns.iter_mut().enumerate() {
        *column = row.try_get(index)?;
    }
    Ok(columns)
}

#[cfg(not(read_router_mutants))]
async fn probe(connection: &mut PgConnection) -> Result<Vec<PgRow>, sqlx::Error> {
    sqlx::raw_sql(probe::PROBE).fetch_all(connection).await
}

/// The same, in the wrong order where the rule about it is off.
#[cfg(read_router_mutants)]
async fn probe(connection: &mut PgConnection) -> Result<Vec<PgRow>, sqlx::Error> {
    use read_router::mutants::{Rule, is_off};
    let statements: Vec<_> = probe::PROBE.split("; ").collect();
    match statements.as_slice() {
        [isolation, position, timeline] if is_off(Rule::PositionFirst) => {
            let text = sqlx::AssertSqlSafe([*isolation, *timeline, *position].join("; "));
            let mut rows = sqlx::raw_sql(text).fetch_all(connection).await?;
            rows.reverse();
            Ok(rows)
        }
        _ => sqlx::raw_sql(probe::PROBE).fetch_all(connection).await,
    }
}

fn unexpected(error: UnexpectedAnswer) -> sqlx::Error {
    sqlx::Error::Decode(Box::new(error))
}
