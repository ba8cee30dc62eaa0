//! The life of a claim on the memory store, on paused time.

use std::time::Duration;

use futures::{StreamExt, poll};
use tokio::time::{Instant, sleep};

use super::*;
use crate::backend::embedded::Store;

mod gated;

const SECOND: Duration = Duration::from_secs(1);

fn locks() -> Locks {
    let namespace = Namespace::new("n").unwrap();
    let backend = Store::memory().namespace(namespace.clone());
    Locks::new(namespace, Limits::default(), backend)
}

fn name() -> LockName {
    LockName::new("a").unwrap()
}

fn ask(owner: &str, wait: Duration) -> Acquire {
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
        ..ask(owner, wait)
    }
}

async fn hold(locks: &Locks, owner: &str) -> Lease {
    locks.acquire(ask(owner, Duration::ZERO)).await.unwrap().delivered()
}

async fn counts(locks: &Locks) -> (usize, usize) {
    let queue = locks.inspect(&name(), 100).await.unwrap();
    (queue.holder_count, queue.waiter_count)
}

fn waiting(locks: &Locks, ask: Acquire) -> tokio::task::JoinHandle<Result<Lease, Error>> {
    let locks = locks.clone();
    tokio::spawn(async move { locks.acquire(ask).await.map(Granted::delivered) })
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_runs_out_says_so_on_time_and_leaves_nothing() {
    let locks = locks();
    let _held = hold(&locks, "one").await;
    let begun = Instant::now();
    let error = locks.acquire(ask("two", 3 * SECOND)).await.unwrap_err();
    assert!(matches!(error, Error::WaitTimeout { .. }), "{error}");
    assert_eq!(begun.elapsed().as_millis() / 100, 30);
    assert_eq!(counts(&locks).await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_release_hands_the_lock_to_the_next_and_waited_says_how_long_it_took() {
    let locks = locks();
    let first = hold(&locks, "one").await;
    let second = waiting(&locks, ask("two", 60 * SECOND));
    sleep(4 * SECOND).await;
    locks.release(&first.key).await.unwrap();
    let second = second.await.unwrap().unwrap();
    assert!(second.key.token > first.key.token);
    assert_eq!(second.waited.as_secs(), 4);
    assert_eq!(counts(&locks).await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_expiry_wakes_the_next() {
    let locks = locks();
    let first = hold(&locks, "one").await;
    let begun = Instant::now();
    let second = locks.acquire(ask("two", 60 * SECOND)).await.unwrap().delivered();
    assert_eq!(begun.elapsed().as_millis() / 100, 100);
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
async fn a_call_dropped_in_the_queue_lets_the_one_behind_it_move_up() {
    let locks = locks();
    let first = hold(&locks, "one").await;
    let second = waiting(&locks, ask("two", 60 * SECOND));
    sleep(SECOND).await;
    let third = waiting(&locks, ask("three", 60 * SECOND));
    sleep(SECOND).await;
    second.abort();
    sleep(SECOND).await;
    assert_eq!(counts(&locks).await, (1, 1));
    locks.release(&first.key).await.unwrap();
    assert_eq!(third.await.unwrap().unwrap().owner.as_str(), "three");
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_received_is_taken_back() {
    let locks = locks();
    let granted = locks.acquire(ask("one", Duration::ZERO)).await.unwrap();
    assert_eq!(counts(&locks).await, (1, 0));
    drop(granted);
    sleep(SECOND).await;
    assert_eq!(counts(&locks).await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_a_retry_found_is_not_taken_back() {
    let locks = locks();
    let granted = locks.acquire(retry("one", Duration::ZERO)).await.unwrap();
    let found = locks.acquire(retry("one", Duration::ZERO)).await.unwrap().delivered();
    assert_eq!(found.key, granted.lease.key);
    assert_eq!(found.waited, Duration::ZERO);
    drop(granted);
    sleep(SECOND).await;
    assert_eq!(locks.renew(&found.key, None).await.unwrap().holds, 1);
}

#[tokio::test(start_paused = true)]
async fn a_grant_in_the_instant_of_the_drop_is_passed_on() {
    let locks = locks();
    let first = hold(&locks, "one").await;
    let mut second = Box::pin(locks.acquire(ask("two", 60 * SECOND)));
    assert!(poll!(second.as_mut()).is_pending());
    let third = waiting(&locks, ask("three", 60 * SECOND));
    sleep(SECOND).await;
    // The release names the second one, whose call then ends without having seen its grant.
    locks.release(&first.key).await.unwrap();
    drop(second);
    assert_eq!(third.await.unwrap().unwrap().owner.as_str(), "three");
}

#[tokio::test(start_paused = true)]
async fn a_later_call_of_the_same_request_takes_the_wait_over() {
    let locks = locks();
    let first = hold(&locks, "one").await;
    let older = waiting(&locks, retry("two", 60 * SECOND));
    sleep(SECOND).await;
    let between = waiting(&locks, ask("three", 60 * SECOND));
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
async fn a_try_that_finds_its_own_wait_ends_it() {
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
async fn readers_behind_a_writer_are_all_woken() {
    let locks = locks();
    let writer = hold(&locks, "writer").await;
    let reader = |n: usize| Acquire {
        mode: Mode::Shared,
        ..ask(&format!("reader {n}"), 60 * SECOND)
    };
    let readers: Vec<_> = (0..20).map(|n| waiting(&locks, reader(n))).collect();
    sleep(SECOND).await;
    locks.release(&writer.key).await.unwrap();
    let begun = Instant::now();
    for reader in readers {
        reader.await.unwrap().unwrap();
    }
    assert!(begun.elapsed() < SECOND);
    assert_eq!(counts(&locks).await, (20, 0));
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_waits_and_watches_and_leaves_leases_alone() {
    let locks = locks();
    let held = hold(&locks, "one").await;
    let waiter = waiting(&locks, ask("two", 60 * SECOND));
    let mut watch = locks.watch(&name());
    assert!(matches!(watch.next().await, Some(Ok(WatchEvent::State(_)))));
    sleep(SECOND).await;
    locks.drain();
    assert_eq!(waiter.await.unwrap(), Err(Error::Draining));
    let last = watch.collect::<Vec<_>>().await;
    assert!(matches!(last.last(), Some(Err(Error::Draining))), "{last:?}");
    assert_eq!(
        locks.acquire(ask("three", Duration::ZERO)).await.unwrap_err(),
        Error::Draining
    );
    locks.renew(&held.key, None).await.unwrap();
    locks.release(&held.key).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_waiters_leave_together_and_nothing_stays() {
    let locks = locks();
    let _held = hold(&locks, "one").await;
    let waiters: Vec<_> = (0..10_000)
        .map(|n| waiting(&locks, ask(&n.to_string(), 2 * SECOND)))
        .collect();
    for waiter in waiters {
        assert!(matches!(waiter.await.unwrap(), Err(Error::WaitTimeout { .. })));
    }
    assert_eq!(counts(&locks).await, (1, 0));
}

#[test]
fn an_undo_that_cannot_reach_its_store_ends_with_the_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let locks = locks();
        let granted = locks.acquire(ask("one", Duration::ZERO)).await.unwrap();
        locks.state.backend.close().await;
        drop(granted);
        tokio::task::yield_now().await;
        assert_eq!(locks.state.undos.len(), 1);
    });
    drop(runtime);
}
