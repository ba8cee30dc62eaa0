//! What waiting and waking cost etcd, counted by etcd itself.

use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::task::unconstrained;

use crate::harness::{acquire, calls, cluster, steady_replica, take, token, waiters};

const TTL: Duration = Duration::from_secs(30);

// G110
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_waiters_that_come_in_one_moment_are_served_in_the_order_of_their_arrival() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = steady_replica(&cluster).await;
    let held = take(&locks, "a", TTL).await;
    let begun = Instant::now();
    // One task begins all calls, one after another. (Tokio makes a task that does much in one go put off the
    // rest, in whatever order.)
    let calls = (0..200).map(|n| {
        let locks = &locks;
        async move {
            let lease = acquire(locks, "a", TTL, Duration::from_secs(120)).await;
            let lease = lease.expect("it is next");
            locks.release(&lease.key).await.expect("it is held");
            (token(&lease), n)
        }
    });
    let calls = unconstrained(join_all(calls));
    let opens = async {
        waiters(&locks, "a", 200).await;
        println!("queued within {:?}", begun.elapsed());
        locks.release(&held.key).await.expect("it is held");
    };
    let (mut served, ()) = tokio::join!(calls, opens);
    served.sort_unstable();
    let order: Vec<_> = served.into_iter().map(|(_, n)| n).collect();
    assert_eq!(order, Vec::from_iter(0..200));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_release_wakes_one_of_a_hundred_waiters() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let (other, locks) = (steady_replica(&cluster).await, steady_replica(&cluster).await);
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
