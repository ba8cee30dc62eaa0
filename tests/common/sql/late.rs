//! Statements that reach a database late, and answers that are lost, in a forwarder until the test lets them go on: what is
//! the same for each kind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::backend::BackendError;
use fencepost::backend::record::store::{Commit, LockTime, RecordStore, StoreTime, Version};

use crate::forwarder::{Answers, Forwarder};
use crate::harness::{
    HELD, MOST_SESSIONS, patient, records, run, sessions, settings, settings_of, started, transaction, waiting,
};
use crate::record_steps::{READY, applied, eventually_read, first, name, next, refused, version_of};
use crate::servers::{available, eventually};

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

/// Waits until a root is at this version.
async fn comes(records: &dyn RecordStore, lock: &str, version: Version) {
    let end = Instant::now() + READY;
    while version_of(records, lock).await != Some(version) {
        assert!(Instant::now() < end, "the late commit never came");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

// G17, G132
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_commit_takes_effect_unless_a_settling_write_came_before_it() {
    if !available() {
        return;
    }
    let server = started();
    let forwarder = Forwarder::before(server.port()).await;
    let slow = records(settings_of(vec![forwarder.address()])).await;
    forwarder.holds(|part| part.windows(HELD.len()).any(|bytes| bytes == HELD));
    let near = records(settings(&server)).await;
    let (free, settled) = (first("free"), first("settled"));
    for commit in [&free, &settled] {
        applied(near.commit(commit.clone()).await);
    }
    let now = near.read(&name("new"), None).await.expect("it reads").now.time;
    let bounded = Commit {
        latest: StoreTime(now.0 + 1_000_000),
        ..first("bounded")
    };
    let late = [next("free", free.version), next("settled", settled.version), bounded];
    for commit in &late {
        is_unknown(&*slow, commit.clone()).await;
    }
    let fence = next("settled", settled.version);
    applied(near.commit(fence.clone()).await);
    assert_eq!(version_of(&*near, "free").await, Some(free.version), "it is on its way");
    forwarder.go_on();
    comes(&*near, "free", late[0].version).await;
    assert_eq!(version_of(&*near, "settled").await, Some(fence.version));
    assert_eq!(version_of(&*near, "bounded").await, None, "its latest time is over");
}

// G17, G132
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_is_lost_is_unknown() {
    if !available() {
        return;
    }
    let server = started();
    let forwarder = Forwarder::before(server.port()).await;
    let far = records(settings_of(vec![forwarder.address()])).await;
    let near = records(settings(&server)).await;
    let one = first("a");
    applied(far.commit(one.clone()).await);
    let two = next("a", one.version);
    forwarder.answers(Answers::Held);
    let sent = tokio::spawn({
        let (far, commit) = (Arc::clone(&far), two.clone());
        async move { far.commit(commit).await }
    });
    comes(&*near, "a", two.version).await;
    forwarder.answers(Answers::Lost);
    forwarder.cut();
    let result = sent.await.expect("it is answered");
    assert!(matches!(result, Err(BackendError::Unavailable { .. })), "{result:?}");
    // The same bytes again find themselves.
    eventually_read(&*far, "a").await;
    let found = refused(far.commit(two.clone()).await);
    assert_eq!(version_of(&*far, "a").await, Some(two.version), "{found:?}");
}

// G17, G132
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_waits_for_a_row_compares_what_is_there_then() {
    if !available() {
        return;
    }
    let server = started();
    let records = records(patient(&server)).await;
    let one = first("a");
    applied(records.commit(one.clone()).await);
    let commit_later = |commit: Commit| {
        let records = Arc::clone(&records);
        tokio::spawn(async move { records.commit(commit).await })
    };
    let mut other = transaction(&server, "UPDATE fencepost_lock SET version = 7").await;
    let behind = commit_later(next("a", one.version));
    eventually("it waits", || waiting(&server) == 1);
    run(&mut other, "COMMIT").await;
    refused(behind.await.expect("it is answered"));
    // A row that stays locked is no effect, and not an unknown one.
    let mut other = transaction(&server, "UPDATE fencepost_lock SET version = 8").await;
    let result = records.commit(next("a", one.version)).await;
    assert!(matches!(result, Err(BackendError::NotSent { .. })), "{result:?}");
    // The guards are those of the moment at which the row is free.
    let now = records.read(&name("a"), None).await.expect("it reads").now;
    let brief = Commit {
        not_after: LockTime(now.clock.0 + 500_000),
        ..next("a", Version(8.try_into().expect("not zero")))
    };
    let behind = commit_later(brief);
    eventually("it waits", || waiting(&server) == 1);
    tokio::time::sleep(Duration::from_millis(600)).await;
    run(&mut other, "COMMIT").await;
    refused(behind.await.expect("it is answered"));
}

// G17, G132
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_root_that_is_removed_while_a_first_write_waits_for_it_keeps_its_floor() {
    if !available() {
        return;
    }
    let server = started();
    let records = records(patient(&server)).await;
    let (one, beside) = (first("a"), first("b"));
    for commit in [&one, &beside] {
        applied(records.commit(commit.clone()).await);
    }
    // One that expects the root, and one that expects none and knows of no higher token.
    for (expected, floor) in [(Some(one.version), u64::MAX), (None, 5)] {
        let remove = format!("DELETE FROM fencepost_lock WHERE version = {}", one.version.0);
        let mut other = transaction(&server, &format!("UPDATE fencepost_store SET floor = 9; {remove}")).await;

        let behind = tokio::spawn({
            let commit = Commit {
                expected,
                floor,
                ..first("a")
            };
            let records = Arc::clone(&records);
            async move { records.commit(commit).await }
        });
        if expected.is_some() {
            eventually("it waits", || waiting(&server) == 1);
        }
        run(&mut other, "COMMIT").await;
        refused(behind.await.expect("it is answered"));
        assert_eq!(version_of(&*records, "a").await, None);
        let again = Commit {
            floor: 9,
            version: one.version,
            ..first("a")
        };
        applied(records.commit(again).await);
    }
    assert!(sessions(&server) <= MOST_SESSIONS);
}
