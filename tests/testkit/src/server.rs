use std::{
    process::{Child, Command, ExitStatus},
    time::Duration,
};

use rustix::process::Signal;

use crate::{
    Error,
    process::{self, Pid},
    wait,
};

/// The processes of one running server: the postmaster and what it forked.
#[derive(Debug)]
pub(crate) struct Server {
    postmaster: Child,
    pid: Pid,
}

impl Server {
    pub(crate) fn spawn(command: &mut Command) -> Result<Self, Error> {
        let postmaster =
            command.spawn().map_err(Error::io(format!("cannot run {}", command.get_program().display())))?;
        let pid = Pid::try_from(postmaster.id()).expect("process ids fit in 31 bits");
        Ok(Self { postmaster, pid })
    }

    /// How the postmaster ended, `None` while it runs.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.postmaster.try_wait().map_err(Error::io("cannot ask whether a server ended"))
    }

    /// The processes below the postmaster.
    pub(crate) fn family(&self) -> Result<Vec<Pid>, Error> {
        process::descendants(self.pid)
    }

    /// Has the postmaster read its settings again.
    pub(crate) fn reload(&self) -> Result<(), Error> {
        process::signal(self.pid, Signal::HUP)
    }

    /// Stops every process where it is.
    pub(crate) fn freeze(&self) -> Result<(), Error> {
        // The postmaster first: a stopped one forks nobody who is not on the list.
        process::freeze(self.pid)?;
        for pid in self.family()? {
            process::freeze(pid)?;
        }
        Ok(())
    }

    /// Lets every process go on, but those in `except`.
    pub(crate) fn thaw(&self, except: &[Pid]) -> Result<(), Error> {
        for pid in self.family()? {
            if !except.contains(&pid) {
                process::signal(pid, Signal::CONT)?;
            }
        }
        process::signal(self.pid, Signal::CONT)
    }

    /// Asks the postmaster to shut down: SIGINT is fast, SIGQUIT immediate.
    pub(crate) fn ask_to_end(&self, signal: Signal) -> Result<(), Error> {
        process::signal(self.pid, signal)
    }

    /// Waits for the end of the postmaster; `false` if it still runs after the limit.
    pub(crate) fn ended_within(&mut self, limit: Duration) -> Result<bool, Error> {
        Ok(wait::until(limit, || self.ended())?.is_some())
    }

    /// SIGKILL to every process; returns once all are gone.
    pub(crate) fn kill(&mut self) -> Result<(), Error> {
        process::freeze(self.pid)?;
        let family = self.family()?;
        for &pid in family.iter().chain([&self.pid]) {
            process::signal(pid, Signal::KILL)?;
        }
        self.postmaster.wait().map_err(Error::io("cannot wait for the end of a server"))?;
        let limit = wait::PATIENCE;
        wait::until(limit, || Ok(process::living(&family)?.is_empty().then_some(())))?.ok_or_else(|| Error::Timeout {
            what: "end of a server's processes after SIGKILL".into(),
            limit,
            found: format!("{:?} still there", process::living(&family)),
        })
    }
}
