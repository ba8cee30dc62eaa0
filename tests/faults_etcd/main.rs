//! What happens to the service when etcd fails, on servers that the tests start.
#![cfg(feature = "etcd")]

mod batches;
mod cancelled;
#[path = "../common/certificates.rs"]
mod certificates;
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
#[path = "../common/forwarder.rs"]
mod forwarder;
mod harness;
mod history;
#[path = "../common/killed.rs"]
mod killed;
mod late;
mod later;
mod leader;
mod leases;
mod mixed;
#[path = "../common/moved.rs"]
mod moved;
mod outage;
mod partition;
#[path = "../server/mod.rs"]
mod process;
mod processes;
mod proxy;
mod remembered;
#[path = "../conformance/replica.rs"]
#[allow(dead_code, reason = "each test binary uses its share")]
mod replica;
mod restore;
mod rights;
#[path = "../common/etcd.rs"]
mod servers;
mod sharing;
mod sizes;
mod space;
mod views;
mod waking;
#[path = "../common/wild_clock.rs"]
mod wild_clock;
