//! The records in Redis keep the contract that the record engine builds on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fencepost::backend::Health;
use fencepost::backend::record::store::RecordStore;
use fencepost::backend::redis::Store;
use fencepost::backend::redis_server::settings::{Servers, Settings};
use fencepost::name::Namespace;

use crate::harness::{settings, standalone};
use crate::record_contract;
use crate::servers::{Cluster, RedisServer, available};

/// The records of a store without any.
async fn empty(settings: &Settings) -> Arc<dyn RecordStore> {
    static STORE: AtomicU32 = AtomicU32::new(0);
    let mut settings = settings.clone();
    settings.prefix = format!("store{}", STORE.fetch_add(1, Ordering::Relaxed));
    let records = Store::open(settings)
        .unwrap()
        .records(&Namespace::new("records").unwrap());
    let mut health = records.health();
    health.wait_for(|health| *health == Health::Serving).await.unwrap();
    records
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_keeps_the_contract() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let settings = standalone(&server.url());
    record_contract::all(async || empty(&settings).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_keeps_the_contract() {
    if !available() {
        return;
    }
    let cluster = Cluster::start();
    let settings = settings(Servers::cluster(&cluster.urls()).unwrap());
    record_contract::all(async || empty(&settings).await).await;
}
