//! The questions that are put to a server, and how its answers read.
//!
//! The texts are the same for every driver. Each is sent as one simple query and answered by text rows.

use crate::{Branch, Instance, Lsn, Role, SystemId, Time, Timeline, WalLayout};

/// Asks a server where it is. One simple query of three statements, of which the last two are answered by one row each.
///
/// The position is read first and the timeline second, in statements of their own: a standby that switches
/// to a new timeline in between has then the position of the older one, which the newer one contains. The
/// other way round a position on the new timeline would be taken for one on the old.
///
/// Row 1: in recovery (`t`/`f`), position. Row 2: timeline by the server's own word, timeline by the control
/// file, and the `xmin` and the `xmax` of a snapshot that is taken after the position: hence the first statement, since
/// with a stricter default isolation all statements of a query share one snapshot. All of it may be read by an ordinary role, but for the own word of a standby: that needs
/// `pg_read_all_stats`, which `pg_monitor` includes.
pub const PROBE: &str = "\
SET TRANSACTION ISOLATION LEVEL READ COMMITTED; \
SELECT r::text, (CASE WHEN r THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_insert_lsn() END)::text \
FROM pg_catalog.pg_is_in_recovery() AS r; \
SELECT (CASE WHEN pg_catalog.pg_is_in_recovery() THEN (SELECT received_tli::bigint FROM pg_catalog.pg_stat_wal_receiver) \
ELSE ('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint END)::text, \
(SELECT GREATEST(c.timeline_id, r.min_recovery_end_timeline) FROM pg_catalog.pg_control_checkpoint() AS c, pg_catalog.pg_control_recovery() AS r)::text, \
pg_catalog.pg_snapshot_xmin(s)::text, pg_catalog.pg_snapshot_xmax(s)::text FROM pg_catalog.pg_current_snapshot() AS s";

/// Asks a new connection whose it is. One row.
///
/// Cluster, start of the server in microseconds, its port, WAL block and segment size, the backend's pid and
/// its start in microseconds, in recovery, the timeline (a primary's own word; a running primary never changes it), and
/// the database's OID, which a physical replica shares. Functions rather than views over them: a new connection has planned
/// nothing yet, and each relation costs it a millisecond.
pub const GREETING: &str = "\
SELECT (SELECT system_identifier FROM pg_catalog.pg_control_system())::text, \
(EXTRACT(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint::text, \
pg_catalog.current_setting('port'), \
pg_catalog.current_setting('wal_block_size'), \
pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size'))::text, \
pg_catalog.pg_backend_pid()::text, \
(SELECT (EXTRACT(epoch FROM backend_start) * 1000000)::bigint::text FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid())), \
pg_catalog.pg_is_in_recovery()::text, \
(CASE WHEN pg_catalog.pg_is_in_recovery() THEN NULL \
ELSE ('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint END)::text, \
(SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())::text";

/// Makes a connection of a replica's pool read-only; a statement, since a pooler may refuse it as a start-up option.
pub const READ_ONLY: &str = "SET default_transaction_read_only = on";

/// Asks whether a server process is still there, the one behind a lost connection: one row with the number of them, 0 or 1.
/// `end_it` has the server end it first, which the role that owns it may do.
///
/// A role that may not see when a process was started knows it by its pid alone, and does not end it.
#[must_use]
pub fn is_alive(backend: Backend, end_it: bool) -> String {
    let Backend { pid, started_us } = backend;
    let started = started_us.map_or_else(|| "NULL".to_owned(), |at| at.to_string());
    format!(
        "SELECT count(*), count(*) FILTER (WHERE {end_it} AND is_it AND pg_catalog.pg_terminate_backend(pid)) \
         FROM (SELECT pid, (EXTRACT(epoch FROM backend_start) * 1000000)::bigint = {started}::bigint AS is_it \
         FROM pg_catalog.pg_stat_activity WHERE pid = {pid}) AS process WHERE COALESCE(is_it, true)"
    )
}

/// An answer to [`PROBE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// What the server is.
    pub role: Role,
    /// A primary's insert position or a replica's replay position, as it stands.
    pub lsn: Lsn,
    /// The timeline; `None` if the server would not say.
    pub timeline: Option<Timeline>,
    /// Whether the timeline is the server's own word rather than the control file's.
    pub exact: bool,
    /// The edge of what it shows: see [`Observation::xid`](crate::Observation::xid).
    pub xid: Option<u64>,
}

/// An answer to [`GREETING`]: whose connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Greeting {
    /// The server.
    pub instance: Instance,
    /// How it cuts its log.
    pub layout: WalLayout,
    /// The process that serves the connection.
    pub backend: Backend,
    /// The OID of the database that the connection is to.
    pub database: u32,
    /// A primary's branch; `None` of a server in recovery, which may still change it.
    pub branch: Option<Branch>,
}

/// A server process, by its pid and, since pids come again, its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Backend {
    /// `pg_backend_pid()`.
    pub pid: i32,
    /// `backend_start`, in microseconds since 1970; `None` if the role may not see it.
    pub started_us: Option<i64>,
}

/// What is known of a pooled connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opened {
    /// A moment after the connection had been opened.
    pub at: Time,
    /// Whose it is.
    pub greeting: Greeting,
}

impl Opened {
    /// Whether its server was in recovery then: it proves nothing for what a primary must show.
    #[must_use]
    pub fn is_in_recovery(self) -> bool {
        self.greeting.branch.is_none()
    }
}

/// The server's answer is not one that the question can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the server answered the {question} with {found}; is it PostgreSQL 14 or newer, reached without a statement-rewriting proxy?"
)]
pub struct UnexpectedAnswer {
    question: &'static str,
    found: &'static str,
}

impl UnexpectedAnswer {
    pub(crate) fn new(question: &'static str, found: &'static str) -> Self {
        Self { question, found }
    }
}

impl Answer {
    /// Reads the two rows of [`PROBE`], the position's and the rest; `None` stands for NULL.
    ///
    /// # Errors
    /// If a column cannot be read; a server that has no position (one that is still restoring) has none.
    pub fn read(position: [Option<&str>; 2], rest: [Option<&str>; 4]) -> Result<Self, UnexpectedAnswer> {
        let odd = |found| UnexpectedAnswer { question: "probe", found };
        let role = match position[0] {
            Some("true" | "t") => Role::Replica,
            Some("false" | "f") => Role::Primary,
            _ => return Err(odd("no word on recovery")),
        };
        let lsn = position[1].and_then(|text| text.parse().ok()).ok_or_else(|| odd("no position"))?;
        let [own, control, xmin, xmax] = rest;
        let [own, control] =
            [own, control].map(|text| text.and_then(|t| t.parse().ok()).filter(|t| *t > 0).map(Timeline));
        let xid = match role {
            Role::Primary => xmin,
            Role::Replica => xmax,
        };
        let xid = xid.and_then(|text| text.parse().ok());
        Ok(Self { role, lsn, timeline: own.or(control), exact: own.is_some(), xid })
    }
}

impl Greeting {
    /// Reads the row of [`GREETING`]; `None` stands for NULL.
    ///
    /// # Errors
    /// If a column cannot be read.
    pub fn read(row: [Option<&str>; 10]) -> Result<Self, UnexpectedAnswer> {
        let odd = |found| UnexpectedAnswer { question: "greeting", found };
        let [system, started, port, block, segment, pid, backend_start, recovery, timeline, database] = row;
        let number = |text: Option<&str>| text.and_then(|t| t.parse::<i64>().ok());
        // A bigint made of an unsigned number: the sign is its highest bit.
        let system = SystemId(number(system).ok_or_else(|| odd("no system identifier"))?.cast_unsigned());
        let size = |text| number(text).and_then(|n| u64::try_from(n).ok());
        let timeline = number(timeline).and_then(|t| u32::try_from(t).ok()).map(Timeline);
        Ok(Self {
            instance: Instance {
                system,
                started_us: number(started).ok_or_else(|| odd("no start time"))?,
                port: number(port).and_then(|p| u16::try_from(p).ok()).unwrap_or(0),
            },
            layout: size(block)
                .zip(size(segment))
                .and_then(|(block, segment)| WalLayout::new(block, segment))
                .ok_or_else(|| odd("no WAL layout"))?,
            backend: Backend {
                pid: number(pid).and_then(|p| i32::try_from(p).ok()).ok_or_else(|| odd("no backend pid"))?,
                started_us: number(backend_start),
            },
            database: number(database).and_then(|oid| u32::try_from(oid).ok()).ok_or_else(|| odd("no database"))?,
            branch: match recovery {
                Some("true" | "t") => None,
                Some("false" | "f") => timeline.map(|timeline| Branch { system, timeline }),
                _ => return Err(odd("no word on recovery")),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_answers() {
        let answer = Answer::read([Some("true"), Some("0/3")], [None, Some("2"), Some("8"), Some("9")]).unwrap();
        assert_eq!((answer.role, answer.timeline, answer.exact), (Role::Replica, Some(Timeline(2)), false));
        assert_eq!(answer.xid, Some(9), "a replica shows nothing above xmax");
        let answer = Answer::read([Some("false"), Some("0/3")], [Some("3"), Some("2"), Some("8"), Some("9")]).unwrap();
        assert_eq!((answer.role, answer.timeline, answer.exact), (Role::Primary, Some(Timeline(3)), true));
        assert_eq!(answer.xid, Some(8), "a primary shows all below xmin");
        let answer = Answer::read([Some("true"), Some("0/3")], [Some("0"), None, None, None]).unwrap();
        assert_eq!((answer.timeline, answer.exact), (None, false), "0 is no timeline");
        for (recovery, position) in [(None, Some("0/3")), (Some("true"), None), (Some("x"), Some("0/3"))] {
            assert!(Answer::read([recovery, position], [None; 4]).is_err());
        }
    }

    #[test]
    fn reads_greetings() {
        let row = |system, block, recovery| {
            [
                Some(system),
                Some("1"),
                Some("5432"),
                Some(block),
                Some("16777216"),
                Some("7"),
                None,
                Some(recovery),
                Some("1"),
                Some("5"),
            ]
        };
        let greeting = Greeting::read(row("-1", "8192", "false")).unwrap();
        assert_eq!(greeting.instance.system, SystemId(u64::MAX));
        assert_eq!(greeting.branch.unwrap().timeline, Timeline(1));
        assert_eq!(Greeting::read(row("5", "8192", "true")).unwrap().branch, None);
        assert!(Greeting::read(row("x", "8192", "true")).is_err());
        assert!(Greeting::read(row("5", "0", "true")).is_err());
        assert!(Greeting::read(row("5", "8192", "")).is_err());
    }
}
