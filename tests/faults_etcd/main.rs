//! What happens to the service when etcd fails, on servers that the tests start.
#![cfg(feature = "etcd")]

mod batches;
mod bench;
mod leader;
mod leases;
mod replicas;
mod restore;
mod rights;
#[path = "../common/etcd.rs"]
mod servers;
mod space;
