//! What happens to the service when Redis fails, on servers that the tests start.
#![cfg(feature = "redis")]

mod clock;
#[path = "../common/clock_steps.rs"]
mod clock_steps;
mod cluster;
#[path = "../common/forwarder.rs"]
mod forwarder;
mod harness;
#[cfg(feature = "embedded")]
mod keeping;
#[path = "../common/killed.rs"]
mod killed;
mod lost;
mod memory;
#[path = "../common/moved.rs"]
mod moved;
#[path = "../server/mod.rs"]
mod process;
mod processes;
mod replicas;
mod returned;
#[path = "../common/redis.rs"]
mod servers;
mod service;
#[cfg(feature = "embedded")]
#[path = "../common/session_client.rs"]
mod session_client;
#[cfg(feature = "embedded")]
mod sessions;
mod topology;
