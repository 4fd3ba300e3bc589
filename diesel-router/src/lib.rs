//! A Diesel connection, sync or async, that sends writes to the PostgreSQL primary and reads to replicas proven fresh enough.

#[cfg(feature = "async")]
mod asynchronous;
