//! Runs SeaORM's own published tests, unchanged, over the routing connection: what it swallows, breaks or reorders of
//! the ORM's shows here.
//!
//! The tests' text is not part of this repository. It is taken in by path from the package that the workspace is locked
//! to, and compiled against a crate that passes for `sea_orm` (`template/facade.rs`) in which the connection is ours.

mod build;
mod error;
mod outcome;
mod run;
mod source;
mod tally;
mod workspace;

use std::{process::ExitCode, time::Duration};

use clap::{Parser, ValueEnum};
use read_router_testkit::{Cluster, Node};

use crate::{error::Error, outcome::Outcome, source::Source, tally::Tally};

/// SeaORM's own tests over the routing connection. The last line says how many passed and how many failed.
#[derive(Debug, Parser)]
#[command(name = "sea-orm-suite", version)]
struct Args {
    /// What the tests' connection is.
    #[arg(long, value_enum)]
    mode: Mode,

    /// Seconds that the tests of one file may take; what has not ended by then has failed.
    #[arg(long, value_name = "S", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    limit: u64,

    /// Only the files whose name contains this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// SeaORM's own connection: what there is to pass.
    Plain,
    /// The routing connection, with no replica.
    Primary,
    /// The routing connection with a streaming replica, and every read that says nothing as `MustSeeMyWrite`.
    Standby,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(outcome) => {
            println!("{} passed, {} failed", outcome.passed(), outcome.failed());
            if outcome.failed() == 0 && outcome.passed() > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("sea-orm-suite: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<Outcome, Error> {
    let source = Source::locate()?;
    let folder = workspace::write(&source)?;
    let binaries = build::tests(&folder, &source, args.mode != Mode::Plain)?;
    let replicas = usize::from(args.mode == Mode::Standby);
    // Each connection of the tests has two pools and two probes, and many are open at once.
    let cluster = Cluster::builder().replicas(replicas).setting("max_connections", "400").start()?;
    let tally = Tally::new(&folder);
    let mut environment = vec![("DATABASE_URL", base(cluster.primary()))];
    if args.mode == Mode::Standby {
        environment.push(("SUITE_REPLICA", base(cluster.replica(0))));
        environment.push(("SUITE_TALLY", tally.path().display().to_string()));
    }
    let outcome = run::all(&binaries, &environment, args.only.as_deref(), Duration::from_secs(args.limit))?;
    if args.mode == Mode::Standby {
        println!("{}", tally.read()?);
    }
    for name in outcome.names_of_failed() {
        println!("failed: {name}");
    }
    Ok(outcome)
}

/// A node's URL up to the name of the database, which the tests add.
fn base(node: &Node) -> String {
    let url = node.url();
    url.rsplit_once('/').map_or(url.clone(), |(base, _)| base.to_owned())
}
