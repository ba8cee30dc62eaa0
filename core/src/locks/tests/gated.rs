//! Locks over a memory store whose releases can be blocked, and that counts calls.

use std::sync::atomic::Ordering;

use tokio::sync::Notify;

use super::blocking_store::{BlockingStore, locks_over, unplugged};
use super::*;
use crate::backend::Notification;

/// Waits 1 s behind a holder of 10 s. Returns the error, the time it took, and the locks.
async fn wait_times_out(store: &Arc<BlockingStore>) -> (Error, Duration, Locks) {
    let locks = locks_over(store);
    hold(&locks, "a").await;
    let start = Instant::now();
    let error = locks
        .acquire(request("b", SECOND))
        .await
        .map(UndeliveredGrant::delivered)
        .unwrap_err();
    (error, start.elapsed(), locks)
}

/// The waiter is still in the store, and is removed as soon as the store answers.
async fn is_removed_once_the_store_answers(store: &BlockingStore, locks: &Locks) {
    assert_eq!(counts(locks).await, (1, 1));
    store.unblock();
    let outcome = async {
        while counts(locks).await.1 > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(SECOND, outcome).await.expect("the undo goes on");
    assert_eq!(counts(locks).await, (1, 0));
}

// G14b, G57
#[tokio::test(start_paused = true)]
async fn a_wait_whose_removal_is_not_answered_returns_unavailable_on_time_and_is_undone_later() {
    let store = BlockingStore::blocked(Health::Serving);
    let (error, took, locks) = wait_times_out(&store).await;
    assert!(
        matches!(error, Error::Backend(BackendError::Unavailable { .. })),
        "{error}"
    );
    assert!(
        (SECOND..=SECOND + Duration::from_millis(400)).contains(&took),
        "{took:?}"
    );
    is_removed_once_the_store_answers(&store, &locks).await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_before_the_store_has_answered_at_all_returns_unavailable() {
    let store = BlockingStore::blocked(Health::Serving);
    *store.acquire_takes.lock().unwrap() = 2 * SECOND;
    let locks = locks_over(&store);
    let began = Instant::now();
    let acquired = locks
        .acquire(request("b", SECOND))
        .await
        .map(UndeliveredGrant::delivered);
    let error = acquired.unwrap_err();
    assert!(
        matches!(error, Error::Backend(BackendError::Unavailable { .. })),
        "{error}"
    );
    let took = began.elapsed();
    assert!((SECOND..SECOND + 2 * acquire::REMOVAL_WAIT).contains(&took), "{took:?}");
    store.unblock();
}

// G57
#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_during_an_attempt_of_a_store_that_refused_those_before_returns_its_refusal() {
    let store = Arc::new(BlockingStore::serving());
    let refusal = BackendError::NotSent { reason: "full".into() };
    *store.refusal.lock().unwrap() = Some(refusal.clone());
    // The wait ends during the second attempt.
    *store.acquire_takes.lock().unwrap() = outage::RETRY_DELAY * 6 / 10;
    let locks = locks_over(&store);
    let ended = locks.acquire(request("b", 2 * outage::RETRY_DELAY)).await;
    assert_eq!(
        ended.map(UndeliveredGrant::delivered).unwrap_err(),
        Error::Backend(refusal)
    );
    assert_eq!(store.acquires.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_watch_of_a_store_that_does_not_answer_fails_within_ten_seconds() {
    let store = BlockingStore::blocked(Health::Serving);
    store.hangs.store(true, Ordering::SeqCst);
    let mut watch = locks_over(&store).watch(&LockName::new("a").unwrap());
    let first = timeout(10 * SECOND, watch.next()).await.expect("it fails");
    assert!(
        matches!(first, Some(Err(Error::Backend(BackendError::Unavailable { .. })))),
        "{first:?}"
    );
    assert!(watch.next().await.is_none());
}

// G57
#[tokio::test(start_paused = true)]
async fn a_wait_that_times_out_in_an_outage_returns_unavailable() {
    let store = BlockingStore::blocked(Health::Unavailable {
        reason: "unplugged".into(),
    });
    let (error, took, locks) = wait_times_out(&store).await;
    assert_eq!(
        error,
        Error::Backend(BackendError::Unavailable {
            reason: "unplugged".into()
        })
    );
    assert!(took < SECOND + 2 * acquire::REMOVAL_WAIT, "{took:?}");
    is_removed_once_the_store_answers(&store, &locks).await;
}

// G12
#[tokio::test(start_paused = true)]
async fn one_release_promotes_one_waiter_of_many() {
    const WAITERS: usize = 512;
    let store = BlockingStore::blocked(Health::Serving);
    store.unblock();
    let locks = locks_over(&store);
    let mut held = hold(&locks, "first").await;
    let mut waiters = Vec::new();
    for number in 0..WAITERS {
        waiters.push(waiting(&locks, request(&number.to_string(), 60 * SECOND)));
        while counts(&locks).await.1 <= number {
            tokio::task::yield_now().await;
        }
    }
    for (number, waiter) in waiters.into_iter().enumerate() {
        locks.release(&held.key).await.unwrap();
        held = waiter.await.unwrap().unwrap();
        assert_eq!(held.owner.as_str(), number.to_string(), "served in order");
        assert_eq!(counts(&locks).await, (1, WAITERS - 1 - number), "one at a time");
    }
    // Each claim was granted by the release itself: no waiter sent a `promote`.
    assert_eq!(store.promotes.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_wait_shorter_than_the_answer_of_the_store_is_not_worse_than_a_try() {
    let store = BlockingStore::blocked(Health::Serving);
    store.unblock();
    *store.acquire_takes.lock().unwrap() = SECOND / 10;
    let locks = locks_over(&store);
    let briefly = request("a", Duration::from_millis(1));
    let lease = locks
        .acquire(briefly.clone())
        .await
        .map(UndeliveredGrant::delivered)
        .unwrap();
    assert_eq!(lease.owner.as_str(), "a");
    let refused = locks
        .acquire(briefly)
        .await
        .map(UndeliveredGrant::delivered)
        .unwrap_err();
    assert!(matches!(refused, Error::WaitTimeout { .. }), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_call_refused_without_effect_is_not_undone() {
    let reason = || "unplugged".to_owned();
    let unsent = BackendError::NotSent { reason: reason() };
    let unknown = BackendError::Unavailable { reason: reason() };
    for (refusal, undos) in [(unsent, 0), (unknown, 1)] {
        for wait in [Duration::ZERO, SECOND] {
            let store = BlockingStore::blocked(Health::Serving);
            *store.refusal.lock().unwrap() = Some(refusal.clone());
            let locks = locks_over(&store);
            let refused = locks
                .acquire(request("a", wait))
                .await
                .map(UndeliveredGrant::delivered)
                .unwrap_err();
            assert_eq!(refused, Error::Backend(refusal.clone()));
            assert_eq!(locks.state.undos.len(), undos, "{refusal}, {wait:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ended_in_an_outage_is_undone_after_the_outage() {
    for notifies in [false, true] {
        let store = Arc::new(BlockingStore::serving());
        let locks = locks_over(&store);
        hold(&locks, "a").await;
        let waiter = waiting(&locks, request("b", SECOND));
        sleep(SECOND / 2).await;
        store.fail(Some(unplugged()));
        let error = waiter.await.unwrap().unwrap_err();
        assert_eq!(error, Error::Backend(unplugged()));
        sleep(300 * SECOND).await;
        assert_eq!(counts(&locks).await, (0, 1));
        store.fail(None);
        if notifies {
            store.health.send_replace(Health::Serving);
            sleep(SECOND / 10).await;
        } else {
            sleep(11 * SECOND).await;
        }
        assert_eq!(counts(&locks).await, (0, 0), "recovery notified: {notifies}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_nothing_collects_undos_up_to_a_bound() {
    let store = Arc::new(BlockingStore::serving());
    let locks = locks_over(&store);
    *store.refusal.lock().unwrap() = Some(unplugged());
    store.fail(Some(unplugged()));
    let mut refused_unsent = 0;
    for number in 0..2 * undo::MAX_FAILED_UNDOS {
        let refused = locks.acquire(request(&number.to_string(), Duration::ZERO)).await;
        match refused.map(UndeliveredGrant::delivered).unwrap_err() {
            Error::Backend(BackendError::NotSent { .. }) => refused_unsent += 1,
            error => assert_eq!(error, Error::Backend(unplugged())),
        }
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(refused_unsent, undo::MAX_FAILED_UNDOS);
    assert_eq!(locks.state.undos.len(), undo::MAX_FAILED_UNDOS);
    *store.refusal.lock().unwrap() = None;
    store.fail(None);
    sleep(11 * SECOND).await;
    hold(&locks, "a").await;
}

#[tokio::test(start_paused = true)]
async fn pending_undos_end_when_the_locks_are_closed() {
    let store = Arc::new(BlockingStore::serving());
    let locks = locks_over(&store);
    let granted = locks.acquire(request("a", Duration::ZERO)).await.unwrap();
    store.fail(Some(unplugged()));
    drop(granted);
    locks.close().await;
    sleep(SECOND / 10).await;
    assert_eq!(locks.state.undos.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn end_returns_on_time_although_undos_and_store_hang() {
    let store = BlockingStore::blocked(Health::Serving);
    let locks = locks_over(&store);
    drop(locks.acquire(request("a", Duration::ZERO)).await.unwrap());
    let start = Instant::now();
    locks.end().await;
    assert_eq!(start.elapsed(), 7 * SECOND);
    assert!(timeout(60 * SECOND, locks.close()).await.is_err(), "it hangs");
}

#[tokio::test(start_paused = true)]
async fn each_outage_is_tolerated_for_the_full_time() {
    let store = Arc::new(BlockingStore::serving());
    let locks = locks_over(&store);
    let held = locks.acquire(Acquire {
        ttl: Some(1000 * SECOND),
        ..request("a", Duration::ZERO)
    });
    let held = held.await.unwrap().delivered();
    let waiter = waiting(&locks, request("b", 600 * SECOND));
    sleep(SECOND).await;
    for _ in 0..3 {
        store.fail(Some(unplugged()));
        locks.state.waiters.deliver(&Notification::Gap);
        sleep(3 * SECOND).await;
        // The store serves again, but has lost the claim. A successful `acquire` ends the outage too.
        store.loses_claim.store(true, Ordering::SeqCst);
        store.fail(None);
        sleep(4 * SECOND).await;
        assert!(!store.loses_claim.load(Ordering::SeqCst), "it was promoted");
        assert_eq!(counts(&locks).await, (1, 1));
    }
    locks.release(&held.key).await.unwrap();
    assert_eq!(waiter.await.unwrap().unwrap().owner.as_str(), "b");
}

#[tokio::test(start_paused = true)]
async fn cancelled_waiters_behind_the_first_do_not_delay_its_recheck() {
    let store = Arc::new(BlockingStore {
        loses_notifications: true,
        ..BlockingStore::serving()
    });
    let locks = locks_over(&store);
    let held = hold(&locks, "a").await;
    let first = waiting(&locks, request("b", 60 * SECOND));
    sleep(SECOND / 10).await;
    // Released without a `next`, and the notification is lost.
    store
        .store
        .release(&name(), ReleaseTarget::Hold(&held.key), None)
        .await
        .unwrap();
    let start = Instant::now();
    while !first.is_finished() && start.elapsed() < 20 * SECOND {
        let outcome = locks
            .acquire(request("c", SECOND / 2))
            .await
            .map(UndeliveredGrant::delivered);
        assert!(matches!(outcome, Err(Error::WaitTimeout { .. })), "{outcome:?}");
    }
    assert!(start.elapsed() < 6 * SECOND, "{:?}", start.elapsed());
    assert_eq!(first.await.unwrap().unwrap().owner.as_str(), "b");
}

#[tokio::test(start_paused = true)]
async fn a_drain_does_not_wait_for_a_slow_store() {
    let store = Arc::new(BlockingStore::serving());
    *store.acquire_takes.lock().unwrap() = 8 * SECOND;
    let locks = locks_over(&store);
    let waiter = waiting(&locks, request("a", 60 * SECOND));
    sleep(SECOND).await;
    let start = Instant::now();
    locks.drain();
    assert_eq!(waiter.await.unwrap(), Err(Error::Draining));
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// Waits 3 s with a claim that gets lost, while `acquire` fails with `refusal`. Returns the error, the time it took,
/// and the number of attempts.
async fn acquire_again_fails(store: &Arc<BlockingStore>, refusal: BackendError) -> (Error, Duration, usize) {
    let locks = locks_over(store);
    hold(&locks, "a").await;
    let start = Instant::now();
    let waiter = waiting(&locks, request("b", 3 * SECOND));
    sleep(SECOND / 10).await;
    store.acquires.store(0, Ordering::SeqCst);
    *store.refusal.lock().unwrap() = Some(refusal);
    store.loses_claim.store(true, Ordering::SeqCst);
    locks.state.waiters.deliver(&Notification::Gap);
    let error = waiter.await.unwrap().unwrap_err();
    (error, start.elapsed(), store.acquires.load(Ordering::SeqCst))
}

#[tokio::test(start_paused = true)]
async fn a_refused_reacquire_is_retried_slowly_and_ends_on_time() {
    let quarantined = BackendError::Quarantined {
        left: SECOND,
        reason: "it lost its data".into(),
    };
    for refusal in [quarantined, unplugged()] {
        let store = Arc::new(BlockingStore::serving());
        let (error, took, attempts) = acquire_again_fails(&store, refusal.clone()).await;
        assert_eq!(error, Error::Backend(refusal));
        assert!(took >= 3 * SECOND && took < 3 * SECOND + SECOND * 4 / 10, "{took:?}");
        assert!((10..=30).contains(&attempts), "{attempts}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_cannot_undo_its_last_attempt_ends_on_time() {
    let store = BlockingStore::blocked(Health::Serving);
    let (error, took, attempts) = acquire_again_fails(&store, unplugged()).await;
    assert_eq!(error, Error::Backend(unplugged()));
    assert!(took >= 3 * SECOND && took < 3 * SECOND + SECOND * 4 / 10, "{took:?}");
    assert_eq!(attempts, 1);
}

#[tokio::test(start_paused = true)]
async fn a_wait_whose_claim_was_adopted_unnoticed_ends_superseded() {
    let store = Arc::new(BlockingStore {
        loses_notifications: true,
        ..BlockingStore::serving()
    });
    let (one, two) = (locks_over(&store), locks_over(&store));
    hold(&one, "a").await;
    let older = waiting(&one, retry("b", 3 * SECOND));
    sleep(SECOND).await;
    let newer = waiting(&two, retry("b", 60 * SECOND));
    assert_eq!(older.await.unwrap(), Err(Error::Superseded));
    assert_eq!(counts(&two).await, (1, 1));
    newer.abort();
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_after_its_effect_lets_the_next_waiter_try() {
    let store = Arc::new(BlockingStore {
        loses_notifications: true,
        ..BlockingStore::serving()
    });
    let locks = locks_over(&store);
    let held = hold(&locks, "a").await;
    let waiter = waiting(&locks, request("b", 60 * SECOND));
    sleep(SECOND / 10).await;
    let target = ReleaseTarget::Hold(&held.key);
    store.store.release(&name(), target, None).await.unwrap();
    store.fail(Some(unplugged()));
    locks.release(&held.key).await.unwrap_err();
    store.fail(None);
    let start = Instant::now();
    assert_eq!(waiter.await.unwrap().unwrap().owner.as_str(), "b");
    assert!(start.elapsed() < SECOND / 2, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_not_recorded_if_its_undo_is_answered_before_the_release_that_granted_it() {
    let store = Arc::new(BlockingStore {
        hands_over_late: Some(Notify::new()),
        ..BlockingStore::serving()
    });
    let (namespace, backend) = (Namespace::new("n").unwrap(), Arc::clone(&store) as Arc<dyn Backend>);
    let locks = measured(namespace, backend);
    let one = hold(&locks, "one").await;
    let two = waiting(&locks, request("two", SECOND));
    sleep(SECOND / 10).await;
    let release = tokio::spawn({
        let locks = locks.clone();
        async move { locks.release(&one.key).await }
    });
    sleep(SECOND / 10).await;
    two.abort();
    sleep(SECOND / 10).await;
    assert!(!release.is_finished());
    store.hands_over_late.as_ref().unwrap().notify_one();
    release.await.unwrap().unwrap();
    assert_eq!(counts(&locks).await, (0, 0));
    assert_eq!(locks.ledger().counts(), (0, 0));
}
