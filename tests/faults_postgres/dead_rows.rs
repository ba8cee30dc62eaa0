//! Rows that VACUUM cannot remove.

use crate::harness::{namespace, session};
use crate::process::until;
use crate::servers::{Postgres, available};
use crate::standstill::start;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_warns_of_many_dead_rows() {
    if !available() {
        return;
    }
    let server = Postgres::started(&[]);
    let (_home, process) = start(&namespace(&server.address()));
    until("it serves", || process.said("the store serves").then_some(()));
    let mut other = session(&server).await;
    let snapshot = other
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead);
    let snapshot = snapshot.start().await.expect("it begins");
    snapshot
        .query_one("SELECT count(*) FROM fencepost_lock", &[])
        .await
        .expect("it reads");
    let warning = "the table of locks has many dead rows";
    server.sql(
        "INSERT INTO fencepost_lock (id, version, time, ahead, body) \
         SELECT convert_to('other' || n, 'UTF8'), 1, 0, 0, '' FROM generate_series(1, 30000) n",
    );
    assert!(!process.said(warning), "they live");
    server.sql("DELETE FROM fencepost_lock");
    until("it warns", || process.said(warning).then_some(()));
    drop(snapshot);
}
