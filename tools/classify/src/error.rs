//! What keeps statements from being judged at all.

use std::{io, path::PathBuf};

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The output cannot be written.
    #[error("cannot write the result: {0}")]
    Output(#[source] io::Error),
    /// A server refused, or was not there.
    #[error("the server: {}", server(.0))]
    Server(#[from] postgres::Error),
    /// The server's catalogue is not understood.
    #[error(transparent)]
    Catalogue(#[from] read_router::UnexpectedAnswer),
    /// No test cluster.
    #[error("no servers: {0}")]
    Cluster(#[from] read_router_testkit::Error),
    /// The extension is not there.
    #[error(
        "pg_stat_statements is not in this database; CREATE EXTENSION pg_stat_statements, and list it in shared_preload_libraries"
    )]
    NoStatements,
}

/// The server's own words, which the driver keeps in the source.
fn server(error: &postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => format!("{} ({})", db.message(), db.code().code()),
        None => error.to_string(),
    }
}
