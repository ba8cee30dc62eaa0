//! What the settings of a Redis backend do, and what its rare long ways cost, on servers that the tests
//! start.
#![cfg(feature = "redis")]

mod access;
#[path = "../faults_redis/bench.rs"]
#[allow(dead_code, reason = "each test binary uses its share")]
mod bench;
mod bounded;
#[path = "../common/certificates.rs"]
mod certificates;
mod claims;
mod damaged;
mod failover;
mod long_queues;
mod program;
mod quarantine;
mod quiet;
#[path = "../common/redis.rs"]
mod servers;
mod wait_replicas;
