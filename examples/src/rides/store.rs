//! Where users and rides are kept: over the same servers, by the ORM that the command line names.
//!
//! What an application changes is in [`sea`], [`sync`] and [`asynchronous`]: the connection, and the class at the read.

mod asynchronous;
mod schema;
mod sea;
mod sync;

use std::{
    error::Error,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use sea_router::{Served, Stats, Token, Topology};

use crate::api::{Reads, RideBody};

pub(crate) use self::{asynchronous::DieselAsync, sea::SeaOrm, sync::Diesel};

/// What the ORM says.
pub(crate) type Failed = Box<dyn Error + Send + Sync>;

/// A routing connection of one ORM.
#[async_trait]
pub(crate) trait Store: Send + Sync {
    /// A session of its own.
    fn new_session(&self) -> Arc<dyn Session>;

    /// Makes the tables. If they are there already, it is an error, and they stay as they are.
    async fn create_tables(&self) -> Result<Token, Failed>;

    /// Drops the tables that [`create_tables`](Self::create_tables) made.
    async fn drop_tables(&self) -> Result<(), Failed>;

    /// What is known of the servers.
    fn topology(&self) -> Arc<Topology>;

    /// The counters.
    fn stats(&self) -> Stats;

    /// Ends it.
    async fn close(&self) -> Result<(), Failed>;
}

/// What one user has done and seen.
#[async_trait]
pub(crate) trait Session: Send + Sync {
    async fn create_user(&self, email: String) -> Result<i64, Failed>;

    async fn create_ride(&self, user: i64, distance: i64) -> Result<RideBody, Failed>;

    /// Changes a ride of the user's; the read that decides runs with the write, in a transaction on the primary.
    async fn update_ride(&self, user: i64, ride: i64, distance: i64) -> Result<Option<RideBody>, Failed>;

    /// The read that this program is about, and where it was served.
    async fn read_ride(&self, ride: i64, reads: Reads) -> Result<(Option<RideBody>, Option<Served>), Failed>;
}

/// Waits until every replica has what the token says. Only a naive run needs it: it would ask a replica that has not the
/// tables.
pub(crate) async fn wait_everywhere(store: &dyn Store, token: Token, patience: Duration) -> Result<(), Failed> {
    let deadline = Instant::now() + patience;
    let is_everywhere = || {
        let topology = store.topology();
        topology.nodes()[1..]
            .iter()
            .filter_map(|node| node.reached())
            .filter(|reached| token.positions().all(|position| topology.covers(*reached, position)))
            .count()
            + 1
            == topology.nodes().len()
    };
    while !is_everywhere() {
        if Instant::now() > deadline {
            return Err(format!("not every replica has the tables after {patience:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
