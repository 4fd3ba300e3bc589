//! Single processes of a server that are stopped where they are (SIGSTOP) while the server goes on.

use rustix::process::Signal;

use crate::{
    Error, Node,
    data::DEFAULT_DATABASE,
    fault::pid,
    process::{self},
    wait::{self, PATIENCE},
};

/// A process of a server that can be frozen on its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frozen {
    /// The walsender that feeds the standby of this name.
    Sender(String),
    /// The standby's end of its link.
    Receiver,
    /// What replays the log on a standby.
    Startup,
    /// What flushes the log of asynchronous commits.
    WalWriter,
}

impl Node {
    /// Stops a standby's walreceiver: it receives nothing, and acknowledges nothing.
    ///
    /// Where the standby is a synchronous one (see [`set`](Self::set)), commits then wait on the primary, while other
    /// standbys receive and show them. Until [`thaw_receiver`](Self::thaw_receiver); a promotion and an orderly stop wait
    /// for the walreceiver, so thaw it first.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the node has none: it is no standby, or follows a server that does not run.
    pub fn freeze_receiver(&self) -> Result<(), Error> {
        self.freeze_one(Frozen::Receiver)
    }

    /// Lets a frozen walreceiver go on. Does nothing if it is not frozen.
    ///
    /// # Errors
    /// If the process cannot be signalled.
    pub fn thaw_receiver(&self) -> Result<(), Error> {
        self.thaw_one(&Frozen::Receiver)
    }

    /// Stops the WAL writer: what `synchronous_commit = off` commits from here on stays in memory, and no standby gets it.
    ///
    /// Then [`crash`](Self::crash) and [`kill_backend`](Self::kill_backend) lose it, though it was acknowledged. A later
    /// synchronous commit, a checkpoint, or much more log brings it to disk all the same. Until
    /// [`thaw_wal_writer`](Self::thaw_wal_writer).
    ///
    /// # Errors
    /// [`Error::Timeout`] if the node has none: it is a standby.
    pub fn freeze_wal_writer(&self) -> Result<(), Error> {
        self.freeze_one(Frozen::WalWriter)
    }

    /// Lets a frozen WAL writer go on. Does nothing if it is not frozen.
    ///
    /// # Errors
    /// If the process cannot be signalled.
    pub fn thaw_wal_writer(&self) -> Result<(), Error> {
        self.thaw_one(&Frozen::WalWriter)
    }

    /// Stops a standby's replay wherever it is, also in the middle of a record; [`pause_replay`](Self::pause_replay) stops
    /// between two. Until [`thaw_replay`](Self::thaw_replay); a promotion and an orderly stop wait for it.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the node is no standby.
    pub fn freeze_replay(&self) -> Result<(), Error> {
        self.freeze_one(Frozen::Startup)
    }

    /// Lets frozen replay go on. Does nothing if it is not frozen.
    ///
    /// # Errors
    /// If the process cannot be signalled.
    pub fn thaw_replay(&self) -> Result<(), Error> {
        self.thaw_one(&Frozen::Startup)
    }

    pub(crate) fn freeze_one(&self, which: Frozen) -> Result<(), Error> {
        let (what, query) = match &which {
            Frozen::Sender(name) => (
                format!("walsender for {name}"),
                format!("SELECT pid FROM pg_stat_replication WHERE application_name = '{name}'"),
            ),
            Frozen::Receiver => ("walreceiver".to_owned(), "SELECT pid FROM pg_stat_wal_receiver".to_owned()),
            Frozen::Startup => (
                "startup process".to_owned(),
                "SELECT pid FROM pg_stat_activity WHERE backend_type = 'startup'".to_owned(),
            ),
            Frozen::WalWriter => (
                "WAL writer".to_owned(),
                "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'".to_owned(),
            ),
        };
        // One that was just started may not be at work yet.
        let found = wait::until(PATIENCE, || Ok(pid(&self.query(DEFAULT_DATABASE, &query)?)))?;
        let pid = found.ok_or_else(|| Error::Timeout {
            what: format!("{what} on {}", self.name()),
            limit: PATIENCE,
            found: "none: does the node have one in its role, and does the other end of its link run?".into(),
        })?;
        let mut state = self.lock();
        let ours = match state.running()? {
            Some(server) => server.family()?.contains(&pid),
            None => false,
        };
        if !ours {
            return Err(self.not_running(&format!("freeze the {what} of")));
        }
        process::freeze(pid)?;
        state.frozen.push((which, pid));
        Ok(())
    }

    pub(crate) fn thaw_one(&self, which: &Frozen) -> Result<(), Error> {
        let mut state = self.lock();
        let family = match state.running()? {
            Some(server) => server.family()?,
            None => Vec::new(),
        };
        for (frozen, pid) in std::mem::take(&mut state.frozen) {
            if frozen != *which {
                state.frozen.push((frozen, pid));
            } else if family.contains(&pid) && !self.is_frozen() {
                process::signal(pid, Signal::CONT)?;
            }
        }
        Ok(())
    }
}
