//! The async connection, over diesel-async.

mod beginning;
mod builder;
mod card;
mod catalogue;
mod checkout;
mod clean;
mod collected;
mod connection;
mod doubt;
mod establish;
mod finish;
mod node;
mod pool;
mod router;
mod routing;
mod rows;
mod runtime;
mod schema;
mod source;
mod statement;
mod text;
mod traits;
mod transaction;
mod transaction_builder;
mod watch;

pub use builder::AsyncBuilder;
pub use checkout::{AsyncCheckout, AsyncWriteCheckout};
pub use connection::{AsyncReadConnection, AsyncRoutingConnection};
pub use router::{AsyncRouter, PoolStatus};
pub use rows::AsyncRows;
pub use source::{AsyncReplica, AsyncSource};
pub use transaction::RoutedTransactions;
pub use transaction_builder::AsyncTransactionBuilder;
