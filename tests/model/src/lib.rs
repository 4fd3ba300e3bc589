//! A small model of the servers around the real decision core, searched for schedules that break a promise.
//!
//! The transition function is the real code: [`Monitor`](read_router::Monitor), [`Session`](read_router::Session),
//! [`select`](read_router::select()) and [`connection_trusts`](read_router::connection_trusts), driven as an adapter
//! drives them. Only the servers are a model: logs of commits, replay, crashes, promotions, a name that moves, probes
//! that are answered late, pooled connections older and newer than what was observed.
//!
//! Beside the code's state goes a ghost that it knows nothing of: which commits had been acknowledged when each sample
//! was sent, and which ones the session wrote and was shown. Reads are judged by sets of commits, never by positions,
//! so the judgement shares no logic with the code.
//!
//! | what | where |
//! |---|---|
//! | one tiny world for each rule: off is found, on is exhausted | [`worlds`] |
//! | worlds in which several things go wrong | [`combined`] |
//! | what is documented as not promised, and found | [`excuses`] |
//! | random walks through larger worlds, shrunk | [`explore`] |
//!
//! Of `RULES.md` rule 1 has no switch (it comes from PostgreSQL; see [`excuses`]), and these parts of others hold by
//! construction: a checkout proves its class once (15, the adapter), and ages that an observer gives never resolve a
//! mark (11, no observer yet).

mod action;
mod client;
pub mod combined;
pub mod excuses;
pub mod explore;
mod possible;
mod process;
mod ranked;
mod reading;
mod rule;
mod search;
mod server;
mod shared;
mod state;
mod step;
mod steps;
mod world;
pub mod worlds;

pub use action::Action;
pub use client::{Class, Violation};
pub use rule::Off;
pub use search::{Found, Schedule};
pub use server::Commits;
pub use state::State;
pub use world::{Budget, World};
