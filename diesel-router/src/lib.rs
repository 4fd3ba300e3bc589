//! A Diesel connection, sync or async, that sends writes to the PostgreSQL primary and reads to replicas proven fresh enough.
//!
//! Build one router for the process in place of the pool, and say at each checkout what it is for. Code that is bound to
//! Diesel's own connection stays as it is:
//!
//! ```
//! # #[cfg(feature = "sync")]
//! # mod example {
//! use diesel::prelude::*;
//! use diesel_router::{ReadClass, Router};
//!
//! diesel::table! { ride { id -> Integer, } }
//!
//! fn rides(conn: &mut PgConnection) -> QueryResult<i64> {
//!     ride::table.count().get_result(conn)
//! }
//!
//! fn serve() -> Result<(), Box<dyn std::error::Error>> {
//!     let router = Router::builder("postgres://app@primary/shop").replica("postgres://app@replica/shop").connect()?;
//!     let mut me = router.session(); // for one request, user or job
//!     diesel::insert_into(ride::table).default_values().execute(&mut me.checkout_write()?)?;
//!     let mut conn = me.checkout(ReadClass::MustSeeMyWrite)?; // a replica that has this session's write
//!     rides(&mut conn)?;
//!     Ok(())
//! }
//! # }
//! ```
//!
//! ```
//! # #[cfg(feature = "async")]
//! # mod example {
//! use diesel::prelude::*;
//! use diesel_async::{AsyncPgConnection, RunQueryDsl};
//! use diesel_router::{AsyncRouter, ReadClass};
//!
//! diesel::table! { ride { id -> Integer, } }
//!
//! async fn rides(conn: &mut AsyncPgConnection) -> QueryResult<i64> {
//!     ride::table.count().get_result(conn).await
//! }
//!
//! async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//!     let builder = AsyncRouter::builder("postgres://app@primary/shop").replica("postgres://app@replica/shop");
//!     let router = builder.connect().await?;
//!     let me = router.session();
//!     diesel::insert_into(ride::table).default_values().execute(&mut me.checkout_write().await?).await?;
//!     let mut conn = me.checkout(ReadClass::MustSeeMyWrite).await?; // a replica that has this session's write
//!     rides(&mut conn).await?;
//!     Ok(())
//! }
//! # }
//! ```
//!
//! Code that is generic over the connection takes the routing connection itself, with a class at each call:
//!
//! ```
//! # #[cfg(feature = "sync")]
//! # mod example {
//! use std::time::Duration;
//!
//! use diesel::{connection::LoadConnection, pg::Pg, prelude::*};
//! use diesel_router::{QueryClass, ReadClass, RoutingConnection};
//!
//! diesel::table! { ride { id -> Integer, } }
//!
//! fn rides(conn: &mut impl LoadConnection<Backend = Pg>) -> QueryResult<i64> {
//!     ride::table.count().get_result(conn)
//! }
//!
//! fn serve(conn: &mut RoutingConnection) -> QueryResult<()> {
//!     rides(conn.must_see_my_write())?; // everything this session wrote or saw
//!     rides(conn.seconds_stale(Duration::from_secs(2)))?; // everything older than two seconds
//!     rides(conn.eventual())?; // some committed state
//!     rides(conn)?; // not annotated: the primary
//!     ride::table.count().read_class(ReadClass::Eventual).get_result::<i64>(conn)?; // the query says it itself
//!     Ok(())
//! }
//! # }
//! ```
//!
//! `AsyncRoutingConnection` (feature `async`) has the same methods. What each class promises, and what not, stands at [`ReadClass`];
//! `docs/diesel.md` of the repository has tokens, pools, migrations and tests.
//!
//! # Features
//! `sync`, the default, brings the sync connection over pools of r2d2, and needs libpq; `bundled` builds libpq from source,
//! with OpenSSL. `async` brings the async connection over diesel-async, without libpq; `deadpool`, `bb8` and `mobc` accept
//! pools of these kinds.

#[cfg(not(any(feature = "sync", feature = "async")))]
compile_error!("diesel-router is a sync connection, an async one, or both: enable feature sync or async");

#[cfg(feature = "async")]
mod asynchronous;
mod class;
mod control;
mod error;
mod established;
mod instrument;
mod kinds;
mod left;
mod read_class;
#[cfg(feature = "sync")]
mod sync;
mod traces;

#[cfg(feature = "async")]
pub use asynchronous::{
    AsyncBuilder, AsyncCheckout, AsyncReadConnection, AsyncReplica, AsyncRouter, AsyncRoutingConnection, AsyncRows,
    AsyncSource, AsyncTransactionBuilder, AsyncWriteCheckout, PoolStatus as AsyncPoolStatus, RoutedTransactions,
};
pub use class::{Classed, QueryClass};
pub use error::{Error, Refusal, refusal};
pub use read_router::{
    Access, BranchLost, ClassName, Config, Explanation, Failure, Fallback, InvalidConfig, Lsn, Misrouted, NodeId,
    NodeStats, ParseTokenError, PinError, PrimaryCount, PrimaryReason, ReadClass, ReadOptions, Served, SetupError,
    Standing, StatementCount, Stats, Timeline, Token, Topology, Unannotated, Unfit, Verdict,
};
#[cfg(feature = "sync")]
pub use sync::{
    Builder, Checkout, Detached, PoolStatus, ReadConnection, Replica, Router, RoutingConnection, Source, WriteCheckout,
};

/// The blocks of the page are compiled with the tests.
#[cfg(all(doctest, feature = "sync", feature = "async"))]
#[doc = include_str!("../../docs/diesel.md")]
struct Page;
