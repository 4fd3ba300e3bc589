//! The sync connection, over pools of r2d2.

mod builder;
mod catalogue;
mod checked;
mod checkout;
mod connection;
mod context;
mod doubt;
mod establish;
mod guard;
mod handle;
mod monitor;
mod node;
mod question;
mod router;
mod rows;
mod schema;
mod source;
mod traits;
mod transaction;
mod url;
mod view;

use crate::control;

pub use builder::Builder;
pub use checkout::{Checkout, Detached, WriteCheckout};
pub use connection::RoutingConnection;
pub use router::{PoolStatus, Router};
pub use source::{Replica, Source};
pub use view::ReadConnection;
