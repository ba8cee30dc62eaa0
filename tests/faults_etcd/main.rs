//! What happens to the service when etcd fails, on servers that the tests start.
#![cfg(feature = "etcd")]

mod batches;
mod bench;
#[path = "../common/certificates.rs"]
mod certificates;
mod forwarder;
mod history;
mod late;
mod leader;
mod leases;
mod partition;
mod replicas;
mod restore;
mod rights;
#[path = "../common/etcd.rs"]
mod servers;
mod space;
mod views;
mod waking;
