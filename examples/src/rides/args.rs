//! The command line.

use std::time::Duration;

use clap::{CommandFactory, Parser, ValueEnum, error::ErrorKind, value_parser};

use crate::api::Reads;

/// Rides over read replicas: an HTTP API, and users who read what they have just written.
///
/// Each round writes a ride (POST /rides, or PUT /rides/{id}) and reads it back at once (GET /rides/{id}). Writes go to
/// the primary; a read goes to a replica that has the user's last write, else to the primary. The run fails if any read
/// is stale.
///
/// Without URLs it starts a PostgreSQL primary and replicas of its own and removes them at the end.
#[derive(Debug, Parser)]
#[command(name = "rides", version)]
pub(crate) struct Args {
    /// The ORM that keeps the rides.
    #[arg(long, value_enum, default_value_t = Orm::Sea)]
    pub(crate) orm: Orm,

    /// Rounds in all, shared by the users.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) rounds: u64,

    /// Users who write and read at the same time.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u64).range(1..=1000))]
    pub(crate) users: u64,

    /// Replicas to start; with none, all reads go to the primary.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u16).range(0..=16))]
    #[arg(conflicts_with = "primary_url")]
    pub(crate) replicas: u16,

    /// Milliseconds after which the last replica applies a commit [default: 200].
    #[arg(long, value_name = "MS", value_parser = value_parser!(u64).range(0..=10_000))]
    #[arg(conflicts_with = "primary_url")]
    delay_ms: Option<u64>,

    /// A primary that already runs; the tables rides_demo_users and rides_demo_rides are made there, and dropped at the
    /// end.
    #[arg(long, value_name = "URL")]
    pub(crate) primary_url: Option<String>,

    /// A replica of that primary; repeat it for each.
    #[arg(long = "replica-url", value_name = "URL", requires = "primary_url")]
    pub(crate) replica_urls: Vec<String>,

    /// Read from any replica, whether it has the write or not: shows the stale reads.
    #[arg(long)]
    pub(crate) naive: bool,

    /// Print the summary as one JSON object, and nothing else on stdout.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print no line for each read.
    #[arg(long)]
    pub(crate) quiet: bool,
}

/// One of the ORMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Orm {
    /// SeaORM.
    Sea,
    /// Diesel.
    Diesel,
    /// diesel-async.
    DieselAsync,
}

impl Args {
    /// Takes the command line; ends the process with status 2 if it makes no sense.
    pub(crate) fn read() -> Self {
        let args = Self::parse();
        if let Err(message) = args.check() {
            Self::command().error(ErrorKind::ArgumentConflict, message).exit();
        }
        args
    }

    fn check(&self) -> Result<(), &'static str> {
        let own = self.primary_url.is_none();
        let has_replicas = if own { self.replicas > 0 } else { !self.replica_urls.is_empty() };
        let rules = [
            (self.naive && !has_replicas, "--naive reads from replicas only, and there are none"),
            (self.delay_ms.is_some() && !has_replicas, "--delay-ms is for the last replica, and there is none"),
        ];
        rules.into_iter().find(|(broken, _)| *broken).map_or(Ok(()), |(_, rule)| Err(rule))
    }

    /// Where the rides are read.
    pub(crate) fn reads(&self) -> Reads {
        if self.naive { Reads::Naive } else { Reads::Gated }
    }

    /// How late the last of our own replicas is.
    pub(crate) fn delay(&self) -> Duration {
        Duration::from_millis(self.delay_ms.unwrap_or(200))
    }
}
