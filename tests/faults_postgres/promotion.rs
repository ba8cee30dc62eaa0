//! Asynchronous standbys that are promoted.

use std::time::{Duration, Instant};

use fencepost::backend::postgres::settings::{Replication, Settings};
use fencepost::backend::record::store::{Commit, RecordStore};
use fencepost::backend::{BackendError, Health};
use futures::future::join_all;

use crate::forwarder::Forwarder;
use crate::harness::{READY, applied, eventually_read, first, healthy, next, records, serves, unready, version_of};
use crate::servers::{NAME, Postgres, available, eventually};
use crate::standbys::{LONG, TTL, has_locks, is_quarantined, quarantined, with};

/// Commits so much at once that both connections for batches are open afterwards.
pub async fn over_both_connections(records: &dyn RecordStore) {
    let commits = (0..9).map(|lock| records.commit(first(&format!("lock {lock}"))));
    join_all(commits).await.into_iter().map(applied).for_each(drop);
}

// G137
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_promotion_of_an_asynchronous_standby_nothing_is_granted_for_the_longest_ttl() {
    common::skip_unless!(available());
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
    quarantined(&records.commit(next("a", one.version)).await);
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
    quarantined(&later.commit(first("b")).await);
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
    common::skip_unless!(available());
    let mut primary = Postgres::started(&[]);
    let mut standby = primary.standby("one");
    let settings = Settings {
        longest_ttl: LONG,
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
    common::skip_unless!(available());
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
        quarantined(&result);
    }
}

// G137
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_primary_that_lives_on_read_only_ends_no_quarantine() {
    common::skip_unless!(available());
    let primary = Postgres::started(&[]);
    let standby = primary.standby("one");
    let settings = Settings {
        longest_ttl: LONG,
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
        quarantined(&records.commit(first("c")).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

// G138
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_an_old_primary_are_not_used_once_another_one_has_seen_the_promotion() {
    common::skip_unless!(available());
    let primary = Postgres::started(&[]);
    let standby = primary.standby("one");
    let settings = Settings {
        longest_ttl: LONG,
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
