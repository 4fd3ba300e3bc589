//! Walks at random through larger worlds until a promise breaks or the time is up.

use std::{
    process::ExitCode,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use clap::Parser;
use read_router_model::{
    Off,
    explore::{Draws, Walk, walk},
};

/// Looks for a schedule that breaks a promise of the read router.
#[derive(Parser)]
struct Arguments {
    /// How long to look.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Where to begin; the same seed walks the same way.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many walk at once, each with seeds of its own.
    #[arg(long, default_value_t = 1)]
    threads: u64,
    /// A rule to be switched off, in a build with `--cfg read_router_mutants`.
    #[arg(long)]
    without: Option<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let off = match arguments.without.as_deref().map(|rule| Off::default().and(rule)) {
        None => Off::default(),
        Some(Some(off)) => off,
        Some(None) => {
            eprintln!("no such rule in this build; build with RUSTFLAGS=\"--cfg read_router_mutants\"");
            return ExitCode::from(2);
        }
    };
    let end = Instant::now() + Duration::from_secs(arguments.seconds);
    let (walks, steps, reads) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    let look = |thread: u64| -> Option<Walk> {
        let mut number = thread;
        while !stop.load(Ordering::Relaxed) && Instant::now() < end {
            let walk = walk(&mut Draws::new(arguments.seed.wrapping_mul(1 << 32).wrapping_add(number)), off);
            number += arguments.threads;
            walks.fetch_add(1, Ordering::Relaxed);
            steps.fetch_add(walk.steps as u64, Ordering::Relaxed);
            reads.fetch_add(walk.reads as u64, Ordering::Relaxed);
            if walk.broken.is_some() {
                stop.store(true, Ordering::Relaxed);
                return Some(walk);
            }
        }
        None
    };
    let found = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..arguments.threads.max(1))
            .map(|thread| {
                scope.spawn({
                    let look = &look;
                    move || look(thread)
                })
            })
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().expect("a walk does not panic")).next()
    });
    let (walks, steps, reads) = (walks.into_inner(), steps.into_inner(), reads.into_inner());
    println!("{walks} walks, {steps} steps, {reads} reads");
    let Some(Walk { world, broken: Some(schedule), .. }) = found else {
        println!("no promise broken");
        return ExitCode::SUCCESS;
    };
    println!("a promise is broken:\n{schedule}\nin the world {world:#?}");
    ExitCode::FAILURE
}
