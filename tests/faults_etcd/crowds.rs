//! More calls at once than a queue takes.

use std::time::Duration;

use fencepost::backend::etcd::Store;
use fencepost::backend::etcd::settings::Settings;
use fencepost::error::Error;
use fencepost::limits::Limits;
use fencepost::locks::Locks;
use futures::stream::{FuturesUnordered, StreamExt};

use crate::harness::{acquire, cluster, health, namespace, take, waiters};

const TTL: Duration = Duration::from_secs(60);
const LIMIT: usize = 12;
const CALLS: usize = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_calls_at_once_as_many_are_queued_as_the_queue_takes() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let limits = Limits {
        queue: LIMIT as u32,
        ..Limits::default()
    };
    let backend = Store::open(Settings::new(cluster.urls())).namespace(&namespace());
    let locks = Locks::new(namespace(), limits, backend);
    health(&locks, Duration::from_secs(20), |health| {
        *health == fencepost::backend::Health::Serving
    })
    .await;
    // Where nobody waits yet, and where somebody does.
    for (lock, first) in [("cold", 0), ("warm", 3)] {
        let held = take(&locks, lock, TTL).await;
        let call = || {
            let locks = locks.clone();
            tokio::spawn(async move { acquire(&locks, lock, TTL, TTL).await })
        };
        let mut calls: FuturesUnordered<_> = (0..first).map(|_| call()).collect();
        waiters(&locks, lock, first).await;
        calls.extend((0..CALLS).map(|_| call()));
        let over = first + CALLS - (LIMIT - 1);
        for _ in 0..over {
            let refused = tokio::time::timeout(TTL / 2, calls.next()).await;
            let refused = refused.expect("nobody else has room").expect("there are more");
            let refused = refused.expect("no panic");
            assert!(matches!(refused, Err(Error::QueueFull { .. })), "{lock}: {refused:?}");
        }
        waiters(&locks, lock, LIMIT - 1).await;
        // Who is let in is served.
        locks.release(&held.key).await.expect("it is held");
        while let Some(lease) = calls.next().await {
            let lease = lease.expect("no panic").expect("it is next");
            locks.release(&lease.key).await.expect("it is held");
        }
    }
}
