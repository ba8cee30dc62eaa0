//! Nodes that this release cannot read, as a later one would make them.

use std::time::Duration;

use crate::clients::{acquire, take};
use crate::harness::{Operator, READY, nothing_is_left, replica, store};
use common::clients::spawn_acquire;

const TTL: Duration = Duration::from_secs(60);

// G127
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_that_cannot_be_read_keeps_all_others_waiting() {
    let Some(store) = store(1) else { return };
    let locks = replica(&store).await;
    let held = take(&locks, "a", TTL).await;
    let mut later = Operator::open(&store).await;
    let child = later.create_child("a", "h-of-a-later-release").await;
    locks.release(&held.key).await.expect("it is held");
    let tried = acquire(&locks, "a", TTL, Duration::ZERO).await;
    assert!(
        matches!(tried, Err(fencepost::error::Error::LockHeld { .. })),
        "{tried:?}"
    );
    let waiting = spawn_acquire(&locks, "a", TTL, READY);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!waiting.is_finished());
    later.delete(&child).await;
    let next = waiting.await.expect("no panic").expect("it is free");
    locks.release(&next.key).await.expect("it is held");
    nothing_is_left(&store).await;
}

/// The bucket of a lock: every release chooses the same one.
fn bucket_of(lock: &str) -> u64 {
    let hash = lock.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash % 256
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_cannot_be_read_keeps_no_lease_of_a_dead_replica_from_its_end() {
    const SHORT: Duration = Duration::from_secs(2);
    /// A bucket that is swept early.
    const BUCKET: u64 = 1;
    let Some(store) = store(1) else { return };
    let dead = replica(&store).await;
    let mut names = (0..).map(|n| format!("l{n}")).filter(|lock| bucket_of(lock) == BUCKET);
    let mut later = Operator::open(&store).await;
    for lock in names.by_ref().take(12) {
        take(&dead, &lock, TTL).await;
        let holder = later.claim(&lock, "h-").await;
        later.write_record(&holder, b"later").await;
    }
    let lock = names.next().expect("names do not end");
    take(&dead, &lock, SHORT).await;
    dead.close().await;
    let claims = async |later: &mut Operator| {
        let claims = later.claims().await.into_iter();
        claims.filter(|claim| claim.lock == lock).count()
    };
    assert_eq!(claims(&mut later).await, 1);
    let _living = replica(&store).await;
    let ended = async {
        while claims(&mut later).await > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(READY, ended).await.expect("its lease ends");
}
