//! A SeaORM connection that sends writes to the PostgreSQL primary and reads to replicas proven fresh enough.
//!
//! Swap [`sea_orm::DatabaseConnection`] for [`RoutingConnection`], say at each read how fresh it must be, and keep the
//! rest of the application:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use sea_orm::{ConnectionTrait, DbErr, Statement};
//! use sea_router::RoutingConnection;
//!
//! // Repository code stays as it is.
//! async fn rides(db: &impl ConnectionTrait) -> Result<usize, DbErr> {
//!     let all = Statement::from_string(db.get_database_backend(), "SELECT id FROM ride");
//!     Ok(db.query_all_raw(all).await?.len())
//! }
//!
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! let db = RoutingConnection::builder("postgres://app@primary/shop")
//!     .replica("postgres://app@replica/shop")
//!     .connect()
//!     .await?;
//! let request = db.new_session();
//! rides(&request.must_see_my_write()).await?; // everything this session wrote or saw
//! rides(&request.seconds_stale(Duration::from_secs(2))).await?; // everything older than two seconds
//! rides(&request.eventual()).await?; // some committed state
//! rides(&request).await?; // not annotated: the primary
//! # Ok(()) }
//! ```
//!
//! What each class promises, and what not, stands at [`ReadClass`]. How a session is carried between requests and
//! processes: [`RoutingConnection::token`] and [`RoutingConnection::resume`].
//!
//! # Features
//! `tls-rustls` and `tls-native-tls` pass through to SeaORM; without either, connections are not encrypted. `axum` brings
//! the extractor of a session for each request.
//!
//! `schema-sync`, `rbac`, `entity-registry` and `tracing-spans` pass through to SeaORM and bring its schema sync, its access
//! control, `get_schema_registry` and its spans over the routing connection.

#[cfg(feature = "axum")]
pub mod axum;
mod builder;
mod catalogue;
mod checkout;
mod connection;
mod doubt;
mod error;
mod executor;
mod fetch;
mod finish;
mod inherent;
mod metric;
mod node;
mod openings;
mod pool;
#[cfg(feature = "rbac")]
mod rbac;
mod reader;
mod routing;
#[cfg(feature = "schema-sync")]
mod schema;
mod source;
mod spans;
mod stream;
mod traits;
mod transaction;
mod watch;

pub use builder::Builder;
pub use checkout::Checkout;
pub use connection::RoutingConnection;
pub use error::{Error, refusal};
pub use metric::StatementInfo;
pub use pool::PoolTracker;
#[cfg(feature = "rbac")]
pub use rbac::{Restricted, RestrictedConnection, RestrictedTransaction};
pub use read_router::{
    Access, BranchLost, ClassName, Config, Explanation, Failure, Fallback, InvalidConfig, Lsn, Misrouted, NodeId,
    NodeStats, NotRead, ParseTokenError, PinError, PrimaryCount, PrimaryReason, ReadClass, ReadOptions, Served,
    SetupError, Standing, StatementCount, StatementKind, Stats, Timeline, Token, Topology, Unannotated, Unfit, Verdict,
};
pub use reader::Reader;
pub use source::{Replica, Source};
pub use stream::RoutedStream;
pub use transaction::{RoutedTransaction, RoutedTransactionStream};
