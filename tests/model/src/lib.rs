//! A model of the servers around the real decision core.
#![allow(missing_docs)]

mod action;
mod client;
pub mod combined;
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

impl World {
    pub(crate) fn judges_bounds(&self) -> bool {
        self.classes.contains(&Class::Bounded)
    }
}
