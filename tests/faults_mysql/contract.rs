//! What the engine builds on, on a real database.

use std::sync::atomic::{AtomicU32, Ordering};

use fencepost::backend::mysql::settings::Settings;
use fencepost::backend::record::store::Commit;
use futures::future::join_all;

use crate::harness::{patient, records, settings};
use crate::record_contract;
use crate::record_steps::{applied, first};
use crate::servers::{MariaDb, NAME, available};

// G1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_keeps_the_contract_of_records() {
    static CASE: AtomicU32 = AtomicU32::new(0);
    if !available() {
        return;
    }
    let server = MariaDb::started(&[]);
    let empty = async || {
        let database = format!("case{}", CASE.fetch_add(1, Ordering::Relaxed));
        server.sql(&format!(
            "CREATE DATABASE {database}; GRANT ALL ON {database}.* TO {NAME}@'127.0.0.1'"
        ));
        let own = Settings {
            database,
            ..settings(&server)
        };
        records(own).await
    };
    record_contract::all_but_messages(empty).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_long_queues_fits_into_the_packets_of_the_server() {
    if !available() {
        return;
    }
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
