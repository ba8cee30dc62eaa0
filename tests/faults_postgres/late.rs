//! Statements that reach the database late, held in a forwarder until the test lets them go on.

use std::sync::Arc;
use std::time::Duration;

use fencepost::backend::BackendError;
use fencepost::backend::postgres::settings::Settings;
use fencepost::backend::record::store::{Commit, RecordStore, StoreTime};

use crate::forwarder::Forwarder;
use crate::harness::{applied, first, next, records, refused, session, settings, settings_of, version_of};
use crate::servers::{Postgres, available, eventually};

/// The records of a server whose commits with the body "held" are held, those of another, and the database.
async fn two(server: &Postgres) -> (Forwarder, Arc<dyn RecordStore>, Arc<dyn RecordStore>) {
    let forwarder = Forwarder::before(server.port()).await;
    let slow = records(settings_of(vec![forwarder.address()])).await;
    forwarder.holds(|part| part.windows(4).any(|bytes| bytes == b"held"));
    (forwarder, slow, records(settings(server)).await)
}

/// Settings with which a row may stay locked while the test looks.
fn patient(server: &Postgres) -> Settings {
    Settings {
        timeout: Duration::from_secs(9),
        ..settings(server)
    }
}

fn held(commit: Commit) -> Commit {
    Commit {
        body: b"held".to_vec(),
        ..commit
    }
}

/// Sends a commit that is held, until its caller is told that nobody knows.
async fn is_unknown(records: &dyn RecordStore, commit: Commit) {
    let result = records.commit(held(commit)).await;
    assert!(matches!(result, Err(BackendError::Unavailable { .. })), "{result:?}");
}

/// How many statements with this in their text have ended at the database.
fn sessions(server: &Postgres) -> usize {
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencepost'";
    server.sql(count).parse().expect("a number")
}

// G131
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_commit_takes_effect_unless_a_settling_write_came_before_it() {
    if !available() {
        return;
    }
    let server = Postgres::started(&[]);
    let (forwarder, slow, near) = two(&server).await;
    let (free, settled) = (first("free"), first("settled"));
    for commit in [&free, &settled] {
        applied(near.commit(commit.clone()).await);
    }
    let late = [next("free", free.version), next("settled", settled.version)];
    for commit in &late {
        is_unknown(&*slow, commit.clone()).await;
    }
    let fence = next("settled", settled.version);
    applied(near.commit(fence.clone()).await);
    assert_eq!(version_of(&*near, "free").await, Some(free.version), "it is on its way");
    forwarder.go_on();
    let end = std::time::Instant::now() + crate::harness::READY;
    while version_of(&*near, "free").await != Some(late[0].version) {
        assert!(std::time::Instant::now() < end, "the late commit never came");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(version_of(&*near, "settled").await, Some(fence.version));
}

// G131
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_first_write_is_refused_after_its_latest_time() {
    if !available() {
        return;
    }
    let server = Postgres::started(&[]);
    let (forwarder, slow, near) = two(&server).await;
    let now = near
        .read(&crate::harness::name("a"), None)
        .await
        .expect("it reads")
        .now
        .time;
    let bounded = Commit {
        latest: StoreTime(now.0 + 1_000_000),
        ..first("bounded")
    };
    let free = first("free");
    is_unknown(&*slow, bounded).await;
    is_unknown(&*slow, free.clone()).await;
    forwarder.go_on();
    let end = std::time::Instant::now() + crate::harness::READY;
    while version_of(&*near, "free").await != Some(free.version) {
        assert!(std::time::Instant::now() < end, "the late commit never came");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(version_of(&*near, "bounded").await, None);
}

// G131
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_waits_for_a_row_compares_what_is_there_then() {
    if !available() {
        return;
    }
    let server = Postgres::started(&[]);
    let records = records(patient(&server)).await;
    let one = first("a");
    applied(records.commit(one.clone()).await);
    let mut other = session(&server).await;
    let transaction = other.transaction().await.expect("it begins");
    transaction
        .execute("UPDATE fencepost_lock SET version = 7", &[])
        .await
        .expect("it writes");
    let waiting = tokio::spawn({
        let (records, commit) = (Arc::clone(&records), next("a", one.version));
        async move { records.commit(commit).await }
    });
    let waits =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'fencepost'";
    eventually("it waits", || server.sql(waits) == "1");
    transaction.commit().await.expect("it commits");
    refused(waiting.await.expect("it is answered"));
    // A row that stays locked is no effect, and not an unknown one.
    let transaction = other.transaction().await.expect("it begins");
    transaction
        .execute("UPDATE fencepost_lock SET version = 8", &[])
        .await
        .expect("it writes");
    let result = records.commit(next("a", one.version)).await;
    assert!(matches!(result, Err(BackendError::NotSent { .. })), "{result:?}");
    // The guards are those of the moment at which the row is free.
    let now = records
        .read(&crate::harness::name("a"), None)
        .await
        .expect("it reads")
        .now;
    let brief = Commit {
        not_after: fencepost::backend::record::store::LockTime(now.clock.0 + 500_000),
        ..next(
            "a",
            fencepost::backend::record::store::Version(8.try_into().expect("not zero")),
        )
    };
    let waiting = tokio::spawn({
        let records = Arc::clone(&records);
        async move { records.commit(brief).await }
    });
    eventually("it waits", || server.sql(waits) == "1");
    tokio::time::sleep(Duration::from_millis(600)).await;
    transaction.commit().await.expect("it commits");
    refused(waiting.await.expect("it is answered"));
}

// G131
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_root_that_is_removed_while_a_commit_waits_for_it_is_not_made_anew() {
    if !available() {
        return;
    }
    let server = Postgres::started(&[]);
    let records = records(patient(&server)).await;
    let (one, beside) = (first("a"), first("b"));
    for commit in [&one, &beside] {
        applied(records.commit(commit.clone()).await);
    }
    let waits =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'fencepost'";
    let mut other = session(&server).await;
    // One that expects the root, and one that expects none and knows of no higher token.
    for (expected, floor) in [(Some(one.version), u64::MAX), (None, 5)] {
        let transaction = other.transaction().await.expect("it begins");
        transaction
            .execute("UPDATE fencepost_store SET floor = 9", &[])
            .await
            .expect("it raises");
        transaction
            .execute(
                "DELETE FROM fencepost_lock WHERE version = $1",
                &[&one.version.0.get().cast_signed()],
            )
            .await
            .expect("it removes");
        let waiting = tokio::spawn({
            let commit = Commit {
                expected,
                floor,
                ..first("a")
            };
            let records = Arc::clone(&records);
            async move { records.commit(commit).await }
        });
        if expected.is_some() {
            eventually("it waits", || server.sql(waits) == "1");
        }
        transaction.commit().await.expect("it commits");
        refused(waiting.await.expect("it is answered"));
        assert_eq!(version_of(&*records, "a").await, None);
        let again = Commit {
            floor: 9,
            version: one.version,
            ..first("a")
        };
        applied(records.commit(again).await);
    }
    assert!(sessions(&server) <= 4, "two for batches, one soft, one listener");
}
