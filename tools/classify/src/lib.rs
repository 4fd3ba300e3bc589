//! Says of SQL statements which of them replicas may serve, and why not the others.
//!
//! [`input`] reads statements from a file, [`split`] cuts a script as `psql` does, [`server`] reads a server's catalogue and
//! its `pg_stat_statements`, [`report`] sums up, and [`oracle`] runs on a real standby what was called a read.

mod error;
pub mod input;
pub mod oracle;
pub mod report;
pub mod server;
pub mod split;

pub use error::Error;
