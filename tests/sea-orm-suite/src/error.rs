//! What keeps the tests from being run at all.

use std::{io, path::PathBuf};

use read_router_testkit::Error as ClusterError;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot run `{command}`: {source}")]
    Command { command: String, source: io::Error },
    #[error("`{command}` failed; its output above says why")]
    Failed { command: String },
    #[error("cannot understand what cargo says: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the workspace does not depend on {0}")]
    NoPackage(&'static str),
    #[error("the package at {0} brings no tests: it is not the published one")]
    NoTests(PathBuf),
    #[error("cannot use {path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("no servers: {0}")]
    Cluster(#[from] ClusterError),
}

impl Error {
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}
