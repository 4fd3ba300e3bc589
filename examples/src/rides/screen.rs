//! What the user sees while the rounds go on, and at the end.

use std::io::{self, ErrorKind, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{args::Args, simulator::Round};

/// Standard output, with a progress bar below it on a terminal.
pub(crate) struct Screen {
    bar: ProgressBar,
    has_lines: bool,
    is_closed: bool,
}

impl Screen {
    pub(crate) fn new(args: &Args) -> Self {
        let target =
            if io::stdout().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = ProgressStyle::with_template("{bar:40} {pos} of {len} rounds {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::with_draw_target(Some(args.rounds), target).with_style(style);
        Self { bar, has_lines: !args.quiet && !args.json, is_closed: false }
    }

    /// Shows, beside the bar, what is going on.
    pub(crate) fn status(&self, message: &'static str) {
        self.bar.set_message(message);
        self.bar.tick();
    }

    /// Shows a round.
    pub(crate) fn round(&mut self, round: &Round) -> io::Result<()> {
        self.bar.inc(1);
        if !self.has_lines {
            return Ok(());
        }
        let reason = round.read.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let stale = if round.stale { " - stale" } else { "" };
        self.print(&format!("Reading ride {} from server '{}'{reason}{stale}\n", round.ride, round.read.node))
    }

    /// Writes to standard output. Once its reader is gone, as after `| head`, it does nothing.
    pub(crate) fn print(&mut self, text: &str) -> io::Result<()> {
        if self.is_closed {
            return Ok(());
        }
        match self.bar.suspend(|| io::stdout().lock().write_all(text.as_bytes())) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.is_closed = true;
                Ok(())
            }
            done => done,
        }
    }

    /// Whether the reader of standard output is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Tells something beside the output.
    pub(crate) fn note(&self, text: &str) {
        // Without standard error there is nobody to tell.
        let _ = self.bar.suspend(|| writeln!(io::stderr().lock(), "{text}"));
    }

    /// Removes the progress bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
