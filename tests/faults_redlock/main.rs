//! What happens to the service when nodes of a RedLock fail or forget, on servers that the tests start.
#![cfg(feature = "redlock")]

use common::{forwarder as answers, redis as servers};

mod clocks;
mod first_start;
mod forwarder;
mod harness;
mod late;
mod memory;
mod nodes;
mod records;
mod replicas;
mod residue;
mod scripts;
mod store;
mod waiters;

common::faults!(redlock, store::Nodes);
