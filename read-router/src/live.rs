//! What every adapter runs on: one picture of the servers that all calls share, and calls on their way.
//!
//! Here the pure parts of the crate meet a clock, locks, wake-ups and random draws. There is still no I/O, no task and no
//! runtime: a [`Call`] says what to do next, and the adapter does it and reports, blocking or not.
//!
//! An adapter runs one loop for each node: wait until [`Watch::due`] says so, probe, report. To serve a read it asks
//! [`Call::step`] where to go until that is settled. One more loop reads the catalogue from the primary when
//! [`Watch::catalogue_due`] says so.

mod call;
mod clock;
mod export;
mod gate;
mod schema;
mod session;
mod watch;

pub use call::{Call, Missed, Step};
pub use clock::now;
pub use export::Export;
pub use gate::{Admission, Refusal, Settle, Settling};
pub use schema::{CATALOGUE_LIMIT, CatalogueReading, SchemaChanges};
pub use session::{Returning, SharedSession};
pub use watch::{Busy, Change, Current, GaveUp, Watch};
