//! Waits with a control, over a memory store whose steps can hang.

use std::sync::atomic::Ordering;

use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinHandle;

use super::blocking_store::{BlockingStore, HOUR, locks_over, unplugged};
use super::*;
use crate::backend::Notification;

/// A wait of `b` whose call arrived then, and what cancels it.
fn waits_since(
    locks: &Locks,
    wait: Duration,
    arrived: Instant,
) -> (JoinHandle<Result<Lease, Error>>, CancellationToken) {
    let cancelled = CancellationToken::new();
    let control = WaitControl {
        number: 1,
        arrived,
        progress: unbounded_channel().0,
        cancelled: cancelled.clone(),
    };
    let call = locks
        .wait_for(request("b", wait), (Some(Box::new(control)), None), None)
        .unwrap();
    let call = tokio::spawn(async move { call.await.map(UndeliveredGrant::delivered) });
    (call, cancelled)
}

/// A wait of a minute behind a holder.
async fn waits(locks: &Locks) -> (JoinHandle<Result<Lease, Error>>, CancellationToken) {
    hold(locks, "a").await;
    let waiter = waits_since(locks, 60 * SECOND, Instant::now());
    sleep(SECOND / 10).await;
    waiter
}

/// Cancels a wait, which must end at once.
async fn ends_when_cancelled((call, cancelled): (JoinHandle<Result<Lease, Error>>, CancellationToken)) -> Error {
    let began = Instant::now();
    assert!(!call.is_finished());
    cancelled.cancel();
    let error = call.await.unwrap().unwrap_err();
    assert!(began.elapsed() <= acquire::REMOVAL_WAIT, "{:?}", began.elapsed());
    error
}

#[tokio::test(start_paused = true)]
async fn a_call_is_placed_while_the_store_takes_it_up_only_if_the_store_orders_it() {
    for orders in [false, true] {
        let store = Arc::new(BlockingStore::serving());
        let locks = locks_over(&store);
        store.orders_acquires.store(orders, Ordering::SeqCst);
        *store.acquire_takes.lock().unwrap() = SECOND;
        let (progress, mut told) = unbounded_channel();
        let control = WaitControl {
            number: 7,
            arrived: Instant::now(),
            progress,
            cancelled: CancellationToken::new(),
        };
        let call = locks
            .wait_for(request("b", 60 * SECOND), (Some(Box::new(control)), None), None)
            .unwrap();
        let call = tokio::spawn(async move { call.await.map(UndeliveredGrant::delivered) });
        sleep(SECOND / 2).await;
        assert_eq!(told.try_recv().ok(), orders.then_some((7, WaitProgress::Sequenced)));
        call.await.unwrap().unwrap();
        assert_eq!(told.try_recv(), Ok((7, WaitProgress::Enqueued)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_ends_while_its_promotion_hangs_and_leaves_no_claim() {
    let store = Arc::new(BlockingStore::serving());
    let locks = locks_over(&store);
    let waiter = waits(&locks).await;
    *store.promote_takes.lock().unwrap() = HOUR;
    locks.state.waiters.deliver(&Notification::Gap);
    sleep(SECOND / 10).await;
    assert_eq!(store.promotes.load(Ordering::SeqCst), 1);
    let error = ends_when_cancelled(waiter).await;
    assert!(matches!(error, Error::WaitTimeout { .. }), "{error}");
    assert_eq!(counts(&locks).await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_ends_while_it_pauses_in_an_outage() {
    let store = Arc::new(BlockingStore::serving());
    let locks = locks_over(&store);
    let waiter = waits(&locks).await;
    *store.refusal.lock().unwrap() = Some(BackendError::NotSent {
        reason: "unplugged".into(),
    });
    store.loses_claim.store(true, Ordering::SeqCst);
    locks.state.waiters.deliver(&Notification::Gap);
    sleep(SECOND).await;
    let (before, error) = (Instant::now(), ends_when_cancelled(waiter).await);
    assert!(matches!(error, Error::WaitTimeout { .. }), "{error}");
    assert_eq!(before.elapsed(), Duration::ZERO, "nothing is left to remove");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_ends_while_an_attempt_of_it_is_undone() {
    let store = BlockingStore::blocked(Health::Serving);
    let locks = locks_over(&store);
    let waiter = waits(&locks).await;
    *store.refusal.lock().unwrap() = Some(unplugged());
    store.loses_claim.store(true, Ordering::SeqCst);
    locks.state.waiters.deliver(&Notification::Gap);
    sleep(SECOND / 10).await;
    let error = ends_when_cancelled(waiter).await;
    assert_eq!(
        error,
        Error::Backend(unplugged()),
        "its last attempt may have had an effect"
    );
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_cancelled_between_two_undos_of_an_attempt_says_that_it_may_have_left_a_claim() {
    let store = Arc::new(BlockingStore::serving());
    let locks = locks_over(&store);
    let waiter = waits(&locks).await;
    *store.refusal.lock().unwrap() = Some(unplugged());
    *store.acquire_takes.lock().unwrap() = SECOND / 5;
    store.loses_claim.store(true, Ordering::SeqCst);
    locks.state.waiters.deliver(&Notification::Gap);
    // The attempt after the loss is in flight. Its outcome is unknown, and each undo of it fails.
    sleep(SECOND / 10).await;
    store.fail(Some(unplugged()));
    sleep(SECOND / 2).await;
    let error = ends_when_cancelled(waiter).await;
    assert_eq!(error, Error::Backend(unplugged()));
}

#[tokio::test(start_paused = true)]
async fn a_wait_counts_from_the_arrival_of_its_call() {
    let store = Arc::new(BlockingStore::serving());
    let locks = locks_over(&store);
    let held = hold(&locks, "a").await;
    let arrived = Instant::now();
    sleep(2 * SECOND).await;
    let (call, _) = waits_since(&locks, 3 * SECOND, arrived);
    let error = call.await.unwrap().unwrap_err();
    let Error::WaitTimeout { waited } = error else {
        panic!("{error}")
    };
    assert_eq!((waited, arrived.elapsed()), (3 * SECOND, 3 * SECOND));
    // One whose time is over is tried.
    let (call, _) = waits_since(&locks, 3 * SECOND, arrived);
    assert!(matches!(call.await.unwrap(), Err(Error::WaitTimeout { .. })));
    assert_eq!(arrived.elapsed(), 3 * SECOND);
    assert_eq!(counts(&locks).await, (1, 0));
    locks.release(&held.key).await.unwrap();
    *store.acquire_takes.lock().unwrap() = acquire::REMOVAL_WAIT / 3;
    let (call, _) = waits_since(&locks, SECOND, arrived);
    let lease = call.await.unwrap().unwrap();
    assert!(lease.waited >= 3 * SECOND, "{:?}", lease.waited);
}
