//! Why the program does not end well.

use std::{fmt, process::ExitCode};

/// What to tell the user, and with which status to end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What the user gave makes no sense.
    Input(String),
    /// The run failed, or did not show what it should.
    Run(String),
}

impl Failure {
    /// The run failed on this.
    pub(crate) fn run(error: impl fmt::Display) -> Self {
        Self::Run(error.to_string())
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Run(_) => ExitCode::from(1),
            Self::Input(_) => ExitCode::from(2),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Input(message) | Self::Run(message)) = self;
        write!(f, "error: {message}")
    }
}
