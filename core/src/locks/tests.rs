//! Locks over the memory store, on paused time.

use std::time::Duration;

use futures::{StreamExt, poll};
use tokio::time::{Instant, sleep};

use super::*;
use crate::backend::embedded::Store;
use crate::backend::{BackendError, Health, ReleaseTarget, Released};
use crate::claim::Cause;
use crate::measured::Operation;
use crate::traces::Traced;

pub(crate) mod blocking_store;
mod controlled;
mod gated;
mod outages;
mod places;
mod resumed;

const SECOND: Duration = Duration::from_secs(1);

fn locks() -> Locks {
    let namespace = Namespace::new("n").unwrap();
    let backend = Store::memory().namespace(namespace.clone());
    Locks::new(namespace, Limits::default(), backend)
}

/// Counts nothing; the ledger records all leases all the same.
struct NoSeries;

impl OperationMetrics for NoSeries {
    fn traced(&self, _: Operation) -> Option<Traced> {
        None
    }

    fn ended(&self, _: Operation, _: Duration, _: Option<&BackendError>) {}

    fn granted(&self, _: &LockName, _: &NewClaim, _: &Grant, _: Instant, _: bool) {}

    fn released(&self, _: &LockName, _: ReleaseTarget<'_>, _: Released, _: Instant) {}

    fn lost(&self, _: Option<Cause>) {}
}

fn measured(namespace: Namespace, backend: Arc<dyn Backend>) -> Locks {
    Locks::measured(namespace, Limits::default(), backend, Some(Arc::new(NoSeries)))
}

fn name() -> LockName {
    LockName::new("a").unwrap()
}

fn request(owner: &str, wait: Duration) -> Acquire {
    Acquire {
        lock: name(),
        owner: Owner::new(owner).unwrap(),
        identity: Identity::anonymous(),
        mode: Mode::Exclusive,
        ttl: Some(10 * SECOND),
        wait,
        request_id: None,
        reentrant: false,
        metadata: Metadata::default(),
    }
}

fn retry(owner: &str, wait: Duration) -> Acquire {
    Acquire {
        request_id: Some(RequestId::new("r").unwrap()),
        ..request(owner, wait)
    }
}

async fn hold(locks: &Locks, owner: &str) -> Lease {
    locks.acquire(request(owner, Duration::ZERO)).await.unwrap().delivered()
}

async fn counts(locks: &Locks) -> (usize, usize) {
    let queue = locks.inspect(&name(), 100).await.unwrap();
    (queue.holder_count, queue.waiter_count)
}

fn waiting(locks: &Locks, request: Acquire) -> tokio::task::JoinHandle<Result<Lease, Error>> {
    let locks = locks.clone();
    tokio::spawn(async move { locks.acquire(request).await.map(UndeliveredGrant::delivered) })
}

// G14a, G14b
#[tokio::test(start_paused = true)]
async fn a_wait_times_out_on_time_and_leaves_no_claim() {
    let locks = locks();
    let _held = hold(&locks, "one").await;
    let start = Instant::now();
    let error = locks.acquire(request("two", 3 * SECOND)).await.unwrap_err();
    assert!(matches!(error, Error::WaitTimeout { .. }), "{error}");
    assert_eq!(start.elapsed().as_millis() / 100, 30);
    assert_eq!(counts(&locks).await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_release_promotes_the_next_waiter_and_waited_is_its_waiting_time() {
    let locks = locks();
    let first = hold(&locks, "one").await;
    let second = waiting(&locks, request("two", 60 * SECOND));
    sleep(4 * SECOND).await;
    locks.release(&first.key).await.unwrap();
    let second = second.await.unwrap().unwrap();
    assert!(second.key.token > first.key.token);
    assert_eq!(second.waited.as_secs(), 4);
    assert_eq!(counts(&locks).await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_expiry_promotes_the_next_waiter() {
    let locks = locks();
    let first = hold(&locks, "one").await;
    let start = Instant::now();
    let second = locks.acquire(request("two", 60 * SECOND)).await.unwrap().delivered();
    assert_eq!(start.elapsed().as_millis() / 100, 100);
    let lost = locks.renew(&first.key, None).await.unwrap_err();
    assert_eq!(
        lost,
        Error::LeaseLost {
            cause: Some(Cause::Expired)
        }
    );
    locks.release(&second.key).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_waiter_behind_a_dropped_call_moves_up() {
    let locks = locks();
    let first = hold(&locks, "one").await;
    let second = waiting(&locks, request("two", 60 * SECOND));
    sleep(SECOND).await;
    let third = waiting(&locks, request("three", 60 * SECOND));
    sleep(SECOND).await;
    second.abort();
    sleep(SECOND).await;
    assert_eq!(counts(&locks).await, (1, 1));
    locks.release(&first.key).await.unwrap();
    assert_eq!(third.await.unwrap().unwrap().owner.as_str(), "three");
}

#[tokio::test(start_paused = true)]
async fn an_undelivered_grant_is_released() {
    let locks = locks();
    let granted = locks.acquire(request("one", Duration::ZERO)).await.unwrap();
    assert_eq!(counts(&locks).await, (1, 0));
    drop(granted);
    sleep(SECOND).await;
    assert_eq!(counts(&locks).await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_a_retry_adopted_is_not_released() {
    let locks = locks();
    let granted = locks.acquire(retry("one", Duration::ZERO)).await.unwrap();
    let found = locks.acquire(retry("one", Duration::ZERO)).await.unwrap().delivered();
    assert_eq!(found.key, granted.lease.key);
    assert_eq!(found.waited, Duration::ZERO);
    drop(granted);
    sleep(SECOND).await;
    assert_eq!(locks.renew(&found.key, None).await.unwrap().holds, 1);
}

// G15
#[tokio::test(start_paused = true)]
async fn a_grant_to_a_call_that_is_dropped_goes_to_the_next_waiter() {
    let locks = locks();
    let first = hold(&locks, "one").await;
    let mut second = Box::pin(locks.acquire(request("two", 60 * SECOND)));
    assert!(poll!(second.as_mut()).is_pending());
    let third = waiting(&locks, request("three", 60 * SECOND));
    sleep(SECOND).await;
    // The release promotes the second claim, whose call is dropped before it has read its grant.
    locks.release(&first.key).await.unwrap();
    drop(second);
    assert_eq!(third.await.unwrap().unwrap().owner.as_str(), "three");
}

#[tokio::test(start_paused = true)]
async fn a_later_call_with_the_same_request_id_adopts_the_waiting_claim() {
    let locks = locks();
    let first = hold(&locks, "one").await;
    let older = waiting(&locks, retry("two", 60 * SECOND));
    sleep(SECOND).await;
    let between = waiting(&locks, request("three", 60 * SECOND));
    sleep(SECOND).await;
    let newer = waiting(&locks, retry("two", 60 * SECOND));
    assert_eq!(older.await.unwrap(), Err(Error::Superseded));
    assert_eq!(counts(&locks).await, (1, 2));
    locks.release(&first.key).await.unwrap();
    let newer = newer.await.unwrap().unwrap();
    assert_eq!(newer.owner.as_str(), "two");
    locks.release(&newer.key).await.unwrap();
    between.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_try_with_the_request_id_of_a_waiting_claim_removes_it() {
    let locks = locks();
    let first = hold(&locks, "one").await;
    let older = waiting(&locks, retry("two", 60 * SECOND));
    sleep(SECOND).await;
    let error = locks.acquire(retry("two", Duration::ZERO)).await.unwrap_err();
    assert!(
        matches!(error, Error::LockHeld { holder: Some(ref h) } if h.owner.as_str() == "one"),
        "{error}"
    );
    assert_eq!(older.await.unwrap(), Err(Error::Superseded));
    assert_eq!(counts(&locks).await, (1, 0));
    locks.release(&first.key).await.unwrap();
    hold(&locks, "three").await;
}

#[tokio::test(start_paused = true)]
async fn readers_behind_a_writer_are_all_promoted() {
    let locks = locks();
    let writer = hold(&locks, "writer").await;
    let reader = |n: usize| Acquire {
        mode: Mode::Shared,
        ..request(&format!("reader {n}"), 60 * SECOND)
    };
    let readers: Vec<_> = (0..20).map(|n| waiting(&locks, reader(n))).collect();
    sleep(SECOND).await;
    locks.release(&writer.key).await.unwrap();
    let start = Instant::now();
    for reader in readers {
        reader.await.unwrap().unwrap();
    }
    assert!(start.elapsed() < SECOND);
    assert_eq!(counts(&locks).await, (20, 0));
}

// G62
#[tokio::test(start_paused = true)]
async fn a_drain_ends_waits_and_watches_but_no_leases() {
    let locks = locks();
    let held = hold(&locks, "one").await;
    let waiter = waiting(&locks, request("two", 60 * SECOND));
    let mut watch = locks.watch(&name());
    assert!(matches!(watch.next().await, Some(Ok(WatchEvent::State(_)))));
    sleep(SECOND).await;
    locks.drain();
    assert_eq!(waiter.await.unwrap(), Err(Error::Draining));
    let last = watch.collect::<Vec<_>>().await;
    assert!(matches!(last.last(), Some(Err(Error::Draining))), "{last:?}");
    assert_eq!(
        locks.acquire(request("three", Duration::ZERO)).await.unwrap_err(),
        Error::Draining
    );
    locks.renew(&held.key, None).await.unwrap();
    locks.release(&held.key).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_waiters_time_out_together_and_leave_no_claim() {
    let locks = locks();
    let _held = hold(&locks, "one").await;
    let waiters: Vec<_> = (0..10_000)
        .map(|n| waiting(&locks, request(&n.to_string(), 2 * SECOND)))
        .collect();
    for waiter in waiters {
        assert!(matches!(waiter.await.unwrap(), Err(Error::WaitTimeout { .. })));
    }
    assert_eq!(counts(&locks).await, (1, 0));
}

#[test]
fn an_undo_without_a_store_ends_with_the_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let locks = locks();
        let granted = locks.acquire(request("one", Duration::ZERO)).await.unwrap();
        locks.state.backend.close().await;
        drop(granted);
        tokio::task::yield_now().await;
        assert_eq!(locks.state.undos.len(), 1);
    });
    drop(runtime);
}

#[tokio::test(start_paused = true)]
async fn the_bytes_of_waiters_are_bounded_and_those_of_one_identity_to_its_share() {
    let locks = locks();
    locks.set_limits(Limits {
        waiting_bytes: 10_000,
        identity_share: 40,
        ..Limits::default()
    });
    let _held = hold(&locks, "one").await;
    let large = |identity: Identity, wait| Acquire {
        identity,
        metadata: Metadata::new([("a".into(), "x".repeat(998))]).unwrap(),
        ..request("b", wait)
    };
    let authenticated = Identity::authenticated;
    let refused = |error: Error| matches!(error, Error::Overloaded { .. });
    let mut waiters = Vec::new();
    let mut wait = |request: Acquire| waiters.push(waiting(&locks, request));
    // Each has 1,000 bytes. Tries have none.
    (0..4).for_each(|_| wait(large(authenticated("a"), 60 * SECOND)));
    sleep(SECOND).await;
    assert!(refused(
        locks.acquire(large(authenticated("a"), SECOND)).await.unwrap_err()
    ));
    let held = locks
        .acquire(large(authenticated("a"), Duration::ZERO))
        .await
        .unwrap_err();
    assert!(matches!(held, Error::LockHeld { .. }), "{held}");
    // Callers without an identity have no share, and small requests always wait.
    (0..6).for_each(|_| wait(large(Identity::anonymous(), 60 * SECOND)));
    wait(request("small", 60 * SECOND));
    sleep(SECOND).await;
    assert!(refused(
        locks.acquire(large(authenticated("c"), SECOND)).await.unwrap_err()
    ));
    assert_eq!(counts(&locks).await, (1, 11));
    for waiter in waiters {
        waiter.abort();
    }
    sleep(SECOND).await;
    let waited = locks.acquire(large(authenticated("a"), SECOND)).await.unwrap_err();
    assert!(matches!(waited, Error::WaitTimeout { .. }), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn who_watches_the_end_of_a_lease_holds_no_namespace_open() {
    let namespace = Namespace::new("n").unwrap();
    let backend = Store::memory().namespace(namespace.clone());
    let locks = Locks::new(namespace, Limits::default(), backend);
    let lease = hold(&locks, "one").await;
    let (sender, mut ends) = tokio::sync::mpsc::unbounded_channel();
    let _watch = locks.ledger().watch_end(&lease.key, sender);
    assert!(locks.is_idle());
    locks.release(&lease.key).await.unwrap();
    assert!(ends.recv().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn each_end_of_a_lease_is_recorded_in_the_ledger() {
    let namespace = Namespace::new("n").unwrap();
    let backend = Store::memory().namespace(namespace.clone());
    let locks = measured(namespace, backend);
    let held = || locks.ledger().counts().1;

    let released = hold(&locks, "one").await;
    assert_eq!(held(), 1);
    locks.release(&released.key).await.unwrap();
    assert_eq!(held(), 0, "it was released");

    let undone = locks.acquire(request("two", Duration::ZERO)).await.unwrap();
    assert_eq!(held(), 1);
    drop(undone);
    locks.state.undos.close();
    locks.state.undos.wait().await;
    assert_eq!(held(), 0, "it was undone");

    let forced = hold(&locks, "three").await;
    let next = waiting(&locks, request("four", SECOND));
    sleep(SECOND / 10).await;
    locks.force_release(&name(), forced.key.token).await.unwrap();
    let next = next.await.unwrap().unwrap();
    assert_eq!(
        held(),
        1,
        "it was forced, and the next one was granted in the same step"
    );

    let end = sleep(10 * SECOND);
    locks.renew(&next.key, Some(20 * SECOND)).await.unwrap();
    end.await;
    assert_eq!(held(), 1, "it was renewed");
    sleep(10 * SECOND).await;
    assert_eq!(locks.ledger().counts(), (1, 0), "it has expired");
}

#[tokio::test(start_paused = true)]
async fn the_bound_of_names_holds_for_every_operation_on_a_lock() {
    let locks = locks();
    let held = hold(&locks, "one").await;
    let long = LockName::new("ab").unwrap();
    locks.set_limits(Limits {
        name_bytes: 1,
        ..Limits::default()
    });
    let is_refused = |error: Error| matches!(error, Error::InvalidField(_));
    let acquire = Acquire {
        lock: long.clone(),
        ..request("two", Duration::ZERO)
    };
    assert!(is_refused(locks.acquire(acquire).await.unwrap_err()));
    assert!(is_refused(locks.inspect(&long, 1).await.unwrap_err()));
    assert!(is_refused(locks.check(&long, held.key.token).await.unwrap_err()));
    assert!(is_refused(
        locks.force_release(&long, held.key.token).await.unwrap_err()
    ));
    let watched = locks.watch(&long).next().await;
    assert!(is_refused(watched.unwrap().unwrap_err()));
    assert_eq!(counts(&locks).await, (1, 0));
}
