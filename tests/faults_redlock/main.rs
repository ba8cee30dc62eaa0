//! What happens to the service when nodes of a RedLock fail or forget, on servers that the tests start.
#![cfg(feature = "redlock")]

mod bench;
mod forwarder;
mod late;
mod memory;
mod nodes;
mod replicas;
#[path = "../common/redis.rs"]
mod servers;
