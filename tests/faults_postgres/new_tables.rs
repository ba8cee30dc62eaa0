//! Tables in the place of lost ones.

use fencepost::backend::BackendError;
use fencepost::backend::postgres::settings::{Replication, Settings};

use crate::forwarder::Forwarder;
use crate::harness::{applied, first, healthy, records, serves, settings, unready};
use crate::servers::{NAME, Postgres, available};
use crate::standbys::{LONG, is_quarantined, quarantine, quarantined, synchronous, with, with_standby};
use crate::synchronous::unproved;

// G175
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_tables_in_the_place_of_lost_ones_are_quarantined_although_all_standbys_confirm() {
    common::skip_unless!(available());
    let (server, _standby) = with_standby();
    let records = records(synchronous(&[&server])).await;
    applied(records.commit(first("a")).await);
    server.sql("DROP TABLE fencepost_lock, fencepost_part, fencepost_server, fencepost_store");
    quarantine(&*records).await;
}

// G175
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_to_lost_tables_answers_no_commit_to_new_ones() {
    common::skip_unless!(available());
    let server = Postgres::started(&[]);
    let records = records(Settings {
        longest_ttl: LONG,
        ..settings(&server)
    });
    let records = records.await;
    applied(records.commit(first("a")).await);
    // As another server does that creates them, before this one looks.
    let copy = |name: &str| {
        format!(
            "CREATE TABLE new_{name} (LIKE fencepost_{name} INCLUDING ALL); INSERT INTO new_{name} SELECT * FROM fencepost_{name};"
        )
    };
    let all = ["part", "server", "store"];
    let swap = |name: &str| {
        format!(
            "DROP TABLE fencepost_{name}; ALTER TABLE new_{name} RENAME TO fencepost_{name}; ALTER TABLE fencepost_{name} OWNER TO {NAME};"
        )
    };
    server.sql(&[all.map(copy), all.map(swap)].concat().concat());
    server.sql("DELETE FROM fencepost_lock");
    match &records.commit(first("a")).await {
        // A check of the health had noticed it before.
        Err(BackendError::Quarantined { .. }) => {}
        result => unproved(result, "had its tables replaced"),
    }
    quarantine(&*records).await;
}

// G175
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_tables_that_another_server_creates_are_quarantined() {
    common::skip_unless!(available());
    let server = Postgres::started(&[]);
    let way = Forwarder::before(server.port()).await;
    let own = Settings {
        longest_ttl: LONG,
        ..settings(&server)
    };
    let before = records(Settings {
        servers: vec![way.address()],
        ..own.clone()
    });
    let before = before.await;
    applied(before.commit(first("a")).await);
    way.ends_after(|_| true);
    server.sql("DROP TABLE fencepost_lock, fencepost_part, fencepost_server, fencepost_store");
    // It knew no others.
    let other = records(own).await;
    way.go_on();
    quarantine(&*before).await;
    quarantine(&*other).await;
}

// G175
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_new_table_is_quarantined_also_by_a_server_that_starts_later() {
    common::skip_unless!(available());
    let server = Postgres::started(&[]);
    let own = Settings {
        longest_ttl: LONG,
        ..settings(&server)
    };
    let before = records(own.clone()).await;
    applied(before.commit(first("a")).await);
    before.close().await;
    drop(before);
    server.sql(&format!(
        "CREATE TABLE empty (LIKE fencepost_lock INCLUDING ALL); DROP TABLE fencepost_lock; \
         ALTER TABLE empty RENAME TO fencepost_lock; ALTER TABLE fencepost_lock OWNER TO {NAME}"
    ));
    quarantine(&*unready(own)).await;
}

// G142
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_the_database_in_another_cluster_is_quarantined() {
    common::skip_unless!(available());
    let (primary, _standby) = with_standby();
    for replication in [Replication::Single, Replication::Synchronous] {
        let records = records(with(replication, &[&primary])).await;
        applied(records.commit(first("a")).await);
        records.close().await;
        drop(records);
        // As a dump that was restored elsewhere says.
        primary.sql("UPDATE fencepost_store SET system = 1, all_confirm = true; DELETE FROM fencepost_lock");
        let restored = unready(with(replication, &[&primary]));
        healthy(&*restored, is_quarantined).await;
        quarantined(&restored.commit(first("b")).await);
        serves(&*restored).await;
        applied(restored.commit(first("b")).await);
        primary.sql("UPDATE fencepost_store SET replication = NULL, guarantee = NULL; DELETE FROM fencepost_lock");
    }
}
