use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::Stdio,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::{
    Binaries, Error,
    conf::Conf,
    data::{self, DEFAULT_DATABASE},
    freeze::Frozen,
    process::Pid,
    server::Server,
    sql::{Connection, Failure, Rows},
    wait::{self, PATIENCE},
};

/// One server of a [`Cluster`](crate::Cluster): where it is, how to ask it, how to break it.
#[derive(Debug)]
pub struct Node {
    name: String,
    database: String,
    data: PathBuf,
    log: PathBuf,
    binaries: Binaries,
    port: u16,
    /// Beside the state, not in it: `sql` must not wait for a start in another thread.
    frozen: AtomicBool,
    /// A session that the next statement of the kit or of a test may take: to open one costs more than most statements.
    idle: Mutex<Option<(String, Connection)>>,
    state: Mutex<State>,
}

/// What a node's disk held at one moment; made by [`Node::disk`].
#[derive(Debug)]
pub struct Disk {
    copy: TempDir,
}

/// What changes while a node lives.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) server: Option<Server>,
    pub(crate) conf: Conf,
    /// Index of the node it replicates from.
    pub(crate) upstream: Option<usize>,
    /// Processes that are frozen on their own.
    pub(crate) frozen: Vec<(Frozen, Pid)>,
}

/// An advisory lock that is held until this is dropped.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct HeldLock {
    _session: Connection,
}

impl Node {
    pub(crate) fn new(name: String, database: String, data: PathBuf, binaries: Binaries, state: State) -> Self {
        Self {
            log: data.with_extension("log"),
            name,
            database,
            data,
            binaries,
            port: state.conf.port,
            frozen: AtomicBool::new(false),
            idle: Mutex::new(None),
            state: Mutex::new(state),
        }
    }

    /// `primary`, or `replica0` and so on: what the node was at the start, also after a promotion.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The TCP port on 127.0.0.1; the same for the life of the cluster.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Address for any client: `postgres://postgres@127.0.0.1:PORT/DATABASE`, a superuser without a password.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{}", self.port, self.database)
    }

    pub(crate) fn database(&self) -> &str {
        &self.database
    }

    /// Runs one or more statements in a session that has only its defaults; returns the rows of the last one that has any,
    /// as text.
    ///
    /// # Errors
    /// [`Error::Sql`] if the server refuses, [`Error::Io`] if there is no server or it went away,
    /// [`Error::State`] if it is frozen.
    pub fn sql(&self, sql: &str) -> Result<Rows, Error> {
        self.query(&self.database, sql)
    }

    /// Takes an advisory lock in a session of its own, for as long as what is returned lives: a gate for statements that ask for
    /// the same one.
    ///
    /// # Errors
    /// As [`sql`](Self::sql).
    pub fn hold_lock(&self, key: i64) -> Result<HeldLock, Error> {
        let mut session = self.connect(&self.database)?;
        let locked = session.query(&format!("SELECT pg_advisory_lock({key})"));
        locked.map_err(|failure| self.sql_error(failure))?;
        Ok(HeldLock { _session: session })
    }

    /// Whether the server's process runs; a frozen one does.
    ///
    /// # Errors
    /// If the operating system cannot tell.
    pub fn is_running(&self) -> Result<bool, Error> {
        Ok(self.lock().running()?.is_some())
    }

    /// Everything the server has logged since the cluster was made.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn log(&self) -> Result<String, Error> {
        let text = fs::read(&self.log).map_err(Error::io(format!("cannot read {}", self.log.display())))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Starts the server, after [`crash`](Self::crash) or [`stop`](Self::stop), on the same port.
    ///
    /// Returns once it accepts connections; a standby, once it accepts reads. Does nothing if it runs.
    ///
    /// # Errors
    /// [`Error::Boot`] with the end of the log, if the server ends or does not answer.
    pub fn start(&self) -> Result<(), Error> {
        self.spawn()?;
        self.wait_ready()
    }

    /// Shuts down in an orderly way (the "fast" mode) and waits for the end. Does nothing if it does not run.
    ///
    /// Thaws the node and its links first: a frozen process cannot shut down. A primary waits for its
    /// standbys to receive everything, so one that is frozen as a whole holds it up.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the server still runs after 30 seconds.
    pub fn stop(&self) -> Result<(), Error> {
        let mut state = self.lock();
        self.thaw_all(&mut state)?;
        let Some(server) = state.running()? else {
            return Ok(());
        };
        server.ask_to_end(Signal::INT)?;
        if !server.ended_within(PATIENCE)? {
            return Err(Error::Timeout {
                what: format!("shutdown of {}", self.name),
                limit: PATIENCE,
                found: format!("it still runs; the end of its log:\n{}", self.log_tail(10)),
            });
        }
        state.server = None;
        Ok(())
    }

    /// SIGKILL to every process of the server; returns once they are gone. Does nothing if it does not run.
    ///
    /// # Errors
    /// If the processes cannot be found or killed.
    pub fn crash(&self) -> Result<(), Error> {
        let mut state = self.lock();
        if let Some(server) = state.running()? {
            server.kill()?;
            data::remove_leftovers(&self.data);
        }
        state.server = None;
        state.frozen.clear();
        self.frozen.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// What the server's disk holds now: a crash may [go back](Self::crash_back_to) to it.
    ///
    /// The server stands still while it is copied.
    ///
    /// # Errors
    /// [`Error::State`] if the server does not run, [`Error::Io`] if there is no room.
    pub fn disk(&self) -> Result<Disk, Error> {
        let copy = tempfile::Builder::new().prefix("disk-").tempdir_in(self.data.parent().unwrap_or(&self.data));
        let copy = copy.map_err(Error::io("cannot make a folder for a copy"))?;
        self.freeze()?;
        let copied = data::copy(&self.binaries.account, &self.data, &copy.path().join("data"));
        self.thaw()?;
        copied.map(|()| Disk { copy })
    }

    /// A crash of the whole host whose disk had not kept what it had acknowledged since `disk` was taken: `fsync = off`, a
    /// cache without a battery, a virtual machine restored to an older picture.
    ///
    /// [`crash`](Self::crash), and the folder as it was then; [`start`](Self::start) follows. A standby may have what is
    /// gone here, and the same positions will be used again.
    ///
    /// # Errors
    /// If the processes cannot be killed or the files not be copied.
    pub fn crash_back_to(&self, disk: &Disk) -> Result<(), Error> {
        self.crash()?;
        let failed = || Error::io(format!("cannot restore {}", self.data.display()));
        fs::remove_dir_all(&self.data).map_err(failed())?;
        data::copy(&self.binaries.account, &disk.copy.path().join("data"), &self.data)?;
        // The lock of the server that was copied while it ran; its segment went with the crash.
        let _ = fs::remove_file(self.data.join("postmaster.pid"));
        Ok(())
    }

    /// Changes a setting of this node alone, in effect when this returns; a node that does not run takes it at its start.
    ///
    /// With `synchronous_standby_names` and the [names](Self::name) of standbys, those become synchronous ones. That one
    /// takes effect with the checkpointer, a moment later.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the server does not read its settings.
    pub fn set(&self, name: &str, value: &str) -> Result<(), Error> {
        const LOADED: &str = "SELECT pg_conf_load_time()::text";
        let before = if self.is_running()? { self.query(DEFAULT_DATABASE, LOADED)? } else { Vec::new() };
        let running = self.configure(|state| {
            state.conf.own.retain(|(known, _)| known != name);
            state.conf.own.push((name.to_owned(), value.to_owned()));
        })?;
        let is_read = || Ok((!running || self.query(DEFAULT_DATABASE, LOADED)? != before).then_some(()));
        wait::until(PATIENCE, is_read)?.ok_or_else(|| Error::Timeout {
            what: format!("change of {name} on {}", self.name),
            limit: PATIENCE,
            found: format!("the settings of before; the end of its log:\n{}", self.log_tail(10)),
        })
    }

    /// [`stop`](Self::stop) and [`start`](Self::start).
    ///
    /// # Errors
    /// Those of the two.
    pub fn restart(&self) -> Result<(), Error> {
        self.stop()?;
        self.start()
    }

    /// Stops every process of the server where it is (SIGSTOP): a host that hangs.
    ///
    /// Sessions stay open and get no answer; new connections are accepted by the system and get none either.
    ///
    /// # Errors
    /// [`Error::State`] if the server does not run.
    pub fn freeze(&self) -> Result<(), Error> {
        let mut state = self.lock();
        let Some(server) = state.running()? else {
            return Err(self.not_running("freeze"));
        };
        self.frozen.store(true, Ordering::SeqCst);
        server.freeze()
    }

    /// Lets a frozen server go on. Processes that were frozen on their own stay so.
    ///
    /// # Errors
    /// If the processes cannot be found or signalled.
    pub fn thaw(&self) -> Result<(), Error> {
        let mut state = self.lock();
        let alone: Vec<Pid> = state.frozen.iter().map(|&(_, pid)| pid).collect();
        if let Some(server) = state.running()? {
            server.thaw(&alone)?;
        }
        self.frozen.store(false, Ordering::SeqCst);
        Ok(())
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::SeqCst)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A test that panicked while it held the lock still wants its cluster cleaned up.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the processes without waiting, unless they run.
    pub(crate) fn spawn(&self) -> Result<(), Error> {
        let mut state = self.lock();
        if state.running()?.is_some() {
            return Ok(());
        }
        state.conf.write(&self.binaries.account, &self.data)?;
        let failed = || Error::io(format!("cannot open {}", self.log.display()));
        let log = File::options().create(true).append(true).open(&self.log).map_err(failed())?;
        let mut command = self.binaries.command("postgres", &self.data);
        command
            .arg("-D")
            .arg(&self.data)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed())?)
            .stderr(log)
            // A group of its own: Ctrl-C at the tests' terminal is not for the server.
            .process_group(0);
        state.server = Some(Server::spawn(&mut command)?);
        Ok(())
    }

    pub(crate) fn wait_ready(&self) -> Result<(), Error> {
        let mut found = String::new();
        let ready = wait::until(PATIENCE, || {
            if self.lock().running()?.is_none() {
                return Err(self.boot_error("it ended".into()));
            }
            // Another server may have taken the port: only the folder tells.
            match self.query_anew(DEFAULT_DATABASE, "SELECT current_setting('data_directory')") {
                Ok(rows) if rows[0][0].as_deref() == self.data.to_str() => Ok(Some(())),
                Ok(rows) => {
                    found = format!("port {} is another server's, of {:?}", self.port, rows[0][0]);
                    Ok(None)
                }
                // A frozen server does not get ready by waiting.
                Err(error @ Error::State { .. }) => Err(error),
                Err(error) => {
                    found = error.to_string();
                    Ok(None)
                }
            }
        })?;
        ready.ok_or_else(|| self.boot_error(format!("not ready after {PATIENCE:?}: {found}")))
    }

    /// Runs a statement in a given database: the default one is there whatever a test does.
    pub(crate) fn query(&self, database: &str, sql: &str) -> Result<Rows, Error> {
        let idle = if self.is_frozen() { None } else { self.idle().take() };
        match idle {
            Some((of, session)) if of == database && session.is_quiet() => self.query_in(session, database, sql),
            _ => self.query_anew(database, sql),
        }
    }

    /// The same in a new session: only that tells what the postmaster has come to.
    pub(crate) fn query_anew(&self, database: &str, sql: &str) -> Result<Rows, Error> {
        self.query_in(self.connect(database)?, database, sql)
    }

    fn query_in(&self, mut session: Connection, database: &str, sql: &str) -> Result<Rows, Error> {
        let rows = session.query(sql).map_err(|failure| self.sql_error(failure));
        if session.reset() {
            *self.idle() = Some((database.to_owned(), session));
        }
        rows
    }

    fn idle(&self) -> MutexGuard<'_, Option<(String, Connection)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn connect(&self, database: &str) -> Result<Connection, Error> {
        if self.is_frozen() {
            return Err(Error::state(format!("{} is frozen and cannot answer: thaw it first", self.name)));
        }
        Connection::open(self.port, database).map_err(|failure| self.sql_error(failure))
    }

    pub(crate) fn sql_error(&self, failure: Failure) -> Error {
        match failure {
            Failure::Server { code, message } => Error::Sql { node: self.name.clone(), code, message },
            Failure::Io(source) => {
                Error::Io { what: format!("no answer from {} at 127.0.0.1:{}", self.name, self.port), source }
            }
        }
    }

    pub(crate) fn not_running(&self, wish: &str) -> Error {
        Error::state(format!("cannot {wish} {}: it does not run; start it first", self.name))
    }

    /// Writes changed settings and has a running server read them; `false` if none runs.
    pub(crate) fn configure(&self, change: impl FnOnce(&mut State)) -> Result<bool, Error> {
        let mut state = self.lock();
        change(&mut state);
        state.conf.write(&self.binaries.account, &self.data)?;
        match state.running()? {
            Some(server) => server.reload().map(|()| true),
            None => Ok(false),
        }
    }

    pub(crate) fn thaw_all(&self, state: &mut State) -> Result<(), Error> {
        state.frozen.clear();
        if let Some(server) = state.running()? {
            server.thaw(&[])?;
        }
        self.frozen.store(false, Ordering::SeqCst);
        Ok(())
    }

    pub(crate) fn remove_leftovers(&self) {
        data::remove_leftovers(&self.data);
    }

    pub(crate) fn log_tail(&self, lines: usize) -> String {
        let text = self.log().unwrap_or_else(|error| error.to_string());
        let lines_before = text.lines().count().saturating_sub(lines);
        text.lines().skip(lines_before).collect::<Vec<_>>().join("\n")
    }

    fn boot_error(&self, reason: String) -> Error {
        Error::Boot { node: self.name.clone(), reason, log: self.log_tail(40) }
    }
}

impl State {
    /// The server if its postmaster runs.
    pub(crate) fn running(&mut self) -> Result<Option<&mut Server>, Error> {
        if let Some(server) = &mut self.server
            && server.ended()?.is_some()
        {
            self.server = None;
        }
        Ok(self.server.as_mut())
    }
}
