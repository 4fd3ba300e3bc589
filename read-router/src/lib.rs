//! Decides which PostgreSQL server may serve a read.
//!
//! A read goes to a replica only if that replica is known to have what the reader needs. That idea lives in one
//! function, [`select`]: plain values in, plain value out. Everything else feeds it or obeys it. The crate does no I/O and
//! runs no task: adapters such as `sea-router` do. Only [`live`], which is what they run on, reads a clock, takes locks and
//! draws random numbers; all else is handed what it needs.
//!
//! ```
//! use read_router::{Config, InFlight, Need, PrimaryReason, ReadClass, Route, Session, Time, Monitor, select};
//!
//! let config = Config::default();
//! let monitor = Monitor::new(2, config.clone());
//! let need = Need {
//!     read: ReadClass::Eventual.into(),
//!     session: &Session::new(true),
//!     started: Time::from_nanos(0),
//!     exclude: None,
//!     in_flight: &InFlight::new(3),
//!     config: &config,
//! };
//! // No replica has answered a probe yet: doubt goes to the primary, with a reason.
//! let route = select(monitor.topology(), &need, Time::from_nanos(1), 42);
//! assert_eq!(route, Route::Primary(PrimaryReason::NoneUp));
//! ```
//!
//! | module of thought | types |
//! |---|---|
//! | the choice | [`select`], [`Need`], [`Route`], [`Proof`], [`PrimaryReason`], [`Served`], [`InFlight`], [`explain`] |
//! | what a read asks for | [`ReadClass`], [`ReadOptions`], [`Fallback`], [`Config`] |
//! | what a replica is for | [`ReplicaConfig`] |
//! | what is known of servers | [`Topology`], [`Node`], [`Standing`], [`Observation`], [`Sample`] |
//! | who asks them | [`Monitor`], [`probe`], [`Failure`] |
//! | what a session must see | [`Session`], [`Token`], [`BranchLost`] |
//! | positions in history | [`Lsn`], [`Branch`], [`Position`], [`Epoch`], [`Instance`] |
//! | what is a read | [`StatementKind`], [`StatementKinds`], [`StatementTally`], [`Known`], [`Catalogue`], [`Pins`] |
//! | what a failed read says | [`ReplicaError`] |
//! | what the application has said | [`View`], [`Unannotated`], [`Misrouted`], [`Sessions`], [`SetupError`] |
//! | what adapters run on | [`live`] |
//! | what happened | [`Stats`], [`Counters`], [`events`] |

mod branch;
mod choice;
mod class;
mod config;
pub mod events;
mod floor;
mod in_flight;
pub mod live;
mod lsn;
mod monitor;
#[cfg(read_router_mutants)]
pub mod mutants;
#[cfg(not(read_router_mutants))]
mod mutants;
mod observation;
mod policy;
mod positions;
pub mod probe;
#[cfg(test)]
mod rehearsal;
mod replica;
mod route;
mod samples;
mod select;
mod session;
mod settings;
mod setup;
mod sqlstate;
mod statement;
mod stats;
mod time;
mod token;
mod topology;
mod verdict;
mod visible;

pub use branch::{Branch, Epoch, Instance, NodeId, Position, SystemId, Timeline};
pub use class::{Fallback, ReadClass, ReadOptions};
pub use config::{Config, InvalidConfig};
pub use in_flight::InFlight;
pub use lsn::{Lsn, ParseLsnError, WalLayout};
pub use monitor::Monitor;
pub use observation::{Failure, Observation, Role};
pub use policy::{Destination, Misrouted, Sessions, Unannotated, View};
pub use probe::{Answer, Backend, Greeting, Opened, UnexpectedAnswer};
pub use replica::ReplicaConfig;
pub use route::{Ask, PrimaryReason, Proof, Route, Served};
pub use samples::Sample;
pub use select::{Need, select};
pub use session::{BranchLost, Session, WriteId, connection_trusts};
pub use setup::{SetupError, check_addresses, check_first_answers};
pub use sqlstate::ReplicaError;
pub use statement::{
    Access, Catalogue, Known, NotRead, PinError, Pins, SchemaChange, StatementCount, StatementKind, StatementKinds,
    StatementTally,
};
pub use stats::{ClassName, Counters, NodeStats, PrimaryCount, Stats};
pub use time::Time;
pub use token::{ParseTokenError, Token};
pub use topology::{Node, Standing, Topology};
pub use verdict::{Explanation, Unfit, Verdict, explain};
