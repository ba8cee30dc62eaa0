//! What a store was opened with, which all its servers must have.

use fencepost::backend::Health;
use fencepost::backend::record::store::RecordStore;

use crate::harness::{Replication, Server, Settings, records, settings, unready};
use crate::record_steps::{applied, first, healthy, serves};
use crate::servers::available;

/// Waits until a server says that it is refused, and with these values.
async fn is_told(records: &dyn RecordStore, values: [&str; 4]) {
    let says_all = |health: &Health| match health {
        Health::Unavailable { reason } => values.iter().all(|value| reason.contains(value)),
        _ => false,
    };
    healthy(records, says_all).await;
    records.commit(first("refused")).await.expect_err("it is refused");
}

// G200
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_another_replication_or_guarantee_is_refused_and_told_both() {
    common::skip_unless!(available());
    let server = Server::started(&[]);
    let asynchronous = || Settings {
        replication: Replication::Asynchronous,
        ..settings(&server)
    };
    let first_one = records(settings(&server)).await;
    applied(first_one.commit(first("a")).await);
    let state = || server.sql("SELECT since, replication, guarantee FROM fencepost_store");
    let before = state();
    let other = unready(asynchronous());
    is_told(&*other, ["\"single\"", "CP", "\"asynchronous\"", "AP"]).await;
    // None of several servers is promoted: nobody knows which one has the leases, so that is AP.
    let mut several = settings(&server);
    several.servers.push("127.0.0.1:1".into());
    is_told(
        &*unready(several),
        ["\"single\"", "CP", "\"single\" and AP", "docs/reload.md"],
    )
    .await;
    assert_eq!(state(), before, "a server that is refused changes nothing");
    applied(first_one.commit(first("b")).await);
    // An operator who lets others in, while servers run that do not agree.
    server.sql("UPDATE fencepost_store SET replication = NULL, guarantee = NULL");
    serves(&*other).await;
    is_told(&*first_one, ["\"asynchronous\"", "AP", "\"single\"", "CP"]).await;
    applied(other.commit(first("c")).await);
}
