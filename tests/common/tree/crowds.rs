//! More calls at once than a queue takes.

use std::time::Duration;

use fencepost::error::Error;
use fencepost::limits::Limits;
use fencepost::locks::{Acquire, Lease, Locks};
use fencepost::name::Mode;
use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};

use crate::clients::{acquire, ask, take};
use crate::harness::{Servers, addresses, backend, name, namespace, steady, store, waiters};

const TTL: Duration = Duration::from_secs(60);
const LIMIT: usize = 12;
const CALLS: usize = 300;
const READERS: usize = 100;

// G18a, G18b
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_calls_at_once_as_many_are_queued_as_the_queue_takes() {
    let Some(store) = store(1) else { return };
    let locks = small(&store).await;
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

/// A replica whose queues are small.
async fn small(store: &Servers) -> Locks {
    let limits = Limits {
        queue: LIMIT as u32,
        ..Limits::default()
    };
    let backend = backend(steady(addresses(store))).await;
    Locks::new(namespace(), limits, backend)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_readers_at_once_no_more_hold_than_the_queue_takes() {
    let Some(store) = store(1) else { return };
    let locks = small(&store).await;
    let read = || {
        let locks = locks.clone();
        let reader = Acquire {
            mode: Mode::Shared,
            ..ask("a", TTL, Duration::ZERO)
        };
        tokio::spawn(async move { locks.acquire(reader).await.map(|granted| granted.delivered()) })
    };
    let mut held = 0;
    let mut count = |read: Result<Lease, Error>| match read {
        Ok(_) => held += 1,
        Err(Error::QueueFull { .. }) => {}
        other => panic!("{other:?}"),
    };
    for read in join_all((0..READERS).map(|_| read())).await {
        count(read.expect("no panic"));
    }
    // Those that were on their way may have kept room from each other.
    for _ in 0..=LIMIT {
        count(read().await.expect("no panic"));
    }
    assert_eq!(held, LIMIT);
    assert_eq!(
        locks.inspect(&name("a"), 1).await.expect("it answers").holder_count,
        LIMIT
    );
}
