//! A Diesel connection, sync or async, that sends writes to the PostgreSQL primary and reads to replicas proven fresh enough.
//!
//! Build one router for the process, take a connection from it for each request, say at each read how fresh it must be,
//! and keep the rest of the application:
//!
//! ```
//! # #[cfg(feature = "sync")]
//! # mod example {
//! use std::time::Duration;
//!
//! use diesel::{pg::Pg, prelude::*};
//! use diesel_router::Router;
//!
//! diesel::table! { ride { id -> Integer, } }
//!
//! // Repository code stays as it is.
//! fn rides(conn: &mut impl diesel::connection::LoadConnection<Backend = Pg>) -> QueryResult<i64> {
//!     ride::table.count().get_result(conn)
//! }
//!
//! fn serve() -> Result<(), Box<dyn std::error::Error>> {
//!     let router = Router::builder("postgres://app@primary/shop").replica("postgres://app@replica/shop").connect()?;
//!     let mut conn = router.session();
//!     rides(conn.must_see_my_write())?; // everything this session wrote or saw
//!     rides(conn.seconds_stale(Duration::from_secs(2)))?; // everything older than two seconds
//!     rides(conn.eventual())?; // some committed state
//!     rides(&mut conn)?; // not annotated: the primary
//!     Ok(())
//! }
//! # }
//! ```
//!
//! Code that is bound to `PgConnection` takes a checkout instead, a guard on one server. What each class promises, and
//! what not, stands at [`ReadClass`].
//!
//! # Features
//! `sync`, the default, brings the sync connection over pools of r2d2, and needs libpq; `bundled` builds libpq from source.
//! `async` brings the async connection over diesel-async, without libpq; `deadpool`, `bb8` and `mobc` accept pools of these
//! kinds.

#[cfg(not(any(feature = "sync", feature = "async")))]
compile_error!("diesel-router is a sync connection, an async one, or both: enable feature sync or async");

#[cfg(feature = "async")]
mod asynchronous;
mod class;
mod control;
mod error;
mod instrument;
mod kinds;
#[cfg(feature = "sync")]
mod sync;

#[cfg(feature = "async")]
pub use asynchronous::{
    AsyncBuilder, AsyncCheckout, AsyncReadConnection, AsyncReplica, AsyncRouter, AsyncRoutingConnection, AsyncRows,
    AsyncSource, AsyncTransactionBuilder, AsyncWriteCheckout, PoolStatus as AsyncPoolStatus, RoutedTransactions,
};
pub use class::{Classed, QueryClass};
pub use error::{Error, Refusal, refusal};
pub use read_router::{
    BranchLost, ClassName, Config, Explanation, Failure, Fallback, InvalidConfig, Lsn, Misrouted, NodeId, NodeStats,
    ParseTokenError, PrimaryCount, PrimaryReason, ReadClass, ReadOptions, Served, SetupError, Standing, StatementCount,
    Stats, Timeline, Token, Topology, Unannotated, Unfit, Verdict,
};
#[cfg(feature = "sync")]
pub use sync::{
    Builder, Checkout, Detached, PoolStatus, ReadConnection, Replica, Router, RoutingConnection, Source, WriteCheckout,
};
