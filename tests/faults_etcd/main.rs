//! What happens to the service when etcd fails, on servers that the tests start.
#![cfg(feature = "etcd")]

use common::{certificates, etcd as servers, forwarder, killed, moved, server as process, wild_clock};

mod batches;
mod cancelled;
#[path = "../conformance/claims.rs"]
#[allow(dead_code, reason = "each test binary uses its share")]
mod claims;
mod clock;
mod conditions;
mod costs;
mod crowds;
mod endings;
mod fixture;
mod forced;
mod harness;
mod history;
mod late;
mod later;
mod leader;
mod leases;
mod mixed;
mod outage;
mod partition;
mod processes;
mod proxy;
mod remembered;
#[path = "../conformance/replica.rs"]
#[allow(dead_code, reason = "each test binary uses its share")]
mod replica;
mod restore;
mod rights;
mod sharing;
mod sizes;
mod space;
mod trees;
mod views;
mod waking;
