//! The leases of etcd: used again, ended from outside; and watches that were cut.

use std::time::{Duration, Instant};

use fencepost::claim::Cause;
use fencepost::error::Error;
use fencepost::locks::Acquire;

use crate::harness::{Lateness, acquire, ask, cluster, etcd, leases_of, name, replica, steady_replica, take, token};

const TTL: Duration = Duration::from_secs(30);

// G1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_renewal_of_the_former_holder_of_a_lease_changes_nothing() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let (locks, other) = (steady_replica(&cluster).await, steady_replica(&cluster).await);
    let mut etcd = etcd(&cluster).await;
    let mut reused = 0;
    for round in 0..30 {
        let former = take(&locks, "former", TTL).await;
        let on = leases_of(&mut etcd, "former").await;
        // Renewals that are on their way while the lease changes hands.
        let late = [locks.clone(), other.clone()].map(|replica| {
            let key = former.key.clone();
            tokio::spawn(async move { replica.renew(&key, None).await })
        });
        locks.release(&former.key).await.expect("it was held");
        let next = take(&locks, "next", TTL).await;
        reused += usize::from(leases_of(&mut etcd, "next").await == on);
        for late in late {
            match late.await.expect("no panic") {
                // It came before the release.
                Ok(_) | Err(Error::LeaseLost { .. }) => {}
                Err(error) => panic!("round {round}: {error:?}"),
            }
        }
        for replica in [&locks, &other] {
            let gone = replica.renew(&former.key, None).await;
            assert!(
                matches!(
                    gone,
                    Err(Error::LeaseLost {
                        cause: Some(Cause::Released)
                    })
                ),
                "round {round}: {gone:?}"
            );
            let held = replica
                .check(&name("next"), next.key.token)
                .await
                .expect("etcd answers");
            assert!(held.is_some(), "round {round}");
        }
        assert!(replica_is_free(&other, "former").await, "round {round}");
        locks.release(&next.key).await.expect("it was held");
    }
    assert!(reused >= 20, "leases were used again only {reused} times");
}

async fn replica_is_free(locks: &fencepost::locks::Locks, lock: &str) -> bool {
    locks.inspect(&name(lock), 1).await.expect("etcd answers").holder_count == 0
}

// G115
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_was_revoked_from_outside_is_lost_and_the_next_holds() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let (locks, other) = (steady_replica(&cluster).await, steady_replica(&cluster).await);
    let mut etcd = etcd(&cluster).await;
    let held = take(&locks, "a", TTL).await;
    let waiter = tokio::spawn({
        let other = other.clone();
        async move { acquire(&other, "a", TTL, Duration::from_secs(20)).await }
    });
    crate::harness::waiters(&locks, "a", 1).await;
    let (revoked, lateness) = (Instant::now(), Lateness::begin());
    for lease in leases_of(&mut etcd, "a").await {
        etcd.lease_revoke(lease).await.expect("etcd answers");
    }
    let next = waiter.await.expect("no panic").expect("it is next");
    let (took, late) = (revoked.elapsed(), lateness.so_far());
    assert!(took < Duration::from_secs(3) + late, "{took:?}, {late:?}");
    assert!(token(&next) > token(&held));
    for replica in [&locks, &other] {
        let gone = replica.renew(&held.key, None).await;
        assert!(matches!(gone, Err(Error::LeaseLost { .. })), "{gone:?}");
        let freed = replica.release(&held.key).await;
        assert!(matches!(freed, Err(Error::LeaseLost { .. })), "{freed:?}");
        let still = replica.check(&name("a"), next.key.token).await.expect("etcd answers");
        assert!(still.is_some());
    }
}

// G13
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_hears_of_its_turn_after_its_watch_was_cut_and_history_compacted() {
    let Some(mut cluster) = cluster(1, &[]) else {
        return;
    };
    let (locks, other) = (replica(&cluster).await, replica(&cluster).await);
    let held = take(&locks, "a", TTL).await;
    let waiter = tokio::spawn({
        let other = other.clone();
        async move { acquire(&other, "a", TTL, Duration::from_secs(40)).await }
    });
    crate::harness::waiters(&locks, "a", 1).await;
    cluster.servers[0].kill9();
    cluster.servers[0].start();
    let mut etcd = etcd(&cluster).await;
    let revision = loop {
        match etcd.get("x", None).await {
            Ok(read) => break read.header().expect("a header").revision(),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    etcd.compact(revision, None).await.expect("etcd answers");
    let mut released = locks.release(&held.key).await;
    for _ in 0..100 {
        if !matches!(released, Err(Error::Backend(_))) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        released = locks.release(&held.key).await;
    }
    released.expect("it was held");
    let next = waiter.await.expect("no panic").expect("it is next");
    assert!(token(&next) > token(&held));
    locks.release(&next.key).await.expect("it is held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_holds_that_end_at_once_each_end_is_remembered() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let (locks, other) = (steady_replica(&cluster).await, steady_replica(&cluster).await);
    let reenter = Acquire {
        reentrant: true,
        ..ask("a", TTL, Duration::ZERO)
    };
    let mut holds = Vec::new();
    for _ in 0..40 {
        let held = locks.acquire(reenter.clone()).await.expect("it is its own");
        holds.push(held.delivered());
    }
    other.force_release(&name("a"), holds[0].key.token).await.expect("held");
    for (number, hold) in holds.iter().enumerate() {
        let lost = other.release(&hold.key).await;
        let forced = matches!(
            lost,
            Err(Error::LeaseLost {
                cause: Some(Cause::Forced)
            })
        );
        assert!(forced, "hold {number}: {lost:?}");
    }
}
