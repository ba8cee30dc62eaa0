//! Crowds that share a lock: readers, and claims of a semaphore.

use std::time::Duration;

use fencepost::backend::BackendError;
use fencepost::error::Error;
use fencepost::locks::{Acquire, Lease, Locks};
use fencepost::name::Mode;
use futures::future::join_all;

use crate::harness::{ask, calls, cluster, name, steady_replica, waiters};
use crate::servers::Cluster;

const TTL: Duration = Duration::from_secs(300);
const CROWD: u32 = 400;
/// Longer than a crowd takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many transactions each of a crowd may take on average; in each other's way they take 50 to 110.
const STEPS: usize = 10;

fn with(mode: Mode, lock: &str, wait: Duration) -> Acquire {
    Acquire {
        mode,
        ..ask(lock, TTL, wait)
    }
}

fn semaphore(permits: u32, limit: u32) -> Mode {
    Mode::semaphore(permits, limit).expect("good permits")
}

/// An etcd whose disk does not matter.
fn fast() -> Option<Cluster> {
    cluster(1, &["--unsafe-no-fsync"])
}

/// Whether a grant failed because the session's stream was not answered in time, which a busy machine may cause: nothing
/// that the lock or its other callers did.
fn is_of_connection(error: &Error) -> bool {
    matches!(error, Error::Backend(BackendError::Unavailable { reason }) if reason.contains("the connection broke"))
}

/// Lets all of these ask at once.
async fn all(locks: &Locks, asks: impl Iterator<Item = Acquire>) -> Vec<Result<Lease, Error>> {
    let tasks = asks.map(|ask| {
        let locks = locks.clone();
        tokio::spawn(async move {
            for _ in 0..2 {
                match locks.acquire(ask.clone()).await.map(|granted| granted.delivered()) {
                    Err(error) if is_of_connection(&error) => {}
                    other => return other,
                }
            }
            locks.acquire(ask).await.map(|granted| granted.delivered())
        })
    });
    let all = join_all(tasks.collect::<Vec<_>>()).await;
    all.into_iter().map(|one| one.expect("no panic")).collect()
}

/// The tokens of these, all of which must hold.
async fn crowd(locks: &Locks, asks: impl Iterator<Item = Acquire>) -> Vec<u64> {
    let held = all(locks, asks).await.into_iter();
    let token = |held: Result<Lease, Error>| held.expect("nobody is in the way").key.token.get();
    held.map(token).collect()
}

/// What a crowd of so many does, without being in each other's way.
async fn unhindered<T>(cluster: &Cluster, crowd: usize, all: impl Future<Output = T>) -> T {
    let before = calls(cluster, "Txn");
    let done = tokio::time::timeout(PATIENCE, all).await.expect("in time");
    let steps = calls(cluster, "Txn") - before;
    println!("{crowd} took {steps} transactions");
    assert!(steps < STEPS * crowd, "they were in each other's way: {steps}");
    done
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_readers_that_try_at_once_each_holds() {
    let Some(cluster) = fast() else { return };
    let (locks, other) = (steady_replica(&cluster).await, steady_replica(&cluster).await);
    let readers = |lock, count, wait| (0..count).map(move |_| with(Mode::Shared, lock, wait));
    let at_one = crowd(&locks, readers("one", CROWD, Duration::ZERO));
    unhindered(&cluster, CROWD as usize, at_one).await;
    // At two servers at once, half of them willing to wait.
    let half = || readers("two", CROWD / 4, Duration::ZERO).chain(readers("two", CROWD / 4, PATIENCE));
    let at_two = async { tokio::join!(crowd(&locks, half()), crowd(&other, half())) };
    let (mut tokens, more) = unhindered(&cluster, CROWD as usize, at_two).await;
    tokens.extend(more);
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), CROWD as usize, "each has a token of its own");
    let queue = other.inspect(&name("two"), 1).await.expect("etcd answers");
    assert_eq!((queue.holder_count, queue.waiter_count), (CROWD as usize, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_semaphore_claims_that_try_at_once_each_holds_that_fits() {
    let Some(cluster) = fast() else { return };
    let locks = steady_replica(&cluster).await;
    let (limit, more) = (60, 20);
    let asks = (0..limit + more).map(|_| with(semaphore(1, limit), "a", Duration::ZERO));
    let all = unhindered(&cluster, (limit + more) as usize, all(&locks, asks)).await;
    let held = all.iter().filter(|one| one.is_ok()).count();
    assert_eq!(held, limit as usize);
    for refused in all.iter().filter_map(|one| one.as_ref().err()) {
        assert!(matches!(refused, Error::LockHeld { .. }), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_semaphore_waiters_that_one_release_makes_room_for_each_holds() {
    let Some(cluster) = fast() else { return };
    let locks = steady_replica(&cluster).await;
    let whole = with(semaphore(CROWD, CROWD), "a", Duration::ZERO);
    let held = locks.acquire(whole).await.expect("it is free").delivered();
    let waiting = {
        let locks = locks.clone();
        let asks = (0..CROWD).map(|_| with(semaphore(1, CROWD), "a", TTL));
        tokio::spawn(async move { all(&locks, asks).await })
    };
    waiters(&locks, "a", CROWD as usize).await;
    let granted = async {
        locks.release(&held.key).await.expect("it is held");
        waiting.await.expect("no panic")
    };
    for held in unhindered(&cluster, CROWD as usize, granted).await {
        held.expect("it fits");
    }
}
