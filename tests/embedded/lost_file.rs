//! What the store does when its file is used by another one, or is not there any more.

use std::time::Duration;

use fencepost::backend::embedded::{OpenError, Store};
use fencepost::backend::{BackendError, Health};
use fencepost::error::Error;

use crate::embedded::clients::name;
use crate::embedded::{TTL, ask, locks, open, take};

// G82
#[tokio::test]
async fn a_second_store_on_the_same_file_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let first = open(&file);
    let second = Store::open(&file);
    assert!(matches!(second, Err(OpenError::InUse { .. })), "{second:?}");
    take(&first, ask("a")).await;
}

// G86
#[tokio::test]
async fn a_file_that_vanished_grants_nothing_until_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let locks = open(&file);
    take(&locks, ask("a")).await;
    std::fs::remove_file(&file).expect("the file is there");
    for _ in 0..3 {
        let refused = locks.acquire(ask("b")).await.expect_err("nothing is granted");
        assert!(
            matches!(
                refused,
                Error::Backend(BackendError::Unavailable { .. } | BackendError::NotSent { .. })
            ),
            "{refused}"
        );
        // Where the file lies is no business of a caller.
        assert!(!refused.to_string().contains(file.to_str().expect("text")), "{refused}");
    }
    assert!(matches!(*locks.health().borrow(), Health::Unavailable { .. }));
    assert!(!file.exists(), "another file was made in its place");
    locks.close().await;
    take(&open(&file), ask("a")).await;
}

#[tokio::test]
async fn a_release_that_was_not_written_has_not_happened_when_the_file_is_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, away) = (folder.path().join("locks"), folder.path().join("away"));
    let locks = open(&file);
    let lease = take(&locks, ask("a")).await;
    std::fs::rename(&file, &away).expect("it is moved");
    locks.release(&lease.key).await.expect_err("it is not written");
    // What was written is not told either: the file at the path may be another one by now.
    let found = locks.check(&name("a"), lease.key.token).await;
    found.expect_err("the file is away");
    std::fs::rename(&away, &file).expect("it is moved back");
    let back = async {
        loop {
            match locks.check(&name("a"), lease.key.token).await {
                Ok(found) => return found,
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    };
    let found = tokio::time::timeout(TTL, back).await.expect("it is read again");
    assert!(found.is_some(), "as the file has it");
    locks.release(&lease.key).await.expect("it is released");
}

#[tokio::test]
async fn a_file_that_vanished_is_not_read_any_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let locks = open(&file);
    let lease = take(&locks, ask("a")).await;
    std::fs::remove_file(&file).expect("the file is there");
    let found = locks.check(&name("a"), lease.key.token).await;
    found.expect_err("another process may use another file");
}

// G88a, G109
#[tokio::test]
async fn a_lost_file_loses_its_locks_and_tokens_still_rise() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let locks = open(&file);
    let before = take(&locks, ask("a")).await;
    locks.close().await;
    std::fs::remove_file(&file).expect("the file is there");
    let after = take(&open(&file), ask("a")).await;
    assert!(after.key.token > before.key.token, "{after:?} after {before:?}");
}

// G88a, G109
#[tokio::test]
async fn a_store_in_memory_forgets_its_locks_and_its_tokens_still_rise() {
    let before = take(&locks(&Store::memory()), ask("a")).await;
    let after = take(&locks(&Store::memory()), ask("a")).await;
    assert!(after.key.token > before.key.token, "{after:?} after {before:?}");
}
