use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::TempDir;

use crate::{
    Binaries, Cluster, Error, Node,
    account::Account,
    conf::Conf,
    data::{self, DEFAULT_DATABASE},
    node::State,
    port, template,
    watchdog::Watchdog,
};

/// How many sets of ports are tried when others take them between the look and the start.
const PORT_ATTEMPTS: usize = 5;

/// Linux has a file system in memory here.
const MEMORY: &str = "/dev/shm";

/// Bytes that must be free in it: several nodes with a full set of write-ahead log each.
const MEMORY_WANTED: u64 = 4 << 30;

/// What a [`Cluster`] shall be like; made by [`Cluster::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    replicas: usize,
    settings: Vec<(String, String)>,
    delays: Vec<(usize, Duration)>,
    database: String,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self { replicas: 1, settings: Vec::new(), delays: Vec::new(), database: DEFAULT_DATABASE.into() }
    }

    /// Number of streaming standbys. Defaults to 1.
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// Adds a line to every node's `postgresql.conf`; the last one of a name wins, also over the kit's own.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Has a replica apply each commit only so long after it happened. Defaults to zero.
    ///
    /// The same as [`Node::set_apply_delay`] right after the start, which is not slowed down by it.
    pub fn delay(mut self, replica: usize, delay: Duration) -> Self {
        self.delays.push((replica, delay));
        self
    }

    /// The database that URLs name; created if it is not there. Defaults to `postgres`.
    pub fn database(mut self, name: impl Into<String>) -> Self {
        self.database = name.into();
        self
    }

    /// Makes and starts the servers.
    ///
    /// Returns once all accept connections, every replica streams, and all have the database.
    ///
    /// # Errors
    /// [`Error::Binaries`] if there is no PostgreSQL to be had, [`Error::Boot`] if a server does not come up, as with
    /// a wrong setting.
    pub fn start(self) -> Result<Cluster, Error> {
        if let Some((index, _)) = self.delays.iter().find(|(index, _)| *index >= self.replicas) {
            return Err(Error::state(format!(
                "a delay is set for replica {index}, but there are only {} replicas, counted from 0",
                self.replicas
            )));
        }
        let binaries = Binaries::of_process()?;
        let folder = folder(&binaries.account)?;
        let watchdog = Watchdog::over(folder.path())?;
        // From here on the cluster's own drop cleans up.
        let mut cluster = Cluster::new(folder, watchdog);
        self.make(cluster.folder(), &binaries)?;
        self.boot(&mut cluster, &binaries)?;
        self.finish(&cluster)?;
        Ok(cluster)
    }

    /// Data folders: one made, then copies.
    fn make(&self, folder: &Path, binaries: &Binaries) -> Result<(), Error> {
        let primary = folder.join("primary");
        template::init(binaries, &primary)?;
        data::prepare(binaries, &primary, &self.conf(1, None), &self.database)?;
        (0..self.replicas).try_for_each(|index| {
            data::copy_as_standby(&binaries.account, &primary, &folder.join(format!("replica{index}")))
        })
    }

    fn boot(&self, cluster: &mut Cluster, binaries: &Binaries) -> Result<(), Error> {
        for attempt in 1.. {
            cluster.nodes = self.nodes(cluster.folder(), binaries);
            cluster.nodes.iter().try_for_each(Node::spawn)?;
            match cluster.nodes.iter().try_for_each(Node::wait_ready) {
                Err(Error::Boot { log, .. })
                    if attempt < PORT_ATTEMPTS && log.contains("create any TCP/IP sockets") =>
                {
                    cluster.kill();
                }
                result => return result,
            }
        }
        Ok(())
    }

    fn nodes(&self, folder: &Path, binaries: &Binaries) -> Vec<Node> {
        let ports = port::free(1 + self.replicas);
        let node = |(index, &port): (usize, &u16)| {
            let name = match index {
                0 => "primary".to_owned(),
                _ => format!("replica{}", index - 1),
            };
            let state = State {
                server: None,
                conf: self.conf(port, (index > 0).then(|| (name.clone(), ports[0]))),
                upstream: (index > 0).then_some(0),
                frozen: Vec::new(),
            };
            let data = folder.join(&name);
            Node::new(name, self.database.clone(), data, binaries.clone(), state)
        };
        ports.iter().enumerate().map(node).collect()
    }

    fn conf(&self, port: u16, upstream: Option<(String, u16)>) -> Conf {
        Conf { port, settings: self.settings.clone(), own: Vec::new(), upstream, apply_delay: Duration::ZERO }
    }

    fn finish(&self, cluster: &Cluster) -> Result<(), Error> {
        let primary = cluster.primary();
        let streaming =
            format!("SELECT count(*) = {} FROM pg_stat_replication WHERE state = 'streaming'", self.replicas);
        primary.wait_for("streaming to every replica", &streaming)?;
        for &(index, delay) in &self.delays {
            cluster.replica(index).set_apply_delay(delay)?;
        }
        Ok(())
    }
}

/// A folder that the servers' user can reach and owns.
pub(crate) fn folder(account: &Account) -> Result<TempDir, Error> {
    let parent = if has_fast_memory() { PathBuf::from(MEMORY) } else { account.scratch() };
    let failed = || Error::io(format!("cannot make a folder in {}", parent.display()));
    // Servers tell their folder without links in its path.
    let parent = parent.canonicalize().map_err(failed())?;
    let folder = tempfile::Builder::new().prefix("read-router-").tempdir_in(&parent).map_err(failed())?;
    account.own(folder.path())?;
    Ok(folder)
}

/// A thousand files a node: in memory they are made several times as fast as on a disk.
///
/// Not where somebody has chosen another place, or where servers could fill it up: containers often have 64 MB of it.
fn has_fast_memory() -> bool {
    env::var_os("TMPDIR").is_none()
        && rustix::fs::statvfs(MEMORY).is_ok_and(|found| found.f_bavail * found.f_frsize >= MEMORY_WANTED)
}
