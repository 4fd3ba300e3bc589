//! Rides over read replicas: "Scaling Postgres with Read Replicas & Using WAL to Counter Stale Reads" as a program.
//!
//! An HTTP API ([`api`]) keeps users and rides in PostgreSQL through a routing connection of SeaORM or Diesel
//! ([`store`]); users ([`simulator`]) write a ride and read it back at once. The API has one session for each user, so a read goes to a
//! replica only if that replica has the user's last write. [`cluster`] starts the servers.
//!
//! `rides --help` tells the rest; `rides --naive` shows what happens without the gate.

mod api;
mod args;
mod client;
mod cluster;
mod failure;
mod latency;
mod report;
mod run;
mod screen;
mod simulator;
mod store;
mod table;

use std::process::ExitCode;

use crate::{args::Args, cluster::Servers, failure::Failure, screen::Screen};

fn main() -> ExitCode {
    let args = Args::read();
    let mut screen = Screen::new(&args);
    match rides(&args, &mut screen) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            screen.finish();
            screen.note(&failure.to_string());
            failure.exit_code()
        }
    }
}

fn rides(args: &Args, screen: &mut Screen) -> Result<(), Failure> {
    screen.status("(starting servers)");
    let servers = Servers::start(args).map_err(Failure::run)?;
    screen.status("");
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::run)?;
    // The servers end after everything that talks to them.
    runtime.block_on(run::run(args, &servers, screen))
}
