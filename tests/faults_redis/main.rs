//! What happens to the service when Redis fails, on servers that the tests start.
#![cfg(feature = "redis")]

#[cfg(feature = "embedded")]
use common::session_client;
use common::{
    clients, clock_steps, crowd, distance, forwarder, killed, moved, record_faults, record_steps, redis as servers,
    short_leases, standstill,
};

mod clock;
mod cluster;
mod harness;
#[cfg(feature = "embedded")]
mod hostile;
#[cfg(feature = "embedded")]
mod keeping;
mod load;
mod lost;
mod memory;
mod processes;
mod records;
mod replicas;
mod returned;
mod service;
#[cfg(feature = "embedded")]
mod sessions;
mod topology;
