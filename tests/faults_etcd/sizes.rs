//! Locks with more claims than fit into one answer of etcd.

use std::time::Duration;

use fencepost::backend::PageRequest;
use fencepost::error::Error;
use fencepost::locks::Acquire;
use fencepost::name::Metadata;
use tokio::time::sleep;

use crate::harness::{acquire, ask, calls, cluster, name, sent_bytes, steady_replica, take, waiters};

const TTL: Duration = Duration::from_secs(120);
/// With 4,000 bytes of metadata each, their records are more than the 4 MiB that a client takes by default.
const WAITERS: usize = 1_080;
const RECORDS: f64 = (WAITERS * 4_000) as f64;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_with_a_queue_of_more_than_4_mib_is_used_as_any_other() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let (locks, other) = (steady_replica(&cluster).await, steady_replica(&cluster).await);
    let held = take(&locks, "large", TTL).await;
    let entries = (0..4).map(|n| (format!("k{n}"), "v".repeat(998)));
    let metadata = Metadata::new(entries).expect("within its bounds");
    let crowd: Vec<_> = (0..WAITERS)
        .map(|_| {
            let ask = Acquire {
                metadata: metadata.clone(),
                ..ask("large", TTL, TTL)
            };
            let locks = locks.clone();
            tokio::spawn(async move { locks.acquire(ask).await.map(|grant| grant.delivered()) })
        })
        .collect();
    waiters(&other, "large", WAITERS).await;
    let queue = other.inspect(&name("large"), 3).await.expect("it can be read");
    assert_eq!((queue.holder_count, queue.waiter_count), (1, WAITERS));
    // A server that has seen no part of it reads it whole.
    let fresh = steady_replica(&cluster).await;
    let queue = fresh.inspect(&name("large"), 3).await.expect("it can be read");
    assert_eq!((queue.holder_count, queue.waiter_count), (1, WAITERS));

    // A call that has joined a crowd lists the lock.
    let mut before = 0.0;
    while sent_bytes(&cluster) - before > RECORDS {
        before = sent_bytes(&cluster);
        sleep(Duration::from_millis(500)).await;
    }
    // Each of these lists it, too.
    let (sent, txns) = (sent_bytes(&cluster), calls(&cluster, "Txn"));
    for _ in 0..10 {
        let tried = acquire(&other, "large", TTL, Duration::ZERO).await;
        assert!(matches!(tried, Err(Error::LockHeld { .. })), "{tried:?}");
        let holder = other.check(&name("large"), held.key.token).await.expect("etcd answers");
        assert!(holder.is_some(), "it is held");
        let page = PageRequest { size: 3, after: None };
        let listed = other.list("large", page).await.expect("etcd answers");
        assert_eq!(listed.locks[0].waiters, WAITERS);
    }
    other.release(&held.key).await.expect("it is held");
    let (sent, txns) = (sent_bytes(&cluster) - sent, calls(&cluster, "Txn") - txns);
    println!("{sent} bytes, {txns} transactions");
    // Without the values of claims that a list before has shown.
    assert!(sent < 10.0 * RECORDS, "{sent} bytes");

    // One that comes to its end now, and one that waits at the tail, where nobody of its replica waits yet.
    waiters(&other, "large", WAITERS - 1).await;
    let late = acquire(&other, "large", TTL, Duration::from_millis(300)).await;
    assert!(matches!(late, Err(Error::WaitTimeout { .. })), "{late:?}");
    // The first of the crowd holds, the others are cancelled.
    let (served, waiting): (Vec<_>, Vec<_>) = crowd.into_iter().partition(tokio::task::JoinHandle::is_finished);
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    waiters(&other, "large", 0).await;
    let [next] = <[_; 1]>::try_from(served).expect("one was next");
    let next = next.await.expect("no panic").expect("it was next");
    other.release(&next.key).await.expect("it is held");
    let lease = acquire(&other, "large", TTL, Duration::from_secs(10)).await;
    other
        .release(&lease.expect("it is free").key)
        .await
        .expect("it is held");
}
