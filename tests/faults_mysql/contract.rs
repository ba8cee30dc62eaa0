//! What the engine builds on, on a real database.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fencepost::backend::mysql::settings::Settings;
use fencepost::backend::record::store::{Commit, RecordStore};
use futures::future::join_all;

use crate::harness::{patient, records, settings};
use crate::record_contract;
use crate::record_steps::{applied, first};
use crate::servers::{MariaDb, NAME, available};

/// The records of a database of their own.
pub async fn empty(server: &MariaDb) -> Arc<dyn RecordStore> {
    static CASE: AtomicU32 = AtomicU32::new(0);
    let database = format!("case{}", CASE.fetch_add(1, Ordering::Relaxed));
    server.sql(&format!(
        "CREATE DATABASE {database}; GRANT ALL ON {database}.* TO {NAME}@'127.0.0.1'"
    ));
    let own = Settings {
        database,
        ..settings(server)
    };
    records(own).await
}

// G1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_keeps_the_contract_of_records() {
    common::skip_unless!(available());
    let server = MariaDb::started(&[]);
    record_contract::all_but_messages(async || empty(&server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_long_queues_fits_into_the_packets_of_the_server() {
    common::skip_unless!(available());
    let server = MariaDb::started(&[]);
    let records = records(patient(&server)).await;
    let large = |lock: usize| Commit {
        body: vec![7; 1 << 20],
        ..first(&format!("lock {lock}"))
    };
    // Ten times 2 MiB of digits; the server refuses more than 16.
    for result in join_all((0..10).map(|lock| records.commit(large(lock)))).await {
        applied(result);
    }
    assert_eq!(records.list("", None, 100).await.expect("it lists").len(), 10);
}
