//! Statements that reach a database late, and answers that are lost, in a forwarder until the test lets them go on: what is
//! the same for each kind.

use std::sync::Arc;
use std::time::Duration;

use fencepost::backend::BackendError;
use fencepost::backend::record::store::{Commit, LockTime, Version};

use crate::harness::{MOST_SESSIONS, patient, records, run, sessions, started, transaction, waiting};
use crate::record_steps::{applied, first, name, next, refused, version_of};
use crate::servers::{available, eventually};

// G17, G132
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_waits_for_a_row_compares_what_is_there_then() {
    common::skip_unless!(available());
    let server = started();
    let records = records(patient(&server)).await;
    let one = first("a");
    applied(records.commit(one.clone()).await);
    let commit_later = |commit: Commit| {
        let records = Arc::clone(&records);
        tokio::spawn(async move { records.commit(commit).await })
    };
    let mut other = transaction(&server, "UPDATE fencepost_lock SET version = 7 WHERE id LIKE 'faults%'").await;
    let behind = commit_later(next("a", one.version));
    eventually("it waits", || waiting(&server) == 1);
    run(&mut other, "COMMIT").await;
    refused(behind.await.expect("it is answered"));
    // A row that stays locked is no effect, and not an unknown one.
    let mut other = transaction(&server, "UPDATE fencepost_lock SET version = 8 WHERE id LIKE 'faults%'").await;
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
    common::skip_unless!(available());
    let server = started();
    let records = records(patient(&server)).await;
    let (one, beside) = (first("a"), first("b"));
    for commit in [&one, &beside] {
        applied(records.commit(commit.clone()).await);
    }
    let mut last = beside.version;
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
        // A root that was written last is removed by nobody.
        let other_root = next("b", last);
        last = other_root.version;
        applied(records.commit(other_root).await);
    }
    assert!(sessions(&server) <= MOST_SESSIONS);
}
