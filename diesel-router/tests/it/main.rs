//! Both adapters on real servers: one binary.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod anew;
mod application;
mod asynchronous;
mod docs;
mod failed;
mod failover;
mod library;
mod sync_basics;
mod sync_broken;
mod sync_catalogue;
mod sync_checkouts;
mod sync_differential;
mod sync_left;
mod sync_rounds;
mod sync_scenarios;
mod sync_support;
mod sync_types;
