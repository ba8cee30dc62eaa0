//! Standbys that are promoted, and commits that no standby has.

use std::time::{Duration, Instant};

use fencepost::backend::postgres::settings::{Replication, Settings};
use fencepost::backend::record::store::{Commit, FoundRoot, RecordStore};
use fencepost::backend::{BackendError, Health};
use futures::future::join_all;

use crate::forwarder::Forwarder;
use crate::harness::{
    READY, applied, eventually_read, first, healthy, name, next, records, serves, settings_of, unready, version_of,
};
use crate::servers::{NAME, Postgres, available, eventually};

/// The longest TTL of these tests.
const TTL: Duration = Duration::from_secs(8);

pub fn with(replication: Replication, servers: &[&Postgres]) -> Settings {
    Settings {
        replication,
        longest_ttl: TTL,
        ..settings_of(servers.iter().map(|server| server.address()).collect())
    }
}

/// Changes which standbys must have a commit, at once.
pub fn wait_for(server: &Postgres, standbys: &str) {
    server.sql(&format!("ALTER SYSTEM SET synchronous_standby_names = '{standbys}'"));
    server.sql("SELECT pg_reload_conf()");
    eventually("the setting is read", || {
        server.sql("SHOW synchronous_standby_names") == standbys
    });
}

/// Commits so much at once that both connections for batches are open afterwards.
async fn over_both_connections(records: &dyn RecordStore) {
    let commits = (0..9).map(|lock| records.commit(first(&format!("lock {lock}"))));
    join_all(commits).await.into_iter().map(applied).for_each(drop);
}

pub fn is_quarantined(health: &Health) -> bool {
    matches!(health, Health::Quarantined { .. })
}

/// Whether a standby has so many locks; before that it may lack the table.
fn has_locks(standby: &Postgres, count: u32) -> bool {
    !standby.sql("SELECT to_regclass('fencepost_lock')").is_empty()
        && standby.sql("SELECT count(*) FROM fencepost_lock") == count.to_string()
}

// G137
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_promotion_of_an_asynchronous_standby_nothing_is_granted_for_the_longest_ttl() {
    if !available() {
        return;
    }
    let mut primary = Postgres::started(&[]);
    let mut standby = primary.standby("one");
    let settings = with(Replication::Asynchronous, &[&primary, &standby]);
    let records = records(settings.clone()).await;
    let one = first("a");
    applied(records.commit(one.clone()).await);
    eventually("the standby has it", || has_locks(&standby, 1));
    primary.crash();
    standby.promote();
    let promoted = Instant::now();
    eventually_read(&*records, "a").await;
    let result = records.commit(next("a", one.version)).await;
    assert!(matches!(result, Err(BackendError::Quarantined { .. })), "{result:?}");
    healthy(&*records, is_quarantined).await;
    // What grants nothing goes on, such as a release.
    let release = Commit {
        grants: false,
        ..next("a", one.version)
    };
    applied(records.commit(release.clone()).await);
    // A server that starts now knows it from the database.
    let later = unready(settings.clone());
    healthy(&*later, is_quarantined).await;
    let result = later.commit(first("b")).await;
    assert!(matches!(result, Err(BackendError::Quarantined { .. })), "{result:?}");
    // The old primary does not come back by its place in the list.
    primary.start();
    serves(&*records).await;
    assert!(promoted.elapsed() >= TTL, "{:?}", promoted.elapsed());
    assert_eq!(version_of(&*records, "a").await, Some(release.version));
    applied(records.commit(next("a", release.version)).await);
    assert_eq!(
        standby.sql("SELECT count(*) FROM fencepost_lock WHERE expected IS NULL"),
        "1"
    );
    // Nor where it is the only one.
    standby.stop();
    let is_told =
        |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains("was the primary before"));
    healthy(&*records, is_told).await;
    let result = records.commit(first("b")).await;
    assert!(matches!(result, Err(BackendError::NotSent { .. })), "{result:?}");
}

// G137
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_ends_a_quarantine_at_every_server() {
    if !available() {
        return;
    }
    let mut primary = Postgres::started(&[]);
    let mut standby = primary.standby("one");
    let settings = Settings {
        longest_ttl: Duration::from_secs(3_600),
        ..with(Replication::Asynchronous, &[&primary, &standby])
    };
    standby.stop();
    let (one, other) = (records(settings.clone()).await, records(settings.clone()).await);
    let ways = [
        Forwarder::before(primary.port()).await,
        Forwarder::before(standby.port()).await,
    ];
    let away = records(Settings {
        servers: ways.iter().map(Forwarder::address).collect(),
        ..settings
    });
    let away = away.await;
    ways.iter().for_each(|way| way.ends_after(|_| true));
    let admitted = one.admit().await;
    assert!(
        matches!(admitted, Err(BackendError::Unsupported { .. })),
        "{admitted:?}"
    );
    primary.crash();
    // It was away, and lacks even the tables: the servers know that there were some.
    standby.start();
    standby.promote();
    for records in [&one, &other] {
        eventually_read(&**records, "a").await;
        healthy(&**records, is_quarantined).await;
    }
    one.admit().await.expect("it is admitted");
    for records in [&one, &other] {
        serves(&**records).await;
    }
    applied(other.commit(first("a")).await);
    // A server that was cut off, and sees the promotion only now, begins no other quarantine.
    ways.iter().for_each(Forwarder::go_on);
    eventually_read(&*away, "a").await;
    applied(away.commit(first("b")).await);
    assert_eq!(standby.sql("SELECT since FROM fencepost_store"), "0");
}

// G137
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_step_at_a_promoted_standby_is_no_grant() {
    if !available() {
        return;
    }
    // One that was away lacks even the tables.
    for was_away in [false, true] {
        let mut primary = Postgres::started(&[]);
        let mut standby = primary.standby("one");
        if was_away {
            standby.stop();
        }
        let records = records(with(Replication::Asynchronous, &[&primary, &standby])).await;
        applied(records.commit(first("a")).await);
        if !was_away {
            eventually("the standby has it", || has_locks(&standby, 1));
        }
        primary.crash();
        if was_away {
            standby.start();
        }
        let granting = tokio::spawn(async move {
            loop {
                let result = records.commit(first("b")).await;
                match result {
                    Err(BackendError::NotSent { .. } | BackendError::Unavailable { .. }) => {}
                    answered => return answered,
                }
            }
        });
        standby.promote();
        let result = granting.await.expect("it is answered");
        assert!(matches!(result, Err(BackendError::Quarantined { .. })), "{result:?}");
    }
}

// G137
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_primary_that_lives_on_read_only_ends_no_quarantine() {
    if !available() {
        return;
    }
    let primary = Postgres::started(&[]);
    let standby = primary.standby("one");
    let settings = Settings {
        longest_ttl: Duration::from_secs(3_600),
        ..with(Replication::Asynchronous, &[&primary, &standby])
    };
    let records = records(settings).await;
    applied(records.commit(first("a")).await);
    eventually("the standby has it", || has_locks(&standby, 1));
    primary.sql("ALTER SYSTEM SET default_transaction_read_only = on");
    primary.sql("SELECT pg_reload_conf()");
    standby.promote();
    let end = Instant::now() + READY;
    while !matches!(records.commit(first("b")).await, Err(BackendError::Quarantined { .. })) {
        assert!(Instant::now() < end, "it never moves");
    }
    // As long as some looks at the database take.
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        let result = records.commit(first("c")).await;
        assert!(matches!(result, Err(BackendError::Quarantined { .. })), "{result:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

// G138
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_an_old_primary_are_not_used_once_another_one_has_seen_the_promotion() {
    if !available() {
        return;
    }
    let primary = Postgres::started(&[]);
    let standby = primary.standby("one");
    let settings = Settings {
        longest_ttl: Duration::from_secs(3_600),
        ..with(Replication::Asynchronous, &[&primary, &standby])
    };
    let records = records(settings).await;
    applied(records.commit(first("a")).await);
    over_both_connections(&*records).await;
    eventually("the standby has it", || has_locks(&standby, 10));
    standby.promote();
    // The old one takes no more of them, and ends the one that looks at it.
    primary.sql(&format!("ALTER ROLE {NAME} NOLOGIN"));
    let looks = "query LIKE '%WITH raised AS (%' AND application_name = 'fencepost'";
    let end = format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {looks}");
    eventually("it has looked and is ended", || primary.sql(&end) == "1");
    healthy(&*records, is_quarantined).await;
    standby.sql("UPDATE fencepost_lock SET version = 7");
    let reads = join_all((0..9).map(|_| version_of(&*records, "a"))).await;
    assert!(reads.iter().flatten().all(|read| read.0.get() == 7), "{reads:?}");
    assert_eq!(reads.iter().flatten().count(), 9);
}

// G136
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_promotion_of_a_synchronous_standby_loses_nothing() {
    if !available() {
        return;
    }
    let mut primary = Postgres::started(&[]);
    let standby = primary.standby("one");
    wait_for(&primary, "one");
    // A quarantine would never end.
    let settings = Settings {
        longest_ttl: Duration::from_secs(3_600),
        ..with(Replication::Synchronous, &[&primary, &standby])
    };
    let records = records(settings).await;
    let mut version = first("a").version;
    for round in 0..50 {
        let commit = match round {
            0 => first("a"),
            _ => next("a", version),
        };
        version = commit.version;
        applied(records.commit(commit).await);
    }
    primary.crash();
    // Promoted, it waits for another standby.
    standby.promote();
    wait_for(&standby, "*");
    let _another = standby.standby("two");
    eventually_read(&*records, "a").await;
    serves(&*records).await;
    assert_eq!(version_of(&*records, "a").await, Some(version));
    applied(records.commit(next("a", version)).await);
    // The old primary would be taken for one by its place in the list.
    primary.start();
    assert_eq!(primary.sql("SELECT pg_is_in_recovery()"), "f");
    standby.sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'fencepost'");
    eventually_read(&*records, "a").await;
    assert!(version_of(&*records, "a").await.is_some_and(|found| found != version));
}

// G136
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_wait_for_the_standby_was_cancelled_is_not_answered_as_one() {
    if !available() {
        return;
    }
    let primary = Postgres::started(&[]);
    let _standby = primary.standby("one");
    wait_for(&primary, "one");
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
    let waiting = tokio::spawn({
        let (records, late) = (records.clone(), late.clone());
        async move { records.commit(late).await }
    });
    let waits = "pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'fencepost'";
    eventually("it waits", || {
        primary.sql(&format!("SELECT count(*) FROM {waits}")) == "1"
    });
    primary.sql(&format!("SELECT pg_cancel_backend(pid) FROM {waits}"));
    let result = waiting.await.expect("it is answered");
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
    if !available() {
        return;
    }
    let primary = Postgres::started(&[]);
    let _standby = primary.standby("one");
    wait_for(&primary, "one");
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
    if !available() {
        return;
    }
    let primary = Postgres::started(&[]);
    let _standby = primary.standby("one");
    wait_for(&primary, "one");
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

// G142
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_the_database_in_another_cluster_is_quarantined() {
    if !available() {
        return;
    }
    let primary = Postgres::started(&[]);
    let _standby = primary.standby("one");
    wait_for(&primary, "one");
    for replication in [Replication::Single, Replication::Synchronous] {
        let records = records(with(replication, &[&primary])).await;
        applied(records.commit(first("a")).await);
        records.close().await;
        drop(records);
        // As a dump that was restored elsewhere says.
        primary.sql("UPDATE fencepost_store SET system = 1, all_confirm = true; DELETE FROM fencepost_lock");
        let restored = unready(with(replication, &[&primary]));
        healthy(&*restored, is_quarantined).await;
        let result = restored.commit(first("b")).await;
        assert!(matches!(result, Err(BackendError::Quarantined { .. })), "{result:?}");
        serves(&*restored).await;
        applied(restored.commit(first("b")).await);
        primary.sql("DELETE FROM fencepost_lock");
    }
}
