//! What waiting and waking cost etcd, counted by etcd itself.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use etcd_client::WatchOptions;
use futures::future::join_all;
use tokio::task::unconstrained;

use crate::harness::{acquire, calls, cluster, etcd, namespace, steady_replica, take, token, waiters};
use crate::servers::Cluster;

const TTL: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_of_a_hot_lock_is_hardly_more_than_one_transaction_and_no_read() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = steady_replica(&cluster).await;
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
    // A release with the next, with which newcomers to the queue go along; some go by themselves.
    assert!(
        txns * 2 <= hand_offs * 3,
        "{txns} transactions for {hand_offs} hand-offs"
    );
    // The view is read anew every few seconds.
    assert!(reads <= hand_offs / 10, "{reads} reads for {hand_offs} hand-offs");
}

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

/// How many names of holders and waiters a lock has had since etcd's last compaction.
async fn names_had(cluster: &Cluster, lock: &str) -> usize {
    let mut etcd = etcd(cluster).await;
    let keys = format!("/fencepost/{}/lock/{lock}\t", namespace());
    let end = etcd.get(keys.as_str(), None).await.expect("etcd answers");
    let end = end.header().expect("a header").revision();
    // Its last event is this one.
    let last = format!("{keys}end");
    etcd.put(last.as_str(), "", None).await.expect("etcd answers");
    let options = WatchOptions::new().with_prefix().with_start_revision(1);
    let mut history = etcd.watch(keys, Some(options)).await.expect("etcd answers");
    let mut names = HashSet::new();
    while let Some(seen) = history.message().await.expect("etcd answers") {
        for event in seen.events() {
            let kv = event.kv().expect("a key");
            if kv.key() == last.as_bytes() && kv.mod_revision() > end {
                etcd.delete(last, None).await.expect("etcd answers");
                return names.len();
            }
            names.insert(kv.key().to_vec());
        }
    }
    panic!("the history ended")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_used_again_and_again_has_no_more_names_than_callers() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = steady_replica(&cluster).await;
    for _ in 0..100 {
        let lease = take(&locks, "alone", TTL).await;
        locks.release(&lease.key).await.expect("it is held");
    }
    let alone = names_had(&cluster, "alone").await;
    assert!(alone <= 2, "{alone} names for one caller");
    let callers = 6;
    let crowd = (0..callers).map(|_| {
        let locks = locks.clone();
        tokio::spawn(async move {
            for _ in 0..30 {
                let lease = acquire(&locks, "hot", TTL, TTL).await.expect("it is next");
                locks.release(&lease.key).await.expect("it is held");
            }
        })
    });
    for caller in join_all(crowd.collect::<Vec<_>>()).await {
        caller.expect("no panic");
    }
    // A name may be in use while the next call asks for one already.
    let most = 2 * 2 * callers;
    let hot = names_had(&cluster, "hot").await;
    assert!(hot <= most, "{hot} names for {callers} callers");
}
