//! A Diesel connection, sync or async, that sends writes to the PostgreSQL primary and reads to replicas proven fresh enough.

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
    AsyncBuilder, AsyncCheckout, AsyncReplica, AsyncRouter, AsyncRoutingConnection, AsyncRows, AsyncSource,
    AsyncTransactionBuilder, AsyncReadConnection, AsyncWriteCheckout, PoolStatus as AsyncPoolStatus, RoutedTransactions,
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
