//! Connections that are cleaned before their pool has them back.

use std::time::Duration;

use super::{
    node::Checked,
    runtime::{spawn, timeout},
};

/// As long may a rollback take that nobody waits for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Ends in the background what is open on the connection, and gives it back; if that does not work it is closed.
pub(crate) fn clean_later(connection: Checked, then: &'static str) {
    let mut unclean = Unclean(Some(connection));
    spawn(async move {
        let Some(connection) = &mut unclean.0 else { return };
        if let Ok(Ok(())) = timeout(PATIENCE, connection.end_open(then)).await {
            drop(unclean.0.take());
        }
    });
}

/// A connection that is closed, unless it is taken out: also where there is no runtime to clean it, or none any more.
struct Unclean(Option<Checked>);

impl Drop for Unclean {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            connection.discard();
        }
    }
}
