//! Calls whose clients go away, and what they leave in etcd.

use std::time::{Duration, Instant};

use etcd_client::{Client, GetOptions};
use fencepost::backend::etcd::settings::Settings;
use fencepost::error::Error;

use crate::harness::{acquire, cluster, etcd, health, leases_of, name, namespace, steady_replica, take, unready};

/// Longer than any test.
const TTL: Duration = Duration::from_secs(3600);
const CALLS: u64 = if cfg!(feature = "soak") { 10_000 } else { 1_000 };
const LOCKS: u64 = 7;
/// How many calls are begun before etcd has served the earlier ones.
const TOGETHER: u64 = 50;
/// How many leases those that are under way at once may need, and the steps that undo them.
const LEASES: usize = CALLS as usize / 4;

async fn marks(etcd: &mut Client) -> i64 {
    let marks = format!("/fencepost/{}/mark/", namespace());
    let options = GetOptions::new().with_prefix().with_count_only();
    etcd.get(marks, Some(options)).await.expect("etcd answers").count()
}

async fn all_leases(etcd: &mut Client) -> Vec<i64> {
    let all = etcd.leases().await.expect("etcd answers");
    all.leases().iter().map(|lease| lease.id()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_cancelled_under_way_leave_neither_marks_nor_leases() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = steady_replica(&cluster).await;
    let mut etcd = etcd(&cluster).await;
    let mut cancelled = 0;
    // Of how many calls the timeout comes first depends on the machine.
    for n in 0..20 * CALLS {
        if n >= CALLS && cancelled > CALLS / 4 {
            break;
        }
        let lock = format!("m{}", n % LOCKS);
        if n % TOGETHER == 0 {
            // Etcd answers this after the steps of the calls before, so a slow one has few to do at once.
            locks.inspect(&name(&lock), 1).await.expect("etcd answers");
        }
        // Some try, and some wait.
        let wait = if n % 3 == 0 { TTL } else { Duration::ZERO };
        let call = acquire(&locks, &lock, TTL, wait);
        let after = Duration::from_micros(200 + 73 * (n % 40));
        match tokio::time::timeout(after, call).await {
            Ok(Ok(lease)) => locks.release(&lease.key).await.expect("it is held"),
            Ok(Err(Error::LockHeld { .. })) => {}
            Ok(Err(other)) => panic!("{other:?}"),
            Err(_) => cancelled += 1,
        }
    }
    assert!(cancelled > CALLS / 4, "only {cancelled} were under way");
    let end = Instant::now() + Duration::from_secs(10);
    let left = loop {
        let mut queues = 0;
        for n in 0..LOCKS {
            let queue = locks.inspect(&name(&format!("m{n}")), 1).await.expect("etcd answers");
            queues += queue.holder_count + queue.waiter_count;
        }
        let left = (queues, marks(&mut etcd).await, all_leases(&mut etcd).await.len());
        if (left.0 == 0 && left.1 == 0 && left.2 <= LEASES) || Instant::now() > end {
            break left;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    println!("{cancelled} of {CALLS} calls cancelled; claims, marks and leases left: {left:?}");
    assert!(left.0 == 0 && left.1 == 0 && left.2 <= LEASES, "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_of_a_grant_of_unknown_outcome_is_revoked_once_its_call_has_left() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let hasty = Settings {
        timeout: Duration::from_millis(500),
        ..Settings::new(cluster.urls())
    };
    let locks = unready(hasty);
    health(&locks, Duration::from_secs(20), |health| {
        *health == fencepost::backend::Health::Serving
    })
    .await;
    let mut etcd = etcd(&cluster).await;
    // The next one of that TTL is granted on the same lease.
    let former = take(&locks, "a", TTL).await;
    let on = leases_of(&mut etcd, "a").await;
    locks.release(&former.key).await.expect("it is held");
    cluster.servers[0].pause();
    // It stops at its next moment, not at once.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let lost = acquire(&locks, "a", TTL, Duration::ZERO).await;
    cluster.servers[0].resume();
    assert!(matches!(lost, Err(Error::Backend(_))), "{lost:?}");
    let end = Instant::now() + Duration::from_secs(15);
    while all_leases(&mut etcd).await.iter().any(|lease| on.contains(lease)) {
        assert!(Instant::now() < end, "it is still there");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(
        locks.inspect(&name("a"), 1).await.expect("etcd answers").holder_count,
        0
    );
    assert!(marks(&mut etcd).await <= 1, "while nobody knows what may still come");
}
