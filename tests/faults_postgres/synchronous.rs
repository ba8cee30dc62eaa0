//! Commits that a synchronous standby must have: what they rest on may change while they wait.

use std::sync::Arc;
use std::time::Duration;

use common::signals::send;
use fencepost::backend::postgres::settings::{Replication, Settings};
use fencepost::backend::record::store::{Commit, Committed, RecordStore};
use fencepost::backend::{BackendError, Health};
use tokio::task::JoinHandle;

use crate::forwarder::Forwarder;
use crate::harness::{
    applied, eventually_read, first, healthy, name, next, records, serves, settings, unready, version_of,
};
use crate::promotion::{is_quarantined, wait_for, with};
use crate::servers::{NAME, Postgres, available, eventually};

/// A TTL that no test outlasts.
const LONG: Duration = Duration::from_secs(3_600);
/// Our sessions that wait for a standby.
const WAITS: &str = "pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'fencepost'";

fn synchronous(servers: &[&Postgres]) -> Settings {
    Settings {
        longest_ttl: LONG,
        // A test has so long to do something while a commit waits.
        timeout: Duration::from_secs(9),
        ..with(Replication::Synchronous, servers)
    }
}

/// Commits at a server whose standbys do not answer, and returns once that waits.
fn waiting(
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

#[track_caller]
fn unproved(result: &Result<Committed, BackendError>, because: &str) {
    match result {
        Err(BackendError::Unavailable { reason }) => assert!(reason.contains(because), "{reason}"),
        other => panic!("nothing proves it: {other:?}"),
    }
}

async fn is_quarantine(records: &dyn RecordStore) {
    healthy(records, is_quarantined).await;
    let result = records.commit(first("quarantined")).await;
    assert!(matches!(result, Err(BackendError::Quarantined { .. })), "{result:?}");
}

/// Promotes a standby as a failover manager does, which then gives it a standby of its own.
fn promote(standby: &Postgres) -> Postgres {
    standby.promote();
    let next = standby.standby("next");
    wait_for(standby, "next");
    next
}

// G171
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promotion_is_followed_by_a_quarantine_if_not_all_standbys_had_to_confirm() {
    if !available() {
        return;
    }
    // Those who were there know it, and those who come later read it.
    for were_there in [true, false] {
        let mut primary = Postgres::started(&[]);
        let _one = primary.standby("one");
        let mut two = primary.standby("two");
        wait_for(&primary, "ANY 1 (one, two)");
        let before = records(synchronous(&[&primary, &two])).await;
        applied(before.commit(first("a")).await);
        eventually("the standby has the tables", || {
            two.sql("SELECT count(*) FROM pg_class WHERE relname = 'fencepost_lock'") == "1"
                && two.sql("SELECT count(*) FROM fencepost_lock") == "1"
        });
        two.stop();
        // The other one has it.
        applied(before.commit(first("lost")).await);
        if !were_there {
            before.close().await;
        }
        let before = were_there.then_some(before);
        primary.crash();
        two.start();
        let _next = promote(&two);
        if let Some(before) = before {
            is_quarantine(&*before).await;
        }
        let later = unready(synchronous(&[&two]));
        is_quarantine(&*later).await;
        assert_eq!(version_of(&*later, "lost").await, None);
        later.admit().await.expect("it is admitted");
        applied(later.commit(first("lost")).await);
    }
}

// G171
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_quarantine_follows_where_all_standbys_had_to_confirm_also_for_a_server_that_starts_later() {
    if !available() {
        return;
    }
    let mut primary = Postgres::started(&[]);
    let (one, _two) = (primary.standby("one"), primary.standby("two"));
    wait_for(&primary, "ANY 2 (one, two)");
    let before = records(synchronous(&[&primary])).await;
    let kept = first("kept");
    applied(before.commit(kept.clone()).await);
    drop(before);
    primary.crash();
    let _next = promote(&one);
    let later = unready(synchronous(&[&one]));
    serves(&*later).await;
    assert_eq!(version_of(&*later, "kept").await, Some(kept.version));
    assert_eq!(one.sql("SELECT since IS NULL FROM fencepost_store"), "t");
}

// G171
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_standby_that_lacks_what_a_server_wrote_is_quarantined_whatever_is_named() {
    if !available() {
        return;
    }
    let mut primary = Postgres::started(&[]);
    let _one = primary.standby("one");
    let mut other = primary.standby("other");
    wait_for(&primary, "one");
    let records = records(synchronous(&[&primary, &other])).await;
    let one = first("a");
    applied(records.commit(one.clone()).await);
    eventually("the standby has the tables", || {
        other.sql("SELECT count(*) FROM pg_class WHERE relname = 'fencepost_lock'") == "1"
            && other.sql("SELECT count(*) FROM fencepost_lock") == "1"
    });
    other.stop();
    applied(records.commit(next("a", one.version)).await);
    primary.crash();
    other.start();
    let _next = promote(&other);
    is_quarantine(&*records).await;
    assert_eq!(version_of(&*records, "a").await, Some(one.version));
}

// G171
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_in_a_queue_that_a_promotion_loses_begins_no_quarantine() {
    if !available() {
        return;
    }
    let mut primary = Postgres::started(&[("wal_writer_delay", "10s")]);
    let one = primary.standby("one");
    wait_for(&primary, "one");
    let records = records(synchronous(&[&primary, &one])).await;
    let kept = first("a");
    applied(records.commit(kept.clone()).await);
    let soft = Commit {
        soft: true,
        ..next("a", kept.version)
    };
    applied(records.commit(soft).await);
    primary.crash();
    let _next = promote(&one);
    serves(&*records).await;
    assert_eq!(version_of(&*records, "a").await, Some(kept.version));
    assert_eq!(one.sql("SELECT since IS NULL FROM fencepost_store"), "t");
}

// G171
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_remembers_that_not_all_standbys_had_to_confirm_where_the_promoted_one_does_not_know() {
    if !available() {
        return;
    }
    let mut primary = Postgres::started(&[]);
    let _one = primary.standby("one");
    let mut two = primary.standby("two");
    wait_for(&primary, "ANY 2 (one, two)");
    let records = records(synchronous(&[&primary, &two])).await;
    applied(records.commit(first("a")).await);
    let noted = |server: &Postgres, all: &str| server.sql("SELECT all_confirm FROM fencepost_store") == all;
    eventually("it is noted", || noted(&two, "t"));
    two.stop();
    wait_for(&primary, "ANY 1 (one, two)");
    eventually("it is noted", || noted(&primary, "f"));
    primary.crash();
    two.start();
    assert!(noted(&two, "t"));
    let _next = promote(&two);
    is_quarantine(&*records).await;
}

// G171
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_all_standbys_confirm_is_noted_once_they_did() {
    if !available() {
        return;
    }
    let primary = Postgres::started(&[]);
    let (_one, mut two) = (primary.standby("one"), primary.standby("two"));
    wait_for(&primary, "ANY 1 (one, two)");
    let records = records(synchronous(&[&primary])).await;
    applied(records.commit(first("a")).await);
    two.stop();
    wait_for(&primary, "ANY 2 (one, two)");
    let waits =
        |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains("commits wait for"));
    healthy(&*records, waits).await;
    let noted = || primary.sql("SELECT all_confirm FROM fencepost_store");
    assert_eq!(noted(), "f");
    two.start();
    serves(&*records).await;
    eventually("it is noted", || noted() == "t");
}

// G173
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_waits_as_the_standbys_are_removed_is_not_answered_as_one() {
    if !available() {
        return;
    }
    let primary = Postgres::started(&[]);
    let _standby = primary.standby("one");
    wait_for(&primary, "one");
    let records = records(synchronous(&[&primary])).await;
    let one = first("a");
    applied(records.commit(one.clone()).await);
    wait_for(&primary, "nobody");
    let late = waiting(&primary, &records, next("a", one.version));
    // As Patroni does that is not strict. PostgreSQL then ends the wait without a word.
    wait_for(&primary, "");
    unproved(&late.await.expect("it is answered"), "has no synchronous_standby_names");
    let refused =
        |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains("has no synchronous"));
    healthy(&*records, refused).await;
    let result = records.commit(first("b")).await;
    assert!(matches!(&result, Err(error) if error.is_transient()), "{result:?}");
    wait_for(&primary, "one");
    serves(&*records).await;
    applied(records.commit(first("b")).await);
}

// G173
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_during_which_the_standbys_were_removed_and_named_again_is_not_answered_as_one() {
    if !available() {
        return;
    }
    let primary = Postgres::started(&[]);
    let _standby = primary.standby("one");
    wait_for(&primary, "one");
    let records = records(synchronous(&[&primary])).await;
    let one = first("a");
    applied(records.commit(one.clone()).await);
    // Nothing is renamed, so that the connection stays: the only standby does not answer.
    let sender = primary
        .sql("SELECT pid FROM pg_stat_replication")
        .parse()
        .expect("a process");
    send("STOP", &[sender]);
    let late = waiting(&primary, &records, next("a", one.version));
    let session = primary
        .sql(&format!("SELECT pid FROM {WAITS}"))
        .parse()
        .expect("a process");
    send("STOP", &[session]);
    wait_for(&primary, "");
    // A commit that does not wait shows that no other one does.
    primary.sql("CREATE TABLE another (one int)");
    wait_for(&primary, "one");
    send("CONT", &[session]);
    let result = late.await.expect("it is answered");
    send("CONT", &[sender]);
    unproved(&result, "");
    serves(&*records).await;
}

// G136, G173
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_wait_was_cancelled_is_answered_by_no_other_server_and_no_setting_hides_it() {
    if !available() {
        return;
    }
    let primary = Postgres::started(&[]);
    for setting in [
        "client_min_messages = error",
        "statement_timeout = '1s'",
        "exit_on_error = on",
        "idle_in_transaction_session_timeout = '1s'",
    ] {
        primary.sql(&format!("ALTER ROLE {NAME} SET {setting}"));
    }
    let _standby = primary.standby("one");
    wait_for(&primary, "one");
    let settings = synchronous(&[&primary]);
    let (records, other) = (records(settings.clone()).await, records(settings).await);
    let one = first("a");
    applied(records.commit(one.clone()).await);
    for records in [&records, &other] {
        assert_eq!(version_of(&**records, "a").await, Some(one.version));
    }
    let sender = primary
        .sql("SELECT pid FROM pg_stat_replication")
        .parse()
        .expect("a process");
    send("STOP", &[sender]);
    let late = next("a", one.version);
    let result = waiting(&primary, &records, late.clone());
    primary.sql(&format!("SELECT pg_cancel_backend(pid) FROM {WAITS}"));
    unproved(
        &result.await.expect("it is answered"),
        "the standby may lack the commit",
    );
    let seen = format!("SELECT count(*) FROM fencepost_lock WHERE version = {}", late.version.0);
    assert_eq!(primary.sql(&seen), "1");
    let read = other.read(&name("a"), Some(one.version)).await;
    assert!(matches!(&read, Err(error) if error.is_transient()), "{read:?}");
    send("CONT", &[sender]);
    eventually_read(&*other, "a").await;
    assert_eq!(version_of(&*other, "a").await, Some(late.version));
}

// G173
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_to_keep_commits_while_it_runs_is_refused() {
    if !available() {
        return;
    }
    let server = Postgres::started(&[]);
    let records = records(settings(&server)).await;
    for (lock, change, back, problem) in [
        (
            "a",
            "ALTER TABLE fencepost_lock SET UNLOGGED",
            "ALTER TABLE fencepost_lock SET LOGGED",
            "UNLOGGED",
        ),
        (
            "b",
            "ALTER TABLE fencepost_part SET UNLOGGED",
            "ALTER TABLE fencepost_part SET LOGGED",
            "UNLOGGED",
        ),
        (
            "c",
            "ALTER SYSTEM SET fsync = off",
            "ALTER SYSTEM RESET fsync",
            "fsync = off",
        ),
        (
            "d",
            "ALTER SYSTEM SET full_page_writes = off",
            "ALTER SYSTEM RESET full_page_writes",
            "full_page_writes = off",
        ),
    ] {
        applied(records.commit(first(lock)).await);
        // Its connection is open, and nobody else looks before.
        server.sql(change);
        server.sql("SELECT pg_reload_conf()");
        let name = problem.split(' ').next().filter(|_| problem.contains('='));
        if let Some(name) = name {
            eventually("the setting is read", || server.sql(&format!("SHOW {name}")) == "off");
        }
        let is_told = |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains(problem));
        if lock == "b" {
            // Nobody calls.
            healthy(&*records, is_told).await;
        }
        let result = records.commit(first(&format!("{lock} later"))).await;
        assert!(
            matches!(&result, Err(error) if error.is_transient()),
            "{change}: {result:?}"
        );
        healthy(&*records, is_told).await;
        healthy(&*unready(settings(&server)), is_told).await;
        server.sql(back);
        server.sql("SELECT pg_reload_conf()");
        serves(&*records).await;
    }
}

// G175
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_tables_in_the_place_of_lost_ones_are_quarantined_although_all_standbys_confirm() {
    if !available() {
        return;
    }
    let server = Postgres::started(&[]);
    let _standby = server.standby("one");
    wait_for(&server, "one");
    let records = records(synchronous(&[&server])).await;
    applied(records.commit(first("a")).await);
    server.sql("DROP TABLE fencepost_lock, fencepost_part, fencepost_server, fencepost_store");
    is_quarantine(&*records).await;
}

// G175
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_to_lost_tables_answers_no_commit_to_new_ones() {
    if !available() {
        return;
    }
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
    unproved(&records.commit(first("a")).await, "had its tables replaced");
    is_quarantine(&*records).await;
}

// G175
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_tables_that_another_server_creates_are_quarantined() {
    if !available() {
        return;
    }
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
    is_quarantine(&*before).await;
    is_quarantine(&*other).await;
}

// G175
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_new_table_is_quarantined_also_by_a_server_that_starts_later() {
    if !available() {
        return;
    }
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
    is_quarantine(&*unready(own)).await;
}
