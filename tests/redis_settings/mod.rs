//! What the settings of a Redis backend do, on servers that the tests start.
#![cfg(feature = "redis")]

use common::{certificates, claims as numbered, forwarder, record_contract, redis as servers};

use crate::faults_redis::harness;

mod access;
mod contract;
mod damaged;
mod failover;
mod kept;
mod lists;
mod opened;
mod program;
mod promoted;
mod quarantine;
mod quiet;
mod scripts;
mod wait_replicas;
