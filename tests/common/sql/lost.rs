//! Tables that are lost while servers run.

use std::time::Duration;

use fencepost::backend::{BackendError, Health};

use crate::harness::{Server, Settings, records, settings};
use crate::record_steps::{applied, first, healthy};
use crate::servers::available;

// G175
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_tables_in_the_place_of_those_that_a_server_knew_are_quarantined() {
    common::skip_unless!(available());
    let server = Server::started(&[]);
    let own = Settings {
        longest_ttl: Duration::from_secs(3_600),
        ..settings(&server)
    };
    let records = records(own).await;
    applied(records.commit(first("a")).await);
    server.sql("DROP TABLE fencepost_lock, fencepost_part, fencepost_server, fencepost_store");
    healthy(&*records, |health| matches!(health, Health::Quarantined { .. })).await;
    let result = records.commit(first("a")).await;
    assert!(matches!(result, Err(BackendError::Quarantined { .. })), "{result:?}");
    records.admit().await.expect("it is admitted");
    applied(records.commit(first("a")).await);
}
