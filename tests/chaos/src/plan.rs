//! What a process is to do: a plain value that goes through the worker's pipe.

use std::time::Duration;

use sea_orm::ConnectOptions;
use sea_router::{Access, Config, Error, RoutingConnection};
use serde::{Deserialize, Serialize};

use crate::history::Promise;

/// How many registers there are.
pub(crate) const REGISTERS: u16 = 32;

/// The registers, and what a read shows of them: the values, and the server's own word of who it is.
pub(crate) const SCHEMA: &str = "
    CREATE TABLE register (id int PRIMARY KEY, version bigint NOT NULL, tag bigint NOT NULL) WITH (fillfactor = 20);
    INSERT INTO register SELECT g, 0, 0 FROM generate_series(0, 31) g;
    CREATE VIEW shown AS
        SELECT id, version, tag, pg_is_in_recovery() AS standby, inet_server_port() AS port FROM register";

/// What one process does during one episode.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) primary: String,
    pub(crate) replicas: Vec<String>,
    /// Which process this is; its calls are numbered from `process << 48`.
    pub(crate) process: u32,
    pub(crate) seed: u64,
    pub(crate) tasks: u32,
    pub(crate) gate: Gate,
    pub(crate) timing: Timing,
    pub(crate) promise: Promise,
}

/// Whether reads are gated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Gate {
    /// As their class says.
    #[default]
    On,
    /// Strict and bounded reads are `Eventual` ones, but recorded as what they should be: the checker must then find
    /// violations, or it shows nothing.
    Off,
}

/// The router's timings, drawn for each episode: different ones make different schedules likely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Timing {
    pub(crate) probe_interval_ms: u64,
    pub(crate) probe_timeout_ms: u64,
    pub(crate) strict_wait_ms: u64,
}

impl Plan {
    pub(crate) async fn connect(&self) -> Result<RoutingConnection, Error> {
        let config = Config {
            probe_interval: Duration::from_millis(self.timing.probe_interval_ms),
            probe_timeout: Duration::from_millis(self.timing.probe_timeout_ms),
            strict_wait: Duration::from_millis(self.timing.strict_wait_ms),
            ..Config::default()
        };
        let builder = RoutingConnection::builder(options(&self.primary)).config(config);
        let builder = builder.monotonic_fallback(self.promise.monotonic_on_primary);
        // Who serves it is what it asks.
        let builder = builder.table("shown", Access::Read);
        builder.replicas(self.replicas.iter().map(|url| options(url))).connect().await
    }
}

fn options(url: &str) -> ConnectOptions {
    let limit = Duration::from_secs(2);
    let mut options = ConnectOptions::new(url);
    options.max_connections(16).acquire_timeout(limit).connect_timeout(limit).sqlx_logging(false);
    options
}
