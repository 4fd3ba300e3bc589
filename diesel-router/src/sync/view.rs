//! A connection with what the caller said of its reads.

use std::fmt;

use diesel::{PgConnection, QueryResult, pg::TransactionBuilder};
use read_router::View;

use super::handle::Handle;

/// The routing connection for as long as it is borrowed with a class: what
/// [`RoutingConnection::read`](super::RoutingConnection::read) and its kin return.
///
/// It is a connection like that one, for generic code too: reads without a class of their own have this one, writes and
/// transactions go to the primary. A transaction that says [`read_only`](TransactionBuilder::read_only) runs whole on
/// one node that is proven for the class when it begins.
pub struct ReadConnection {
    pub(super) handle: Handle,
    pub(super) view: View,
}

impl ReadConnection {
    /// Builds a transaction as [`PgConnection::build_transaction`] does.
    pub fn build_transaction(&mut self) -> TransactionBuilder<'_, Self> {
        TransactionBuilder::new(self)
    }

    /// The primary's own connection: see [`RoutingConnection::primary`](super::RoutingConnection::primary).
    ///
    /// # Errors
    /// If the primary cannot be reached, or a transaction is open on a replica.
    pub fn primary(&mut self) -> QueryResult<&mut PgConnection> {
        let Self { handle, view } = self;
        handle.primary(*view)
    }
}

impl fmt::Debug for ReadConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadConnection").field("view", &self.view).finish_non_exhaustive()
    }
}
