//! Faults and lag of one node that the server itself takes part in.

use std::time::Duration;

use rustix::process::Signal;

use crate::{
    Error, Node,
    data::DEFAULT_DATABASE,
    process::{self, Pid},
    sql::{APPLICATION, Rows},
    wait::{self, PATIENCE},
};

impl Node {
    /// Stops replay on a standby; returns once it is really paused. It still receives, and serves reads.
    ///
    /// A restart or a promotion ends the pause.
    ///
    /// # Errors
    /// [`Error::Sql`] if the node is no standby, [`Error::Timeout`] if replay does not pause.
    pub fn pause_replay(&self) -> Result<(), Error> {
        self.query(DEFAULT_DATABASE, "SELECT pg_wal_replay_pause()")?;
        // In the middle of an apply delay the state stays "requested", but nothing is applied any more.
        let paused = "SELECT pg_get_wal_replay_pause_state() = 'paused' OR EXISTS (SELECT FROM pg_stat_activity
            WHERE backend_type = 'startup' AND wait_event = 'RecoveryApplyDelay')";
        self.wait_for("pause of replay", paused)
    }

    /// Lets replay go on.
    ///
    /// # Errors
    /// [`Error::Sql`] if the node is no standby.
    pub fn resume_replay(&self) -> Result<(), Error> {
        self.query(DEFAULT_DATABASE, "SELECT pg_wal_replay_resume()")?;
        self.wait_for("end of the pause of replay", "SELECT pg_get_wal_replay_pause_state() = 'not paused'")
    }

    /// Has a standby apply each commit only so long after it happened (`recovery_min_apply_delay`).
    ///
    /// In effect when this returns, also for a commit that waits already. Zero ends it. Survives a restart; a node
    /// that does not run takes it up at its next start.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the server does not take the setting, as when `ALTER SYSTEM` has set another.
    pub fn set_apply_delay(&self, delay: Duration) -> Result<(), Error> {
        if !self.configure(|state| state.conf.apply_delay = delay)? {
            return Ok(());
        }
        // New sessions are forked by a postmaster that has first told the startup process.
        let setting = "SELECT setting = '{}' FROM pg_settings WHERE name = 'recovery_min_apply_delay'";
        let setting = setting.replace("{}", &delay.as_millis().to_string());
        self.wait("change of recovery_min_apply_delay", || self.query_anew(DEFAULT_DATABASE, &setting))
    }

    /// Kills one client's backend with SIGKILL; the postmaster then ends all sessions and recovers.
    ///
    /// Its start time stays the same, so this crash cannot be told by it. Takes a client's session if there is one,
    /// else opens one. Returns once the server accepts connections again.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the server does not notice, [`Error::Boot`] if it does not come back.
    pub fn kill_backend(&self) -> Result<(), Error> {
        let mut witness = self.connect(DEFAULT_DATABASE)?;
        let mut own = self.connect(DEFAULT_DATABASE)?;
        let clients = format!(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'
            AND pid <> pg_backend_pid() ORDER BY application_name = '{APPLICATION}', backend_start LIMIT 1"
        );
        // At least the witness is there.
        let rows = own.query(&clients).map_err(|failure| self.sql_error(failure))?;
        process::signal(pid(&rows).unwrap_or_default(), Signal::KILL)?;
        // The postmaster would wait five seconds for a frozen process. All of them end in any case; the WAL writer must not
        // come to write before.
        for (_, frozen) in std::mem::take(&mut self.lock().frozen) {
            process::signal(frozen, Signal::KILL)?;
        }
        if !(witness.closed_within(PATIENCE) && own.closed_within(PATIENCE)) {
            return Err(Error::Timeout {
                what: format!("end of all sessions of {} after SIGKILL to one", self.name()),
                limit: PATIENCE,
                found: format!("an open session; the end of the log:\n{}", self.log_tail(10)),
            });
        }
        self.wait_ready()
    }

    /// Makes a standby a primary; returns once it accepts writes. Ends a pause of replay.
    ///
    /// The old primary is not touched and goes on accepting writes: crash it first, or have a split brain.
    ///
    /// # Errors
    /// [`Error::Sql`] if the node is no standby, [`Error::Timeout`] if it does not finish.
    pub fn promote(&self) -> Result<(), Error> {
        self.query(DEFAULT_DATABASE, "SELECT pg_promote(wait => false)")?;
        self.wait_for("end of recovery", "SELECT NOT pg_is_in_recovery()")?;
        self.lock().upstream = None;
        Ok(())
    }

    /// Waits until a query that gives one boolean says true.
    pub(crate) fn wait_for(&self, what: &str, query: &str) -> Result<(), Error> {
        self.wait(what, || self.query(DEFAULT_DATABASE, query))
    }

    fn wait(&self, what: &str, ask: impl Fn() -> Result<Rows, Error>) -> Result<(), Error> {
        let done = wait::until(PATIENCE, || {
            let rows = ask()?;
            Ok((rows.first().and_then(|row| row[0].as_deref()) == Some("t")).then_some(()))
        })?;
        done.ok_or_else(|| Error::Timeout {
            what: format!("{what} on {}", self.name()),
            limit: PATIENCE,
            found: format!("the end of its log:\n{}", self.log_tail(10)),
        })
    }
}

pub(crate) fn pid(rows: &[Vec<Option<String>>]) -> Option<Pid> {
    rows.first()?.first()?.as_deref()?.parse().ok()
}
