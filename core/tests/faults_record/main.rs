//! The record engine over a store in memory that loses, delays, repeats and refuses: what it promises all the same.
//!
//! [`rules`] holds each of the nine rules of `fencepost_core::backend::record` by a history that needs it; [`servers`] has
//! servers that die, hang and miss messages, [`polls`] what they read by themselves, [`distance`] servers far away,
//! [`unsettled`] commits that were not answered, [`unconfirmed`] those that too few replicas have, and [`memory`] the ends
//! that a lock remembers. [`closing`] has servers that end in peace. [`storm`] runs the calls of two servers through random faults.

mod closing;
mod distance;
mod memory;
mod polls;
mod rules;
mod server;
mod servers;
mod storm;
mod unconfirmed;
mod unsettled;

use std::sync::Arc;

use common::{claims, record_contract, record_store, short_leases};
use fencepost_core::backend::record::store::RecordStore;

/// The store in memory keeps the contract that the engine builds on.
#[tokio::test(start_paused = true)]
async fn the_store_in_memory_keeps_its_contract() {
    record_contract::all(async || record_store::Database::default().connect() as Arc<dyn RecordStore>).await;
}

/// Sorts before all others, which would otherwise run twice.
#[test]
fn a_binary_begins_anew_before_its_other_tests() {
    common::seeded::begin_anew();
}
