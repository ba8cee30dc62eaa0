//! What happens to the service when Redis fails, on servers that the tests start.
#![cfg(feature = "redis")]

#[cfg(feature = "embedded")]
use common::session_client;
use common::{clients, forwarder, record_steps, redis as servers};

mod clock;
mod cluster;
pub mod harness;
#[cfg(feature = "embedded")]
mod hostile;
#[cfg(feature = "embedded")]
mod keeping;
mod lost;
mod memory;
mod records;
mod replicas;
mod returned;
mod service;
#[cfg(feature = "embedded")]
mod sessions;
mod store;
mod topology;

common::faults!(redis, store::Redis);
