//! One run, from the tables to the verdict.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use sea_router::{Stats, Token};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

use crate::{
    api::{Api, Reads},
    args::Args,
    cluster::Servers,
    failure::Failure,
    report::Report,
    screen::Screen,
    simulator::{self, Rounds},
    store::{self, Store},
    table::Table,
};

/// How long the tables may take to reach every replica.
const PATIENCE: Duration = Duration::from_secs(20);

/// Makes the tables, plays the rounds, drops the tables, and tells what it has shown.
pub(crate) async fn run(args: &Args, servers: &Servers, screen: &mut Screen) -> Result<(), Failure> {
    let db = servers.connect(args.orm).await?;
    let rounds = Rounds::new(args.rounds);
    // A signal before this ends the process at once, and nothing is made yet that would have to be dropped.
    stop_on_signal(rounds.clone()).map_err(Failure::run)?;
    let made = servers.create_tables(&*db).await?;

    let mut report = Report::new(args.reads(), db.stats().nodes.iter().map(|node| node.node));
    let played = play(args, &db, made, &rounds, &mut report, screen).await;
    let stats = db.stats();
    let dropped = db.drop_tables().await;
    let closed = db.close().await;

    screen.finish();
    show(args, &report, &stats, screen).map_err(Failure::run)?;
    played?;
    dropped.and(closed).map_err(Failure::run)?;
    conclude(args, &report, screen)
}

/// The first signal lets the rounds that are under way finish; the second ends the process.
fn stop_on_signal(rounds: Arc<Rounds>) -> io::Result<()> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::spawn(async move {
        let mut next = async || tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} };
        next().await;
        rounds.stop();
        next().await;
        std::process::exit(130);
    });
    Ok(())
}

/// Serves the API and lets the users ride until all rounds are done, one fails, or nobody reads our output.
async fn play(
    args: &Args,
    db: &Arc<dyn Store>,
    made: Token,
    rounds: &Arc<Rounds>,
    report: &mut Report,
    screen: &mut Screen,
) -> Result<(), Failure> {
    if args.naive {
        store::wait_everywhere(&**db, made, PATIENCE).await.map_err(Failure::run)?;
    }
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(Failure::run)?;
    let address = listener.local_addr().map_err(Failure::run)?;
    let api = Api::new(db.clone(), args.reads());
    let server = tokio::spawn(async { axum::serve(listener, api.router()).await });

    let started = Instant::now();
    let mut seen = simulator::start(address, args.users, rounds)?;
    let mut outcome = Ok(());
    while let Some(round) = seen.recv().await {
        let shown = round.and_then(|round| {
            report.add(&round);
            screen.round(&round).map_err(Failure::run)
        });
        outcome = outcome.and(shown);
        if outcome.is_err() || screen.is_closed() {
            rounds.stop();
        }
    }
    report.took = started.elapsed();
    server.abort();
    outcome
}

fn show(args: &Args, report: &Report, stats: &Stats, screen: &mut Screen) -> io::Result<()> {
    let text =
        if args.json { serde_json::to_string(&report.summary())? } else { format!("\n{}", Table { report, stats }) };
    screen.print(&format!("{text}\n"))
}

/// Says in the last line what the run has shown.
fn conclude(args: &Args, report: &Report, screen: &mut Screen) -> Result<(), Failure> {
    match verdict(report) {
        Ok(verdict) if args.json => {
            screen.note(&verdict);
            Ok(())
        }
        Ok(verdict) => screen.print(&format!("{verdict}\n")).map_err(Failure::run),
        // Whoever stopped reading in the middle has seen enough.
        Err(_) if screen.is_closed() && report.reads_from == Reads::Naive => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// What the run has shown; an error if it is not what it should.
fn verdict(report: &Report) -> Result<String, Failure> {
    let (reads, stale) = (report.rounds(), report.stale);
    match report.reads_from {
        Reads::Gated if stale == 0 => Ok(format!("None of {reads} reads was stale.")),
        Reads::Gated => Err(Failure::Run(format!("{stale} of {reads} reads were stale, and none should be"))),
        Reads::Naive if stale == 0 => Err(Failure::Run(format!(
            "none of {reads} reads was stale, so this run shows nothing; try more --rounds, or a larger --delay-ms"
        ))),
        Reads::Naive => Ok(format!(
            "{stale} of {reads} reads were stale: any replica was read, with the write or without. Try it without --naive."
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_does_not_show_what_it_should_fails() {
        for (reads_from, stale, is_well) in
            [(Reads::Gated, 0, true), (Reads::Gated, 1, false), (Reads::Naive, 0, false), (Reads::Naive, 1, true)]
        {
            let report = Report { stale, ..Report::new(reads_from, []) };
            assert_eq!(verdict(&report).is_ok(), is_well, "{reads_from:?}, {stale} stale");
        }
    }
}
