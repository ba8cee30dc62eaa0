//! Which databases the store refuses, and how it makes its tables.

use fencepost::backend::Health;
use fencepost::backend::postgres::settings::{Replication, Settings};
use futures::future::join_all;

use crate::harness::{applied, first, healthy, records, serves, settings, unready};
use crate::servers::{NAME, Postgres, available};

/// Waits until the store says this of the database.
pub async fn is_refused(settings: Settings, problem: &str) {
    let records = unready(settings);
    let says = |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains(problem));
    healthy(&*records, says).await;
}

// G128
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_may_lose_commits_is_refused() {
    if !available() {
        return;
    }
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
    if !available() {
        return;
    }
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_of_another_format_are_left_alone() {
    if !available() {
        return;
    }
    let server = Postgres::started(&[]);
    serves(&*records(settings(&server)).await).await;
    server.sql("UPDATE fencepost_store SET format = 2, timeline = 0");
    is_refused(settings(&server), "tables of format 2, and this release knows 1").await;
    assert_eq!(server.sql("SELECT timeline FROM fencepost_store"), "0");
    server.sql("DELETE FROM fencepost_store");
    is_refused(settings(&server), "empty fencepost_store").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_start_at_once_create_the_tables_once() {
    if !available() {
        return;
    }
    let server = Postgres::started(&[]);
    let all = join_all((0..6).map(|_| records(settings(&server)))).await;
    let commits = all.iter().map(|records| records.commit(first("a")));
    let results = join_all(commits).await;
    let is_applied =
        |result: &&Result<_, _>| matches!(result, Ok(fencepost::backend::record::store::Committed::Applied(_)));
    assert_eq!(results.iter().filter(is_applied).count(), 1, "{results:?}");
    assert!(!server.log().contains("ERROR:  duplicate key"), "{}", server.log());
}
