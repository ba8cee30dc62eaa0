//! How the store makes its tables, and which it leaves alone.

use fencepost::backend::Health;
use fencepost::backend::record::store::Committed;
use futures::future::join_all;

use crate::harness::{NUMBER, Server, Settings, assert_no_conflict, records, settings, unready};
use crate::record_steps::{first, healthy, serves};
use crate::servers::available;

/// Waits until the store says this of the database.
pub async fn is_refused(settings: Settings, problem: &str) {
    let records = unready(settings);
    let says = |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains(problem));
    healthy(&*records, says).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_of_another_format_are_left_alone() {
    common::skip_unless!(available());
    let server = Server::started(&[]);
    serves(&*records(settings(&server)).await).await;
    server.sql(&format!("UPDATE fencepost_store SET format = 2, {NUMBER} = 77"));
    is_refused(settings(&server), "tables of format 2, and this release knows 1").await;
    assert_eq!(server.sql(&format!("SELECT {NUMBER} FROM fencepost_store")), "77");
    server.sql("DELETE FROM fencepost_store");
    is_refused(settings(&server), "empty fencepost_store").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_start_at_once_create_the_tables_once() {
    common::skip_unless!(available());
    let server = Server::started(&[]);
    let all = join_all((0..6).map(|_| records(settings(&server)))).await;
    let results = join_all(all.iter().map(|records| records.commit(first("a")))).await;
    let is_applied = |result: &&Result<_, _>| matches!(result, Ok(Committed::Applied(_)));
    assert_eq!(results.iter().filter(is_applied).count(), 1, "{results:?}");
    assert_no_conflict(&server);
}
