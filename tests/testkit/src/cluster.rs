use std::{path::Path, sync::OnceLock, thread, time::Duration};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::{
    Builder, Error, Node,
    freeze::Frozen,
    lsn::{self, Lsn},
    wait,
    watchdog::Watchdog,
};

/// How long a server may take to end on its own when a cluster is dropped.
const QUIT_LIMIT: Duration = Duration::from_secs(2);

/// A primary and its standbys; dropping it ends them and removes their folder.
///
/// If a test panics, the drop prints the end of every node's log.
#[derive(Debug)]
pub struct Cluster {
    /// The primary first.
    pub(crate) nodes: Vec<Node>,
    // Dropped in this order: the watchdog has the last look.
    folder: TempDir,
    _watchdog: Watchdog,
}

impl Cluster {
    /// Starts with one replica and the database `postgres`.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// One cluster for all tests of a process, started by the first that asks; the others' `configure` is not called.
    ///
    /// For tests that leave nothing behind, because each runs in a transaction that is rolled back or on rows of its own.
    /// It ends with the process. Tests that pause or break a server start a cluster of their own.
    ///
    /// # Panics
    /// If it cannot be started, in every test that asks.
    pub fn shared(configure: impl FnOnce(Builder) -> Builder) -> &'static Self {
        static SHARED: OnceLock<Result<Cluster, Error>> = OnceLock::new();
        let shared = SHARED.get_or_init(|| configure(Self::builder()).start());
        shared.as_ref().unwrap_or_else(|error| panic!("the shared cluster does not start: {error}"))
    }

    pub(crate) fn new(folder: TempDir, watchdog: Watchdog) -> Self {
        Self { nodes: Vec::new(), folder, _watchdog: watchdog }
    }

    /// The node that was made as the primary, also after another was promoted.
    #[must_use]
    pub fn primary(&self) -> &Node {
        &self.nodes[0]
    }

    /// A node that was made as a standby.
    ///
    /// # Panics
    /// If there is no replica of that index.
    #[must_use]
    pub fn replica(&self, index: usize) -> &Node {
        &self.replicas()[index]
    }

    /// All nodes that were made as standbys.
    #[must_use]
    pub fn replicas(&self) -> &[Node] {
        &self.nodes[1..]
    }

    /// Waits until every standby that runs has replayed all that the server it follows has written by now.
    ///
    /// Passes over nodes that are stopped, crashed, frozen, or promoted. For a standby that follows a standby it is
    /// the server at the top that counts.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the positions, if one has not in time.
    pub fn wait_caught_up(&self, limit: Duration) -> Result<(), Error> {
        let mut targets = Vec::new();
        for index in 1..self.nodes.len() {
            let node = &self.nodes[index];
            if node.is_running()?
                && !node.is_frozen()
                && let Some(top) = self.top_of(index)
            {
                targets.push((node, lsn::written(top)?));
            }
        }
        let mut behind = String::new();
        let done = wait::until(limit, || {
            behind.clear();
            for (node, target) in &targets {
                let replayed = lsn::replayed(node)?;
                if replayed.is_none_or(|replayed| replayed < *target) {
                    let replayed = replayed.map_or("nothing".to_owned(), |lsn: Lsn| lsn.to_string());
                    behind += &format!("{} has replayed {replayed} of {target}; ", node.name());
                }
            }
            Ok(behind.is_empty().then_some(()))
        })?;
        done.ok_or_else(|| Error::Timeout {
            what: "replay on every running standby".into(),
            limit,
            found: behind.trim_end_matches("; ").to_owned(),
        })
    }

    /// Stops the walsender that feeds a replica (SIGSTOP): the link hangs, both servers go on.
    ///
    /// Until [`thaw_link`](Self::thaw_link). A server that is stopped, crashed or loses a backend ends its links, and
    /// a standby that hears nothing for `wal_receiver_timeout` (60 seconds by default) asks for a new one.
    ///
    /// # Errors
    /// [`Error::Timeout`] if nothing feeds the replica.
    ///
    /// # Panics
    /// If there is no replica of that index.
    pub fn freeze_link(&self, index: usize) -> Result<(), Error> {
        let upstream = self.upstream_of(index + 1).ok_or_else(|| self.no_link(index))?;
        upstream.freeze_one(Frozen::Sender(self.replica(index).name().to_owned()))
    }

    /// Lets a frozen link go on. Does nothing if it is not frozen.
    ///
    /// # Errors
    /// If the process cannot be signalled.
    ///
    /// # Panics
    /// If there is no replica of that index.
    pub fn thaw_link(&self, index: usize) -> Result<(), Error> {
        let sender = Frozen::Sender(self.replica(index).name().to_owned());
        // Wherever it was frozen: the replica may follow another node by now.
        self.nodes.iter().try_for_each(|node| node.thaw_one(&sender))
    }

    /// Has a replica follow another node of this cluster, as after a promotion.
    ///
    /// Returns once it receives from there. If one of the two does not run, it is kept for the next start.
    ///
    /// # Errors
    /// [`Error::State`] if the node is of another cluster; [`Error::Timeout`] if the replica cannot follow, as when
    /// its own history has gone another way.
    ///
    /// # Panics
    /// If there is no replica of that index.
    pub fn follow(&self, index: usize, upstream: &Node) -> Result<(), Error> {
        let replica = self.replica(index);
        let position = self.nodes.iter().position(|node| std::ptr::eq(node, upstream));
        let Some(position) = position.filter(|&position| position != index + 1) else {
            return Err(Error::state(format!(
                "{} cannot follow {} (port {}): that is itself, or no node of this cluster",
                replica.name(),
                upstream.name(),
                upstream.port()
            )));
        };
        let running = replica.configure(|state| {
            state.upstream = Some(position);
            state.conf.upstream = Some((replica.name().to_owned(), upstream.port()));
        })?;
        if !running || !upstream.is_running()? {
            return Ok(());
        }
        let streaming = format!(
            "SELECT EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming' AND sender_port = {})",
            upstream.port()
        );
        replica.wait_for(&format!("streaming from {}", upstream.name()), &streaming)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Ends every server, gently at first: that also removes what lies outside the folder.
    pub(crate) fn kill(&self) {
        for node in &self.nodes {
            let mut state = node.lock();
            let _ = node.thaw_all(&mut state);
            if let Ok(Some(server)) = state.running() {
                let _ = server.ask_to_end(Signal::QUIT);
            }
        }
        for node in &self.nodes {
            let mut state = node.lock();
            if let Ok(Some(server)) = state.running()
                && !server.ended_within(QUIT_LIMIT).unwrap_or(false)
                && server.kill().is_ok()
            {
                node.remove_leftovers();
            }
            state.server = None;
        }
    }

    fn upstream_of(&self, index: usize) -> Option<&Node> {
        let upstream = self.nodes[index].lock().upstream;
        upstream.map(|upstream| &self.nodes[upstream])
    }

    /// The server that a standby gets its data from in the end; `None` if it is no standby.
    fn top_of(&self, index: usize) -> Option<&Node> {
        let mut top = self.upstream_of(index)?;
        // Bounded: two standbys that follow each other have no top.
        for _ in 0..self.nodes.len() {
            let position = self.nodes.iter().position(|node| std::ptr::eq(node, top))?;
            match self.upstream_of(position) {
                Some(next) => top = next,
                None => return Some(top),
            }
        }
        None
    }

    fn no_link(&self, index: usize) -> Error {
        Error::state(format!("{} was promoted: nothing feeds it", self.replica(index).name()))
    }

    fn print_logs(&self) {
        for node in &self.nodes {
            eprintln!("--- the end of the log of {} ---\n{}", node.name(), node.log_tail(40));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            self.print_logs();
        }
        self.kill();
    }
}
