//! A replica that etcd cannot be reached from any more, while others go on.

use std::time::{Duration, Instant};

use fencepost::backend::Health;
use fencepost::error::Error;

use crate::forwarder::Forwarder;
use crate::harness::{acquire, cluster, health, name, replica, replica_of, take, token, waiters};

const TTL: Duration = Duration::from_secs(60);
/// How long a call may take that finds its store gone, and how long a waiter outlives its replica.
const LONGEST: Duration = Duration::from_secs(10);

// G112
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_cut_off_grants_nothing_keeps_its_leases_and_leaves_every_queue() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let other = replica(&cluster).await;
    let network = Forwarder::before(cluster.servers[0].port()).await;
    let cut_off = replica_of(vec![format!("http://{}", network.address())]).await;
    let kept = take(&cut_off, "kept", TTL).await;
    let held = take(&other, "a", TTL).await;
    let wait = |locks: &fencepost::locks::Locks| {
        let locks = locks.clone();
        tokio::spawn(async move { acquire(&locks, "a", TTL, Duration::from_secs(50)).await })
    };
    let first = wait(&cut_off);
    waiters(&other, "a", 1).await;
    let second = wait(&other);
    waiters(&other, "a", 2).await;

    network.stall();
    let cut = Instant::now();
    other.release(&held.key).await.expect("it was held");
    let next = second.await.expect("no panic").expect("it comes to be first");
    assert!(cut.elapsed() < LONGEST, "{:?}", cut.elapsed());
    assert!(token(&next) > token(&held));
    for _ in 0..3 {
        let asked = Instant::now();
        let refused = acquire(&cut_off, "free", TTL, Duration::ZERO).await;
        assert!(matches!(refused, Err(Error::Backend(_))), "{refused:?}");
        let renewed = cut_off.renew(&kept.key, None).await;
        assert!(matches!(renewed, Err(Error::Backend(_))), "{renewed:?}");
        assert!(asked.elapsed() < 2 * LONGEST, "{:?}", asked.elapsed());
    }
    let away = first.await.expect("no panic");
    assert!(matches!(away, Err(Error::Backend(_))), "{away:?}");
    // What it held lives for its TTL, and is any replica's.
    other.renew(&kept.key, None).await.expect("it is held");

    network.go_on();
    health(&cut_off, Duration::from_secs(20), |health| *health == Health::Serving).await;
    cut_off.renew(&kept.key, None).await.expect("it is held");
    cut_off.release(&kept.key).await.expect("it is held");
    let again = take(&cut_off, "kept", TTL).await;
    assert!(token(&again) > token(&kept));
    // Nothing of what it gave up came late.
    let still = other.check(&name("a"), next.key.token).await.expect("etcd answers");
    assert!(still.is_some());
    waiters(&other, "a", 0).await;
    take(&other, "free", TTL).await;
}
