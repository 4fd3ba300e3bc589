//! Sessions in two processes read and write registers on real servers while faults are injected; every call is
//! recorded, and what the sessions saw is judged from the record alone.
//!
//! [`run`] does it; [`checker`] is the part that must be trusted, and says what it proves; [`history`] is what it is given.

pub mod checker;
pub mod clock;
pub mod history;

mod cause;
mod episode;
mod excerpt;
mod faults;
mod plan;
mod report;
mod run;
mod worker;
mod workload;

pub use self::{
    excerpt::excerpt,
    plan::Gate,
    report::Report,
    run::{Failure, Progress, Settings, judge, run},
    worker::{WORKER, work},
};
