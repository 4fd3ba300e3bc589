//! Looks for a schedule on real servers that breaks a promise of the read router.

use std::{
    fs::File,
    io::{BufReader, IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Parser, Subcommand, value_parser};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use read_router_chaos::{Failure, Gate, Report, Settings, history::History, judge, run, work};

/// Breaks real servers while sessions in two processes read and write, and judges what they saw.
///
/// Sessions, clones of them, and sessions that go on from tokens of either process write registers and read them with
/// every class, while standbys lag, hang, crash and are promoted, and the primary crashes and changes. Every call is
/// recorded. A checker that knows nothing of the router then looks in the record for reads that miss what their
/// session wrote or saw, that go back between replicas, or that are staler than their bound.
///
/// The end is a report; the exit code is 1 if a promise is broken, 2 if the run could not be made. All choices come
/// from the seed, but what happens also depends on timing: the same seed makes the same faults likely, not the same
/// history. --keep writes it down, and --check judges it again.
#[derive(Debug, Parser)]
#[command(name = "chaos", version)]
struct Arguments {
    /// Time under load, in seconds; servers take a second or two more to start, every half a minute.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = value_parser!(u64).range(1..=86_400))]
    seconds: u64,

    /// Where all choices come from [default: drawn, and printed].
    #[arg(long, value_name = "S")]
    seed: Option<u64>,

    /// Tasks in each of the two processes.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(1..=64))]
    tasks: u32,

    /// Print the report as one JSON object, and nothing else on stdout.
    #[arg(long)]
    json: bool,

    /// Write the whole history to a file, as JSON lines.
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,

    /// Judge a history that --keep has written, and run nothing.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["keep", "tasks", "seconds", "seed"])]
    check: Option<PathBuf>,

    /// Read from any replica, whatever the class: the checker must then find violations.
    #[arg(long, hide = true)]
    ungated: bool,

    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Role {
    /// The second process of a run; it is started by the first.
    #[command(hide = true)]
    Worker,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.role {
        Some(Role::Worker) => return work().map_or(ExitCode::from(2), |()| ExitCode::SUCCESS),
        None => chaos(&arguments),
    };
    let printed = done.and_then(|report| print(&report, arguments.json).map(|()| report).map_err(|e| e.to_string()));
    match printed {
        Ok(report) if report.broken() == 0 => ExitCode::SUCCESS,
        Ok(report) => {
            eprintln!("{} violations; the seed was {}", report.broken(), report.seed);
            ExitCode::from(1)
        }
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::from(2)
        }
    }
}

fn chaos(arguments: &Arguments) -> Result<Report, String> {
    if let Some(path) = &arguments.check {
        let file = File::open(path).map_err(|error| format!("cannot open {}: {error}", path.display()))?;
        let histories = History::read(BufReader::new(file)).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut report = Report::new(0);
        histories.iter().for_each(|history| judge(history, &mut report, |text| eprintln!("{text}")));
        return Ok(report);
    }
    let seed = arguments.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let settings = Settings {
        length: Duration::from_secs(arguments.seconds),
        seed,
        tasks: arguments.tasks,
        gate: if arguments.ungated { Gate::Off } else { Gate::On },
        program: std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?,
        keep: arguments.keep.clone(),
    };
    let bar = bar(&settings, arguments.json);
    bar.println(format!("seed {seed}"));
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let progress = |at: read_router_chaos::Progress| {
        bar.set_position(at.elapsed.as_secs());
        bar.set_message(format!("episode {}, {} strict reads", at.episode, at.strict_reads));
    };
    let done = runtime.block_on(run(&settings, progress, |text| bar.suspend(|| eprintln!("{text}"))));
    bar.finish_and_clear();
    done.map_err(|failure: Failure| format!("{failure}; the seed was {seed}"))
}

fn bar(settings: &Settings, json: bool) -> ProgressBar {
    let has_terminal = std::io::stderr().is_terminal() && !json;
    let target = if has_terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len} s, {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(settings.length.as_secs()), target).with_style(style)
}

fn print(report: &Report, json: bool) -> std::io::Result<()> {
    let text = if json { serde_json::to_string(report)? } else { report.to_string() };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", text.trim_end())
}
