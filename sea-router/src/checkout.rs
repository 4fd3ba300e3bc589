//! One server for code that is bound to SeaORM's own connection type.

use std::{fmt, ops::Deref};

use read_router::{
    NodeId, Opened, PrimaryReason, Proof, ReadOptions,
    live::{Busy, Call},
};
use sea_orm::{DatabaseConnection, DbErr};

use crate::{
    RoutingConnection,
    metric::Place as Ran,
    routing::{Attempt, Missed, Outcome},
};

/// A guard on one server that was proven good enough for a class when it was taken; it dereferences to SeaORM's own
/// [`DatabaseConnection`], for code that is bound to that type: one choice for a whole request.
///
/// # Guaranteed
/// When it was taken, the server had what the class asks for, and a replica only goes forward. It is read-only wherever
/// it leads, unless a transaction asks for READ WRITE by name: a replica's pool is, and the primary, if it had to be that,
/// is reached by a small read-only pool of its own. A write through it is the server's own error: 25006, `cannot execute
/// INSERT in a read-only transaction`.
/// While it is held, and from then on, the session's strict reads see everything that may have been read through it.
///
/// # Not guaranteed
/// It proves its class when it is taken, not again later: a write of the session that comes after is not covered, a
/// bound in seconds counts up to the taking, and of a replica that crashes meanwhile the pool may open a new connection
/// that shows less. A setting that is changed on one of its connections (`RESET ALL`) stays changed there. What is read through a clone of its `DatabaseConnection` that outlives it is unseen. Keep it for one request, not in a state.
pub struct Checkout {
    connection: RoutingConnection,
    place: Place,
    database: DatabaseConnection,
}

enum Place {
    Replica { node: NodeId, proof: Proof, _busy: Busy },
    Primary(Option<Opened>),
}

impl RoutingConnection {
    /// One server that is proven good enough for this class now, as SeaORM's own connection.
    ///
    /// # Errors
    /// If no server can be reached, or none is good enough and the options want no fallback.
    pub async fn checkout(&self, options: impl Into<ReadOptions>) -> Result<Checkout, DbErr> {
        let options = options.into();
        let view = self.read(options);
        let mut call = Call::new(options);
        match view.serve(&mut call, &CheckoutOnce).await? {
            Outcome::Served(checkout) => Ok(checkout),
            Outcome::Primary(reason) | Outcome::Misrouted(reason) => view.checkout_primary(&call, reason).await,
        }
    }

    async fn checkout_primary(&self, call: &Call, reason: PrimaryReason) -> Result<Checkout, DbErr> {
        let node = self.inner.read_only();
        let (checked, reason) = self.acquire_primary(node, Some(call), reason).await?;
        self.count_primary(Some(call.class()), reason, call.waited());
        self.session.with(read_router::Session::given_out);
        let place = Place::Primary(checked.opened);
        let database = self.metered(&node.database, Ran::primary(PrimaryReason::GivenOut));
        Ok(Checkout { connection: self.clone(), place, database })
    }
}

struct CheckoutOnce;

impl Attempt for CheckoutOnce {
    type Out = Checkout;

    fn sql(&self) -> &str {
        ""
    }

    async fn attempt(
        &self,
        routing: &RoutingConnection,
        call: &Call,
        node: NodeId,
        proof: &Proof,
        busy: Busy,
    ) -> Result<Checkout, Missed> {
        // It goes back to the pool at once: what was proven of its server holds for the pool's others.
        drop(routing.acquire_proven(call, node, proof).await?);
        let Some(server) = routing.inner.nodes.get(node.index()) else { return Err(Missed::Unproven) };
        let served = routing.count_replica(call, node);
        routing.session.checked_out(&routing.inner.watch, node, proof, served);
        let place = Place::Replica { node, proof: *proof, _busy: busy };
        let database = routing.metered(server.guarded(), Ran::replica(node));
        Ok(Checkout { connection: routing.clone(), place, database })
    }
}

impl Checkout {
    /// The server that it leads to.
    #[must_use]
    pub fn node(&self) -> NodeId {
        match self.place {
            Place::Replica { node, .. } => node,
            Place::Primary(_) => NodeId::PRIMARY,
        }
    }
}

impl Deref for Checkout {
    type Target = DatabaseConnection;

    fn deref(&self) -> &DatabaseConnection {
        &self.database
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        let (session, watch) = (&self.connection.session, &self.connection.inner.watch);
        match &self.place {
            Place::Replica { node, proof, .. } => session.checked_in(watch, *node, proof),
            Place::Primary(opened) => {
                session.contact(watch, *opened);
                session.with(read_router::Session::taken_back);
            }
        }
    }
}

impl fmt::Debug for Checkout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkout").field("node", &self.node()).finish()
    }
}
