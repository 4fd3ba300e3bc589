use std::{error, fmt, io, time::Duration};

/// What went wrong in a cluster, and what to do about it.
#[non_exhaustive]
pub enum Error {
    /// No usable PostgreSQL programs on this machine.
    Binaries {
        /// What was sought, what was found, and the ways to get them.
        message: String,
    },
    /// The operating system refused something.
    Io {
        /// What was being done.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A program such as `initdb` failed.
    Command {
        /// The program and how it ended.
        what: String,
        /// What it printed.
        output: String,
    },
    /// A server ended, or did not answer, while it was being started.
    Boot {
        /// Name of the node.
        node: String,
        /// What happened.
        reason: String,
        /// The end of the server's log.
        log: String,
    },
    /// A server answered a statement with an error.
    Sql {
        /// Name of the node.
        node: String,
        /// The SQLSTATE, such as `25006`.
        code: String,
        /// The server's message.
        message: String,
    },
    /// Something did not happen within its time limit.
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
        /// What was seen instead, last.
        found: String,
    },
    /// The call does not fit the state of the cluster, such as SQL on a node that was crashed.
    State {
        /// What was asked, what is so, what to do.
        message: String,
    },
}

impl Error {
    /// For `map_err`: says what was being done when the system refused.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    pub(crate) fn binaries(message: impl Into<String>) -> Self {
        Self::Binaries { message: message.into() }
    }

    pub(crate) fn state(message: impl Into<String>) -> Self {
        Self::State { message: message.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Binaries { message } | Self::State { message } => f.write_str(message),
            Self::Io { what, source } => write!(f, "{what}: {source}"),
            Self::Command { what, output } => write!(f, "{what}; it printed:\n{output}"),
            Self::Boot { node, reason, log } => {
                write!(f, "{node} did not start: {reason}; the end of its log:\n{log}")
            }
            Self::Sql { node, code, message } => write!(f, "{node} answered {code}: {message}"),
            Self::Timeout { what, limit, found } => {
                write!(f, "no {what} within {limit:?}; last seen: {found}")
            }
        }
    }
}

/// The message: tests unwrap, and a log in quotes and escapes is hard to read.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
