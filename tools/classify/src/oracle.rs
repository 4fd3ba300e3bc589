//! The proof: what is called a read is run on a real standby, and must neither fail there nor change anything.

mod observe;

use std::{fmt, time::Duration};

use postgres::{Client, error::SqlState};
use read_router::{Known, Pins, StatementKind};
use read_router_testkit::Cluster;

use self::observe::{Null, Observed};
use crate::{Error, input::Statement, server, split::split};

/// A statement may run this long; then it is not judged.
const LIMIT_MS: u32 = 5_000;
/// The standby may take so long to replay what came before.
const REPLAY: Duration = Duration::from_secs(60);
/// Replay may cancel a read; it is run again so often.
const ATTEMPTS: usize = 5;

/// What became of a statement that was called a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It ran on the standby and changed nothing.
    Harmless,
    /// The primary gives the same error: the statement is at fault, or its tables are not there.
    FailsEverywhere(String),
    /// It took too long, or the server had no room.
    NotJudged(String),
    /// It failed on the standby only, or changed something.
    Unsafe(String),
}

/// How many statements met which end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// All of them.
    pub statements: usize,
    /// Those that are called reads.
    pub reads: usize,
    /// Of these: ran and changed nothing.
    pub harmless: usize,
    /// Failed on both servers alike.
    pub fail_everywhere: usize,
    /// Took too long.
    pub not_judged: usize,
    /// Should not have been called reads.
    pub unsafe_ones: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { statements, reads, harmless, fail_everywhere, not_judged, unsafe_ones } = self;
        write!(
            f,
            "{statements} statements, {reads} called reads: {harmless} ran and changed nothing, {fail_everywhere} fail on the \
             primary too, {not_judged} not judged, {unsafe_ones} unsafe"
        )
    }
}

/// A primary and its standby, and what is known of the primary's catalogue.
pub struct Oracle {
    cluster: Cluster,
    /// Runs what is no read, in the order of a script.
    script: Client,
    /// Looks for what a read changed.
    watcher: Client,
    pins: Pins,
    known: Known,
    /// The primary's catalogue may have changed.
    is_outdated: bool,
    before: Observed,
}

impl Oracle {
    /// Starts the servers and runs a script on the primary that makes what statements name; statements of it that fail are
    /// passed over.
    ///
    /// # Errors
    /// If there are no servers.
    pub fn start(fixture: &str, pins: Pins) -> Result<Self, Error> {
        let cluster = Cluster::builder().replicas(1).database("oracle").setting("max_connections", "50").start()?;
        let mut watcher = server::connect(&cluster.primary().url())?;
        let script = server::connect(&cluster.primary().url())?;
        let known = server::known(&mut watcher, pins.clone())?;
        let before = Observed::of_primary(&mut watcher)?;
        let mut oracle = Self { cluster, script, watcher, pins, known, is_outdated: true, before };
        for piece in split(fixture) {
            oracle.run_on_primary(piece.sql)?;
        }
        oracle.refresh()?;
        Ok(oracle)
    }

    /// What statements are judged by at the moment.
    #[must_use]
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// Judges statements one after the other, each in a session of its own. Those that are no reads are run on the primary
    /// if `with_writes`, as for a script: later ones may need what they make.
    ///
    /// # Errors
    /// If a server goes away.
    pub fn judge(
        &mut self,
        statements: &[Statement],
        with_writes: bool,
        mut each: impl FnMut(&Statement, &Verdict),
    ) -> Result<Summary, Error> {
        let mut summary = Summary { statements: statements.len(), ..Summary::default() };
        for statement in statements {
            if with_writes && !StatementKind::of(&statement.sql).is_read() {
                self.run_on_primary(&statement.sql)?;
                continue;
            }
            if self.is_outdated {
                self.refresh()?;
            }
            if !StatementKind::known(&statement.sql, &self.known).is_read() {
                continue;
            }
            summary.reads += 1;
            let verdict = self.verdict(&statement.sql)?;
            match &verdict {
                Verdict::Harmless => summary.harmless += 1,
                Verdict::FailsEverywhere(_) => summary.fail_everywhere += 1,
                Verdict::NotJudged(_) => summary.not_judged += 1,
                Verdict::Unsafe(_) => summary.unsafe_ones += 1,
            }
            each(statement, &verdict);
        }
        Ok(summary)
    }

    /// The rows of every table and the state of every sequence, of both servers: by name, a hash of what is in it.
    ///
    /// # Errors
    /// If a server goes away.
    pub fn contents(&mut self) -> Result<Vec<String>, Error> {
        const TABLES: &str = "SELECT pg_catalog.format( \
                'SELECT %L, pg_catalog.md5(pg_catalog.string_agg(%s::text, chr(10) ORDER BY %s::text)) FROM ONLY %s t', \
                c.oid::regclass, row, row, c.oid::regclass) \
            FROM pg_catalog.pg_class c, \
                LATERAL (SELECT CASE c.relkind WHEN 'S' THEN '(last_value, is_called)' ELSE 't' END AS row) r \
            WHERE c.oid >= 16384 AND c.relkind IN ('r', 'S', 'm') AND c.relpersistence = 'p' ORDER BY 1";
        self.cluster.wait_caught_up(REPLAY)?;
        let mut contents = Vec::new();
        for (is_primary, url) in [(true, self.cluster.primary().url()), (false, self.cluster.replica(0).url())] {
            let mut client = session(&url)?;
            let queries = server::rows(&mut client, TABLES)?;
            for query in queries.iter().filter_map(|row| row.get(0)) {
                let row = server::rows(&mut client, query)?;
                let found = row.first().map(|row| (row.get(0), row.get(1)));
                contents.push(format!("{is_primary} {found:?}"));
            }
        }
        Ok(contents)
    }

    /// What the statement does on the standby, whatever it is called.
    ///
    /// # Errors
    /// If a server goes away.
    pub fn verdict(&mut self, sql: &str) -> Result<Verdict, Error> {
        let mut outcome = Err(String::new());
        for _ in 0..ATTEMPTS {
            outcome = match self.run_on_standby(sql)? {
                Ok(found) => Ok(found),
                Err(error) => match error.code() {
                    Some(&SqlState::T_R_SERIALIZATION_FAILURE) => {
                        outcome = Err("cancelled by replay".to_owned());
                        continue;
                    }
                    Some(&SqlState::QUERY_CANCELED | &SqlState::OUT_OF_MEMORY | &SqlState::DISK_FULL) => {
                        Err(error.to_string())
                    }
                    code => return self.on_both(sql, code.cloned(), &error),
                },
            };
            break;
        }
        let after = Observed::of_primary(&mut self.watcher)?;
        let changed = self.before.difference(&after);
        self.before = after;
        Ok(match (outcome, changed) {
            (_, Some(changed)) => Verdict::Unsafe(format!("the primary has changed: {changed}")),
            (Ok(Some(changed)), None) => Verdict::Unsafe(changed),
            (Ok(None), None) => Verdict::Harmless,
            (Err(cause), None) => Verdict::NotJudged(cause),
        })
    }

    /// Whether the primary gives the same error.
    fn on_both(&mut self, sql: &str, code: Option<SqlState>, error: &postgres::Error) -> Result<Verdict, Error> {
        let shown = match error.as_db_error() {
            Some(db) => format!("{} {}", db.code().code(), db.message()),
            None => error.to_string(),
        };
        if code == Some(SqlState::READ_ONLY_SQL_TRANSACTION) {
            return Ok(Verdict::Unsafe(shown));
        }
        let mut primary = session(&self.cluster.primary().url())?;
        primary.batch_execute("BEGIN")?;
        let there = run(&mut primary, sql);
        let _ = primary.batch_execute("ROLLBACK");
        self.before = Observed::of_primary(&mut self.watcher)?;
        let same = there.err().is_some_and(|error| error.code().cloned() == code);
        Ok(if same {
            Verdict::FailsEverywhere(shown)
        } else {
            Verdict::Unsafe(format!("the primary runs it, the standby does not: {shown}"))
        })
    }

    /// Runs it in a transaction in a new session; what it left in the one or the other.
    fn run_on_standby(&mut self, sql: &str) -> Result<Result<Option<String>, postgres::Error>, Error> {
        let mut standby = session(&self.cluster.replica(0).url())?;
        let before = Observed::of_session(&mut standby)?;
        standby.batch_execute("BEGIN")?;
        if let Err(error) = run(&mut standby, sql) {
            let _ = standby.batch_execute("ROLLBACK");
            let left = Observed::of_session(&mut standby).ok().and_then(|after| before.difference(&after));
            return Ok(left.map_or(Err(error), |left| Ok(Some(left))));
        }
        let inside = Observed::of_session(&mut standby)?;
        standby.batch_execute("COMMIT")?;
        let after = Observed::of_session(&mut standby)?;
        Ok(Ok(before.difference(&inside).or_else(|| before.difference(&after))))
    }

    /// Runs what is no read; an error of it is its own affair.
    fn run_on_primary(&mut self, sql: &str) -> Result<(), Error> {
        if reaches_out(sql) {
            return Ok(());
        }
        self.is_outdated = true;
        if self.script.is_closed() {
            self.script = server::connect(&self.cluster.primary().url())?;
        }
        let limited = self.script.batch_execute(&format!("SET statement_timeout = {LIMIT_MS}"));
        let _ = limited.and_then(|()| self.script.batch_execute(sql));
        Ok(())
    }

    /// Brings the standby and what is known of the catalogue up to date.
    fn refresh(&mut self) -> Result<(), Error> {
        self.cluster.wait_caught_up(REPLAY)?;
        self.known = server::known(&mut self.watcher, self.pins.clone())?;
        self.before = Observed::of_primary(&mut self.watcher)?;
        self.is_outdated = false;
        Ok(())
    }
}

impl fmt::Debug for Oracle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Oracle").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

fn session(url: &str) -> Result<Client, Error> {
    let mut config: postgres::Config = url.parse()?;
    config.options(&format!("-c statement_timeout={LIMIT_MS}"));
    Ok(config.connect(postgres::NoTls)?)
}

/// Runs one statement, each of its parameters NULL.
fn run(client: &mut Client, sql: &str) -> Result<(), postgres::Error> {
    match client.simple_query(sql) {
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_PARAMETER) => {}
        done => return done.map(drop),
    }
    // The failed attempt has ended the transaction.
    client.batch_execute("ROLLBACK; BEGIN")?;
    let statement = client.prepare(sql)?;
    let values: Vec<&(dyn postgres::types::ToSql + Sync)> = statement.params().iter().map(|_| &Null as _).collect();
    client.query(&statement, &values).map(drop)
}

/// What would leave the cluster, open a transaction around what follows, or wait for data.
fn reaches_out(sql: &str) -> bool {
    let upper = sql.to_ascii_uppercase();
    let mut words = upper.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    let first = words.next().unwrap_or_default();
    match first {
        "BEGIN" | "START" | "COMMIT" | "END" | "ROLLBACK" | "ABORT" | "SAVEPOINT" | "RELEASE" | "LOAD" => true,
        "COPY" => words.any(|word| matches!(word, "PROGRAM" | "STDIN" | "STDOUT")),
        "ALTER" => words.next() == Some("SYSTEM"),
        "DROP" => words.next() == Some("DATABASE"),
        _ => false,
    }
}
