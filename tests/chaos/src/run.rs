//! Episode after episode until the time is up.

use std::{
    fmt,
    fs::File,
    io::BufWriter,
    path::PathBuf,
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::{
    checker::check,
    episode::{Episode, Outcome},
    excerpt::excerpt,
    history::History,
    plan::Gate,
    report::Report,
};

/// What a run is to be like.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Time under load.
    pub length: Duration,
    /// Where all choices come from.
    pub seed: u64,
    /// Tasks in each of the two processes.
    pub tasks: u32,
    /// Whether reads are gated.
    pub gate: Gate,
    /// This program, which is run again as the second process.
    pub program: PathBuf,
    /// The file that gets the whole history, as JSON lines.
    pub keep: Option<PathBuf>,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Time under load.
    pub elapsed: Duration,
    /// Strict reads that were answered.
    pub strict_reads: u64,
    /// Which episode it is, from 1.
    pub episode: u64,
}

/// Why a run came to no end: nothing is known of the promises then.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    pub(crate) fn run(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// No more than that of one kind are shown.
const EXCERPTS: usize = 3;

/// Runs and judges. Excerpts of what breaks a promise go to `tell`.
///
/// # Errors
/// If the servers, the second process or a file cannot be had.
pub async fn run(
    settings: &Settings,
    mut progress: impl FnMut(Progress),
    mut tell: impl FnMut(&str),
) -> Result<Report, Failure> {
    let mut random = StdRng::seed_from_u64(settings.seed);
    let mut report = Report::new(settings.seed);
    let mut elapsed = Duration::ZERO;
    let create = |path| File::create(path).map(BufWriter::new).map_err(Failure::run);
    let mut keep = settings.keep.as_ref().map(create).transpose()?;
    while elapsed < settings.length {
        let drawn = Duration::from_secs(random.random_range(20..=35));
        let left = settings.length - elapsed;
        // A short rest is no episode of its own.
        let length = if left < drawn + Duration::from_secs(8) { left } else { drawn };
        let episode = Episode::draw(length, settings.tasks, settings.gate, random.random());
        let number = report.episodes + 1;
        let (before, began) = (report.strict_reads, Instant::now());
        let shown = |reads| {
            let elapsed = elapsed + began.elapsed().min(length);
            progress(Progress { elapsed, strict_reads: before + reads, episode: number });
        };
        let Outcome { history, counters, stats } = episode.run(&settings.program, shown).await?;
        elapsed += length;
        if let Some(keep) = &mut keep {
            history.write(keep).map_err(Failure::run)?;
        }
        let broken = report.broken();
        judge(&history, &mut report, &mut tell);
        if report.broken() > broken {
            stats.iter().for_each(|stats| tell(stats));
        }
        report.add_counters(counters);
        report.seconds = elapsed.as_secs_f64();
    }
    Ok(report)
}

/// Judges one history and adds it to the report.
pub fn judge(history: &History, report: &mut Report, mut tell: impl FnMut(&str)) {
    let verdict = check(history);
    let mut shown = std::collections::HashMap::new();
    for violation in &verdict.violations {
        let count: &mut usize = shown.entry(violation.kind).or_default();
        *count += 1;
        if *count <= EXCERPTS {
            tell(&format!("episode {}: {}", report.episodes + 1, excerpt(history, violation)));
        }
    }
    report.add(history, &verdict);
}
