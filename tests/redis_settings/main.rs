//! What the settings of a Redis backend do, and what its rare long ways cost, on servers that the tests
//! start.
#![cfg(feature = "redis")]

mod access;
#[path = "../common/certificates.rs"]
mod certificates;
mod contract;
mod crowds;
mod damaged;
mod failover;
#[path = "../common/forwarder.rs"]
mod forwarder;
#[path = "../faults_redis/harness.rs"]
#[allow(dead_code, reason = "each test binary uses its share")]
mod harness;
mod kept;
mod lists;
mod long_queues;
#[path = "../common/claims.rs"]
mod numbered;
mod order;
mod program;
mod promoted;
mod quarantine;
mod quiet;
#[path = "../common/record_contract.rs"]
mod record_contract;
mod scripts;
#[path = "../common/redis.rs"]
mod servers;
mod wait_replicas;
