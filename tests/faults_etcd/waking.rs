//! What waiting and waking cost etcd, counted by etcd itself.

use std::time::Duration;

use futures::future::join_all;

use crate::bench::{acquire, calls, cluster, replica, take, token, waiters};

const TTL: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_of_a_hot_lock_is_hardly_more_than_one_transaction_and_no_read() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = replica(&cluster).await;
    let (callers, times) = (16, 25);
    let held = take(&locks, "hot", TTL).await;
    let crowd: Vec<_> = (0..callers)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move {
                for _ in 0..times {
                    let wait = Duration::from_secs(50);
                    let lease = acquire(&locks, "hot", TTL, wait).await.expect("it is next");
                    locks.release(&lease.key).await.expect("it is held");
                }
            })
        })
        .collect();
    waiters(&locks, "hot", callers).await;
    let before = ["Txn", "Range"].map(|method| calls(&cluster, method));
    locks.release(&held.key).await.expect("it is held");
    for caller in join_all(crowd).await {
        caller.expect("no panic");
    }
    let after = ["Txn", "Range"].map(|method| calls(&cluster, method));
    let [txns, reads] = [after[0] - before[0], after[1] - before[1]];
    let hand_offs = callers * times;
    println!("{hand_offs} hand-offs: {txns} transactions, {reads} reads");
    // A newcomer to the queue, and a release with the next; seldom one that was judged too early.
    assert!(
        txns * 2 <= hand_offs * 5,
        "{txns} transactions for {hand_offs} hand-offs"
    );
    // The view is read anew every few seconds.
    assert!(reads <= hand_offs / 10, "{reads} reads for {hand_offs} hand-offs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_release_wakes_one_of_a_hundred_waiters() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let (other, locks) = (replica(&cluster).await, replica(&cluster).await);
    let held = take(&other, "a", TTL).await;
    let crowd: Vec<_> = (0..100)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move {
                let lease = acquire(&locks, "a", TTL, Duration::from_secs(120)).await;
                let lease = lease.expect("it is next");
                // It holds until the test is over.
                (token(&lease), std::future::pending::<()>().await)
            })
        })
        .collect();
    waiters(&other, "a", 100).await;
    let before = ["Txn", "Range"].map(|method| calls(&cluster, method));
    other.release(&held.key).await.expect("it is held");
    waiters(&other, "a", 99).await;
    // Nothing is to happen now; a herd would.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let after = ["Txn", "Range"].map(|method| calls(&cluster, method));
    let calls = after[0] - before[0] + after[1] - before[1];
    println!("{calls} calls");
    // The release, the take-up, and this test's own looks at the queue, of which there are few.
    assert!(calls <= 20, "{calls} calls of etcd for one release");
    crowd.iter().for_each(tokio::task::JoinHandle::abort);
}
