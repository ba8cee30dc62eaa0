//! What happens to the service when nodes of a RedLock fail or forget, on servers that the tests start.
#![cfg(feature = "redlock")]

#[path = "../common/forwarder.rs"]
mod answers;
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
#[path = "../common/redis.rs"]
mod servers;
mod waiters;
