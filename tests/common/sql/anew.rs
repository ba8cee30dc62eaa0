//! Tables that are created anew, or put back from an older copy, while servers run and between their starts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::backend::driver::StoreIdentity;
use fencepost::backend::record::store::RecordStore;
use fencepost::backend::{BackendError, Health};
use fencepost::files;

use crate::harness::{LastUsed, Server, Settings, anew, records, settings, unready};
use crate::record_steps::{applied, first, healthy, next, serves};
use crate::servers::{available, folder};

/// Settings with which a quarantine does not end by itself.
fn long(server: &Server) -> Settings {
    Settings {
        longest_ttl: Duration::from_secs(3_600),
        ..settings(server)
    }
}

async fn grants_nothing(records: &dyn RecordStore) {
    healthy(records, |health| matches!(health, Health::Quarantined { .. })).await;
    let refused = records.commit(first("quarantined")).await;
    assert!(matches!(refused, Err(BackendError::Quarantined { .. })), "{refused:?}");
}

// G175
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_commit_in_other_tables_or_older_rows_is_not_answered_and_a_quarantine_follows() {
    common::skip_unless!(available());
    let server = Server::started(&[]);
    let own = records(long(&server)).await;
    for (round, (before, change)) in anew().into_iter().enumerate() {
        let one = first(&format!("round {round}"));
        applied(own.commit(one.clone()).await);
        server.sql(before);
        applied(own.commit(next(&format!("round {round}"), one.version)).await);
        let other = records(long(&server)).await;
        server.sql(change);
        let result = own.commit(first(&format!("lost {round}"))).await;
        assert!(result.is_err(), "{change}: unsafe: {result:?}");
        grants_nothing(&*own).await;
        grants_nothing(&*other).await;
        own.admit().await.expect("it is admitted");
        serves(&*own).await;
        serves(&*other).await;
        applied(own.commit(first(&format!("found {round}"))).await);
    }
}

// G175
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_written_nothing_answers_no_commit_in_new_tables() {
    common::skip_unless!(available());
    let server = Server::started(&[]);
    // The look of each second may notice them before the commit.
    for round in 0..4 {
        let idle = records(long(&server)).await;
        server.sql("DROP TABLE fencepost_lock, fencepost_part, fencepost_server, fencepost_store");
        let other = unready(long(&server));
        let is_there = |health: &Health| matches!(health, Health::Serving | Health::Quarantined { .. });
        healthy(&*other, is_there).await;
        let result = idle.commit(first(&format!("{round}"))).await;
        assert!(result.is_err(), "unsafe: {result:?}");
        grants_nothing(&*idle).await;
        grants_nothing(&*other).await;
        idle.admit().await.expect("it is admitted");
    }
}

// G201
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_were_created_anew_between_two_starts_are_quarantined() {
    common::skip_unless!(available());
    let (server, folder) = (Server::started(&[]), folder());
    let opened = |is_known: bool| -> Arc<dyn RecordStore> {
        let store = StoreIdentity::new("a database".into(), &[server.address()]);
        unready(Settings {
            last_used: LastUsed::new(is_known.then_some(folder.path()), store),
            ..long(&server)
        })
    };
    for name in ["a", "b"] {
        let knowing = opened(true);
        serves(&*knowing).await;
        applied(knowing.commit(first(name)).await);
    }
    server.sql("DROP TABLE fencepost_lock, fencepost_part, fencepost_server, fencepost_store");
    // It cannot know.
    let newcomer = opened(false);
    serves(&*newcomer).await;
    let knowing = opened(true);
    grants_nothing(&*knowing).await;
    grants_nothing(&*newcomer).await;
    knowing.admit().await.expect("it is admitted");
    // From now on these are the tables that are known.
    serves(&*opened(true)).await;
    // Nobody has them any more, and the next one creates them.
    drop((newcomer, knowing));
    server.sql("DROP TABLE fencepost_lock, fencepost_part, fencepost_server, fencepost_store");
    grants_nothing(&*opened(true)).await;
}

// G201
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_committed_in_a_database_while_it_is_being_recorded() {
    common::skip_unless!(available());
    let (server, folder) = (Server::started(&[]), folder());
    // The disk stands still: another process holds the file.
    let _held = files::lock(&folder.path().join("used-databases.lock")).expect("a lock");
    let store = StoreIdentity::new("a database".into(), &[server.address()]);
    let start = Instant::now();
    let records = unready(Settings {
        last_used: LastUsed::new(Some(folder.path()), store),
        ..long(&server)
    });
    // One connection waits for the disk as long as it may take, and the other one may not pass it.
    while let Err(error) = records.commit(first("a")).await {
        assert!(error.is_transient(), "{error}");
    }
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
}
