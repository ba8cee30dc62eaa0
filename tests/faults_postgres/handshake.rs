//! Which databases the store refuses, and how it makes its tables.

use fencepost::backend::postgres::settings::{Replication, Settings};

use crate::harness::{applied, first, records, settings};
use crate::servers::{NAME, Postgres, available};
use crate::tables::is_refused;

// G128
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_may_lose_commits_is_refused() {
    common::skip_unless!(available());
    let server = Postgres::started(&[("fsync", "off")]);
    is_refused(settings(&server), "fsync = off").await;
    let server = Postgres::started(&[("full_page_writes", "off")]);
    is_refused(settings(&server), "full_page_writes = off").await;
    let synchronous = Settings {
        replication: Replication::Synchronous,
        ..settings(&server)
    };
    server.sql("ALTER SYSTEM SET full_page_writes = on");
    let server = Postgres::started(&[]);
    let synchronous = Settings {
        servers: vec![server.address()],
        ..synchronous
    };
    is_refused(synchronous, "synchronous_standby_names").await;
    // What a session may set is set.
    server.sql(&format!("ALTER ROLE {NAME} SET synchronous_commit = off"));
    server.sql(&format!(
        "ALTER ROLE {NAME} SET default_transaction_isolation = 'serializable'"
    ));
    let records = records(settings(&server)).await;
    applied(records.commit(first("a")).await);
    // Each of its connections must say the same, as the health is what the last one said.
    server.sql(&format!("ALTER ROLE {NAME} RESET default_transaction_isolation"));
    let pooler = Settings {
        pooler: true,
        ..settings(&server)
    };
    is_refused(pooler.clone(), "synchronous_commit").await;
    server.sql(&format!("ALTER ROLE {NAME} RESET synchronous_commit"));
    server.sql(&format!(
        "ALTER ROLE {NAME} SET default_transaction_isolation = 'serializable'"
    ));
    is_refused(pooler, "default_transaction_isolation").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_cannot_be_written_is_refused() {
    common::skip_unless!(available());
    let server = Postgres::started(&[]);
    server.sql(&format!("ALTER DATABASE {NAME} SET default_transaction_read_only = on"));
    is_refused(settings(&server), "is read-only").await;
    let standby = server.standby("one");
    is_refused(settings(&standby), "is a standby").await;
    let other = Settings {
        database: "absent".into(),
        ..settings(&server)
    };
    is_refused(other, "database \"absent\" does not exist").await;
}
