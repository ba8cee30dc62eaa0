//! What the engine builds on, on a real database.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fencepost::backend::postgres::settings::Settings;
use fencepost::backend::record::store::RecordStore;

use crate::harness::{records, settings};
use crate::pooler::Pooler;
use crate::record_contract;
use crate::servers::{NAME, Postgres, available};

/// The records of a schema of their own.
async fn empty(server: &Postgres, settings: Settings) -> Arc<dyn RecordStore> {
    static CASE: AtomicU32 = AtomicU32::new(0);
    let schema = format!("case{}", CASE.fetch_add(1, Ordering::Relaxed));
    server.sql(&format!("CREATE SCHEMA {schema} AUTHORIZATION {NAME}"));
    records(Settings { schema, ..settings }).await
}

// G1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_keeps_the_contract_of_records() {
    common::skip_unless!(available());
    let server = Postgres::started(&[]);
    record_contract::all(async || empty(&server, settings(&server)).await).await;
}

// G129a
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_the_database_keeps_the_contract_of_records() {
    let Some((server, pooler)) = Pooler::started() else {
        return;
    };
    record_contract::all_but_messages(async || empty(&server, pooler.settings()).await).await;
}
