//! Commits that a synchronous standby must have: what they rest on may change while they wait.

use std::time::{Duration, Instant};

use common::signals::send;
use fencepost::backend::postgres::settings::{Replication, Settings};
use fencepost::backend::record::store::{Commit, Committed, FoundRoot};
use fencepost::backend::{BackendError, Health};

use crate::forwarder::Forwarder;
use crate::harness::{
    READY, applied, eventually_read, fails_because, first, healthy, name, next, records, serves, settings, unready,
    version_of,
};
use crate::promotion::over_both_connections;
use crate::servers::{NAME, Postgres, available, eventually};
use crate::standbys::{WAITS, sender, set_standbys, synchronous, wait_for, waiting, with, with_standby};

#[track_caller]
pub fn unproved(result: &Result<Committed, BackendError>, because: &str) {
    match result {
        Err(BackendError::Unavailable { reason }) => assert!(reason.contains(because), "{reason}"),
        other => panic!("nothing proves it: {other:?}"),
    }
}

// G197
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_commit_counts_before_one_was_seen_to_wait_for_the_standbys_that_are_named() {
    common::skip_unless!(available());
    let primary = Postgres::started(&[]);
    let _standby = primary.standby("one");
    let checkpointer = primary
        .sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
        .parse()
        .expect("a process");
    // It lets commits wait, and still sleeps.
    send("STOP", &[checkpointer]);
    wait_for(&primary, "nobody");
    let records = unready(synchronous(&[&primary]));
    fails_because(&*records, "no commit is seen to wait").await;
    send("CONT", &[checkpointer]);
    wait_for(&primary, "one");
    serves(&*records).await;
    applied(records.commit(first("a")).await);
}

// G197
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_configuration_that_only_an_idle_session_has_read_proves_no_commit() {
    common::skip_unless!(available());
    // With a single name, or FIRST, the standby whose sender stands still would still be waited for.
    for others in ["", "ANY 1 (two)"] {
        let primary = Postgres::started(&[]);
        let (_one, _two) = (primary.standby("one"), primary.standby("two"));
        wait_for(&primary, "one");
        let records = records(synchronous(&[&primary])).await;
        let kept = first("a");
        applied(records.commit(kept.clone()).await);
        let sender = sender(&primary, "one");
        send("STOP", &[sender]);
        let changed = primary.sql("SELECT clock_timestamp()");
        wait_for(&primary, others);
        // That it ends shows that the server waits for the others.
        primary.sql("CREATE TABLE another (one int)");
        set_standbys(&primary, "one");
        // The session reads the files only now, and no other process goes by them.
        let result = records.commit(next("a", kept.version)).await;
        let opened =
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'fencepost' AND backend_start >";
        match &result {
            Err(error) => assert!(error.is_transient(), "{error}"),
            Ok(_) if others.is_empty() => panic!("nobody has it: {result:?}"),
            // A check of the health had noticed it before, and a new session goes by the others.
            Ok(_) => assert_eq!(
                primary.sql(&format!("{opened} '{changed}'")),
                "t",
                "{others}: {result:?}"
            ),
        }
        send("CONT", &[sender]);
        wait_for(&primary, "one");
        serves(&*records).await;
    }
}

// G197
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_cannot_be_proved_is_not_told_as_rolled_back() {
    common::skip_unless!(available());
    let (primary, _standby) = with_standby();
    let records = records(synchronous(&[&primary])).await;
    let one = first("a");
    applied(records.commit(one.clone()).await);
    // No session can see another one wait.
    primary.sql("REVOKE EXECUTE ON FUNCTION pg_stat_get_activity FROM PUBLIC");
    let changed = primary.sql("SELECT clock_timestamp()");
    primary.sql("SELECT pg_reload_conf()");
    eventually("the configuration is read", || {
        primary.sql(&format!("SELECT pg_conf_load_time() > '{changed}'")) == "t"
    });
    let late = next("a", one.version);
    let result = records.commit(late.clone()).await;
    let found = primary.sql(&format!(
        "SELECT count(*) FROM fencepost_lock WHERE version = {}",
        late.version.0
    ));
    match &result {
        Err(BackendError::NotSent { reason }) => assert_eq!(found, "0", "{reason}"),
        result => unproved(result, ""),
    }
    primary.sql("GRANT EXECUTE ON FUNCTION pg_stat_get_activity TO PUBLIC");
    serves(&*records).await;
}

// G173
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_waits_as_the_standbys_are_removed_is_not_answered_as_one() {
    common::skip_unless!(available());
    let (primary, _standby) = with_standby();
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
    common::skip_unless!(available());
    let (primary, _standby) = with_standby();
    let records = records(synchronous(&[&primary])).await;
    let one = first("a");
    applied(records.commit(one.clone()).await);
    // Nothing is renamed, so that the connection stays: the only standby does not answer.
    let sender = sender(&primary, "one");
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
    common::skip_unless!(available());
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
    let sender = sender(&primary, "one");
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
    common::skip_unless!(available());
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

// G136
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_wait_for_the_standby_was_cancelled_is_not_answered_as_one() {
    common::skip_unless!(available());
    let (primary, _standby) = with_standby();
    let records = records(with(Replication::Synchronous, &[&primary])).await;
    let one = first("a");
    applied(records.commit(one.clone()).await);
    over_both_connections(&*records).await;
    let soft = Commit {
        soft: true,
        ..first("soft")
    };
    applied(records.commit(soft).await);
    // Nothing is left to confirm.
    assert_eq!(version_of(&*records, "a").await, Some(one.version));
    wait_for(&primary, "nobody");
    let late = next("a", one.version);
    let waits = waiting(&primary, &records, late.clone());
    primary.sql(&format!("SELECT pg_cancel_backend(pid) FROM {WAITS}"));
    let result = waits.await.expect("it is answered");
    assert!(matches!(result, Err(BackendError::Unavailable { .. })), "{result:?}");
    // It is there, and must not be answered before the standby has it.
    let seen = format!("SELECT count(*) FROM fencepost_lock WHERE version = {}", late.version.0);
    assert_eq!(primary.sql(&seen), "1");
    // First where commits wait for no standby: a confirmation there would say nothing.
    let soft = Commit {
        soft: true,
        ..next("a", one.version)
    };
    let result = records.commit(soft).await;
    assert!(matches!(&result, Err(error) if error.is_transient()), "{result:?}");
    let read = records.read(&name("a"), None).await;
    assert!(matches!(&read, Err(error) if error.is_transient()), "{read:?}");
    // A server that starts now does not answer it either.
    let later = unready(with(Replication::Synchronous, &[&primary]));
    let listed = later.list("", None, 10).await;
    assert!(matches!(&listed, Err(error) if error.is_transient()), "{listed:?}");
    wait_for(&primary, "one");
    let FoundRoot::Root(root) = eventually_read(&*records, "a").await.root else {
        panic!("there is a root");
    };
    assert_eq!(root.version, late.version);
    serves(&*records).await;
}

// G141
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_no_standby_answers_no_sessions_pile_up_and_nothing_is_answered() {
    common::skip_unless!(available());
    let (primary, _standby) = with_standby();
    let records = records(with(Replication::Synchronous, &[&primary])).await;
    applied(records.commit(first("a")).await);
    wait_for(&primary, "nobody");
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencepost'";
    let begun = Instant::now();
    let mut unsent = 0;
    for lock in 0.. {
        let result = records.commit(first(&format!("lock {lock}"))).await;
        match result {
            Err(BackendError::NotSent { .. }) => unsent += 1,
            Err(BackendError::Unavailable { .. }) => {}
            other => panic!("no standby has it: {other:?}"),
        }
        if begun.elapsed() > Duration::from_secs(10) {
            break;
        }
    }
    assert!(unsent > 0, "the connections are taken");
    let sessions: u32 = primary.sql(count).parse().expect("a number");
    assert!(sessions <= 4, "{sessions}");
    wait_for(&primary, "one");
    let end = Instant::now() + READY;
    while records.commit(first("b")).await.is_err() {
        assert!(Instant::now() < end, "it never recovers");
    }
    serves(&*records).await;
}

// G141
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_was_given_up_during_a_look_at_the_database_keeps_its_connection() {
    common::skip_unless!(available());
    let (primary, _standby) = with_standby();
    let way = Forwarder::before(primary.port()).await;
    let records = records(Settings {
        servers: vec![way.address()],
        connections: 1,
        ..with(Replication::Synchronous, &[])
    })
    .await;
    applied(records.commit(first("a")).await);
    wait_for(&primary, "nobody");
    let given_up = records.commit(first("b"));
    let during = async {
        // A parameter of the look.
        way.holds(|part| part.windows(23).any(|text| text == b"\"public\".fencepost_lock"));
        way.is_holding().await;
    };
    let (result, ()) = tokio::join!(given_up, during);
    assert!(matches!(result, Err(BackendError::Unavailable { .. })), "{result:?}");
    way.go_on();
    let result = records.commit(first("c")).await;
    assert!(matches!(result, Err(BackendError::NotSent { .. })), "{result:?}");
    wait_for(&primary, "one");
    serves(&*records).await;
}
