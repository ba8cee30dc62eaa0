//! Many waits that end in one moment.

use std::time::Duration;

use fencepost::error::Error;
use fencepost::locks::{Lease, Locks};
use futures::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::forwarder::{Answers, Forwarder};
use crate::harness::{
    Operator, acquire, behind, calls, cleanup_since, cluster, patient, sent_bytes, serves, steady_replica, take, token,
    unready, waiters,
};
use crate::servers::Cluster;

const TTL: Duration = Duration::from_secs(60);
const WAITERS: usize = if cfg!(feature = "soak") { 4_000 } else { 600 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_that_end_together_leave_in_batches_and_read_no_queue() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = steady_replica(&cluster).await;
    let _held = take(&locks, "a", TTL).await;
    let (quiet, bystanders) = bystanders(&locks).await;
    let end = Instant::now() + Duration::from_secs(if cfg!(feature = "soak") { 20 } else { 12 });
    let calls_of: Vec<_> = (0..WAITERS)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move { acquire(&locks, "a", TTL, end - Instant::now()).await })
        })
        .collect();
    waiters(&locks, "a", WAITERS).await;
    assert!(Instant::now() < end, "they are queued before their waits end");
    // Each call that joins a queue lists it.
    let mut listed = 0;
    while calls(&cluster, "Range") - listed > 20 {
        listed = calls(&cluster, "Range");
        sleep(Duration::from_millis(300)).await;
    }
    assert!(Instant::now() < end, "their lists are read before their waits end");
    let count = || (calls(&cluster, "Range"), calls(&cluster, "Txn"), sent_bytes(&cluster));
    let (before, begun) = (count(), std::time::Instant::now());
    sleep_until(end).await;
    for ended in join_all(calls_of).await {
        let ended = ended.expect("no panic");
        assert!(matches!(ended, Err(Error::WaitTimeout { .. })), "{ended:?}");
    }
    let answered = end.elapsed();
    sleep(Duration::from_secs(1)).await;
    let after = count();
    waiters(&locks, "a", 0).await;
    let (reads, txns, bytes) = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
    println!(
        "{WAITERS} waits: answered {answered:?} after their end, the queue is empty after {:?}; {reads} reads, {txns} \
         transactions, {bytes} bytes",
        end.elapsed()
    );
    assert!(reads < WAITERS / 10 + cleanup_since(begun), "{reads} reads");
    assert!(txns < WAITERS / 10, "{txns} transactions");
    locks.release(&quiet.key).await.expect("it is held");
    let mut served = Vec::new();
    for bystander in bystanders {
        served.push(bystander.await.expect("no panic"));
    }
    assert!(served.is_sorted(), "they were served out of order: {served:?}");
}

/// How many wait for a quiet lock meanwhile.
const BYSTANDERS: usize = 10;

/// The lease of a quiet lock, and those who have come to wait for it one after the other: each gives it back at once, and
/// tells its token.
async fn bystanders(locks: &Locks) -> (Lease, Vec<JoinHandle<u64>>) {
    let held = take(locks, "quiet", TTL).await;
    let mut waiting = Vec::new();
    for n in 1..=BYSTANDERS {
        let locks_of = locks.clone();
        waiting.push(tokio::spawn(async move {
            let lease = acquire(&locks_of, "quiet", TTL, TTL).await.expect("it is its turn");
            locks_of.release(&lease.key).await.expect("it is held");
            token(&lease)
        }));
        waiters(locks, "quiet", n).await;
    }
    (held, waiting)
}

/// A replica whose calls go over a connection that loses their answers from now on, and whose keep-alives do not; it
/// waits for this lock.
async fn without_answers(
    cluster: &Cluster,
    other: &Locks,
    session: Duration,
) -> (Forwarder, JoinHandle<Result<Lease, Error>>) {
    let way = Forwarder::before(cluster.servers[0].port()).await;
    let locks = unready(patient(behind(&way), session));
    serves(&locks).await;
    // What calls go over carries more than keep-alives do.
    for n in 0..60 {
        let lease = take(&locks, &format!("busy{n}"), TTL).await;
        locks.release(&lease.key).await.expect("it is held");
    }
    let waiting = tokio::spawn(async move { acquire(&locks, "a", TTL, TTL).await });
    waiters(other, "a", 1).await;
    way.answers(Answers::LostBeyond(6_000));
    (way, waiting)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_carries_no_more_answers_to_calls_costs_no_waiter_its_place() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let other = steady_replica(&cluster).await;
    let held = take(&other, "a", TTL).await;
    let session = Duration::from_secs(3);
    let (way, waiting) = without_answers(&cluster, &other, session).await;
    let queued = Operator::open(&cluster).await.claim("a", "q-").await;
    sleep(session + Duration::from_secs(1)).await;
    way.cut();
    let now = Operator::open(&cluster).await.claim("a", "q-").await;
    assert_eq!(now, queued, "its session lives on");
    other.release(&held.key).await.expect("it is held");
    let lease = waiting.await.expect("no panic").expect("it is next");
    other.release(&lease.key).await.expect("it is held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_whose_calls_are_not_answered_leaves_every_queue_though_its_keep_alives_are() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let other = steady_replica(&cluster).await;
    let held = take(&other, "a", TTL).await;
    let session = Duration::from_secs(2);
    let (_way, waiting) = without_answers(&cluster, &other, session).await;
    // It is next, and cannot ask for the lock.
    other.release(&held.key).await.expect("it is held");
    let lease = acquire(&other, "a", TTL, session * 5).await;
    lease.expect("the first one has left");
    waiting.abort();
}
