//! Watches that were cut, and ends of many holds at once.

use std::time::Duration;

use common::clients::spawn_acquire;
use fencepost::claim::Cause;
use fencepost::error::Error;
use fencepost::locks::Acquire;

use crate::harness::{ask, cluster, etcd, name, replica, steady_replica, take, token};

const TTL: Duration = Duration::from_secs(30);

// G13
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_hears_of_its_turn_after_its_watch_was_cut_and_history_compacted() {
    let Some(mut cluster) = cluster(1, &[]) else {
        return;
    };
    let (locks, other) = (replica(&cluster).await, replica(&cluster).await);
    let held = take(&locks, "a", TTL).await;
    let waiter = spawn_acquire(&other, "a", TTL, Duration::from_secs(40));
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
