//! Standbys that must have each commit, and what a promotion leaves.

use std::sync::Arc;
use std::time::Duration;

use fencepost::backend::postgres::settings::{Replication, Settings};
use fencepost::backend::record::store::{Commit, Committed, RecordStore};
use fencepost::backend::{BackendError, Health};
use tokio::task::JoinHandle;

use crate::harness::{first, healthy, settings_of};
use crate::servers::{Postgres, eventually};

/// The longest TTL of tests that wait for the end of a quarantine.
pub const TTL: Duration = Duration::from_secs(8);
/// A TTL that no test outlasts.
pub const LONG: Duration = Duration::from_secs(3_600);
/// Our sessions whose commit of a lock waits for a standby. A check of the health may wait beside them.
pub const WAITS: &str =
    "pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE 'INSERT%' AND application_name = 'fencepost'";

pub fn with(replication: Replication, servers: &[&Postgres]) -> Settings {
    Settings {
        replication,
        longest_ttl: TTL,
        ..settings_of(servers.iter().map(|server| server.address()).collect())
    }
}

/// A quarantine would never end, and a test has so long to do something while a commit waits.
pub fn synchronous(servers: &[&Postgres]) -> Settings {
    Settings {
        longest_ttl: LONG,
        timeout: Duration::from_secs(9),
        ..with(Replication::Synchronous, servers)
    }
}

/// Changes which standbys must have a commit, at once.
pub fn wait_for(server: &Postgres, standbys: &str) {
    set_standbys(server, standbys);
    server.sql("SELECT pg_reload_conf()");
    eventually("the setting is read", || {
        server.sql("SHOW synchronous_standby_names") == standbys
    });
}

/// A server whose commits wait for a standby named "one".
pub fn with_standby() -> (Postgres, Postgres) {
    let primary = Postgres::started(&[]);
    let standby = primary.standby("one");
    wait_for(&primary, "one");
    (primary, standby)
}

/// Changes which standbys must have a commit in the file alone.
pub fn set_standbys(server: &Postgres, standbys: &str) {
    server.sql(&format!("ALTER SYSTEM SET synchronous_standby_names = '{standbys}'"));
}

/// The process that sends to a standby.
pub fn sender(primary: &Postgres, standby: &str) -> u32 {
    let sender = format!("SELECT pid FROM pg_stat_replication WHERE application_name = '{standby}'");
    primary.sql(&sender).parse().expect("a process")
}

/// Commits at a server whose standbys do not answer, and returns once that waits.
pub fn waiting(
    primary: &Postgres,
    records: &Arc<dyn RecordStore>,
    commit: Commit,
) -> JoinHandle<Result<Committed, BackendError>> {
    let records = Arc::clone(records);
    let committed = tokio::spawn(async move { records.commit(commit).await });
    eventually("it waits", || {
        primary.sql(&format!("SELECT count(*) FROM {WAITS}")) == "1"
    });
    committed
}

pub fn is_quarantined(health: &Health) -> bool {
    matches!(health, Health::Quarantined { .. })
}

#[track_caller]
pub fn quarantined(result: &Result<Committed, BackendError>) {
    assert!(matches!(result, Err(BackendError::Quarantined { .. })), "{result:?}");
}

/// Waits for a quarantine.
pub async fn quarantine(records: &dyn RecordStore) {
    healthy(records, is_quarantined).await;
    quarantined(&records.commit(first("quarantined")).await);
}

/// Whether a standby has so many locks; before that it may lack the table.
pub fn has_locks(standby: &Postgres, count: u32) -> bool {
    !standby.sql("SELECT to_regclass('fencepost_lock')").is_empty()
        && standby.sql("SELECT count(*) FROM fencepost_lock") == count.to_string()
}

/// Promotes a standby as a failover manager does, which then gives it a standby of its own.
pub fn promote(standby: &Postgres) -> Postgres {
    standby.promote();
    let next = standby.standby("next");
    wait_for(standby, "next");
    next
}
