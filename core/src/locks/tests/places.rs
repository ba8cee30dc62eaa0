//! The places of waits that the server ended: a retry goes on in one, and nothing is granted in it before.

use tokio_util::sync::CancellationToken;

use super::blocking_store::{BlockingStore, locks_over};
use super::*;

/// How long a place is kept.
const KEPT: Duration = Duration::from_secs(5);

/// Locks over a store that other servers may serve, one holder, and one waiter behind it.
async fn queued(waiter: Acquire) -> (Locks, Lease, tokio::task::JoinHandle<Result<Lease, Error>>) {
    let locks = locks_over(&Arc::new(BlockingStore::serving()));
    let held = hold(&locks, "a").await;
    let waiter = waiting(&locks, waiter);
    sleep(SECOND / 10).await;
    assert_eq!(counts(&locks).await, (1, 1));
    (locks, held, waiter)
}

// G215
#[tokio::test(start_paused = true)]
async fn a_wait_that_the_drain_ends_keeps_its_place_and_is_not_granted() {
    let (locks, held, waiter) = queued(retry("b", 60 * SECOND)).await;
    locks.drain();
    assert_eq!(waiter.await.unwrap().unwrap_err(), Error::Draining);
    locks.release(&held.key).await.unwrap();
    sleep(KEPT - SECOND).await;
    assert_eq!(counts(&locks).await, (0, 1), "it is eligible, and not granted");
    sleep(SECOND + SECOND / 10).await;
    assert_eq!(counts(&locks).await, (0, 0));
}

// G215
#[tokio::test(start_paused = true)]
async fn a_place_ends_with_its_wait_and_with_the_drain() {
    for (wait, drain) in [(2 * SECOND, 60 * SECOND), (60 * SECOND, 2 * SECOND)] {
        let (locks, _held, waiter) = queued(retry("b", wait)).await;
        locks.drains_until(Instant::now() + drain);
        locks.drain();
        assert_eq!(waiter.await.unwrap().unwrap_err(), Error::Draining);
        sleep(SECOND).await;
        assert_eq!(counts(&locks).await, (1, 1));
        sleep(SECOND + SECOND / 10).await;
        assert_eq!(counts(&locks).await, (1, 0));
    }
}

// G215
#[tokio::test(start_paused = true)]
async fn a_wait_without_a_request_id_or_of_a_call_that_ended_keeps_no_place() {
    let (locks, _held, waiter) = queued(request("b", 60 * SECOND)).await;
    locks.drain();
    assert_eq!(waiter.await.unwrap().unwrap_err(), Error::Draining);
    sleep(SECOND / 10).await;
    assert_eq!(counts(&locks).await, (1, 0));
    let (locks, _held, waiter) = queued(retry("b", 60 * SECOND)).await;
    waiter.abort();
    sleep(SECOND / 10).await;
    assert_eq!(counts(&locks).await, (1, 0));
    locks.drain();
}

// G215
#[tokio::test(start_paused = true)]
async fn a_retry_goes_on_in_the_place_and_keeps_what_it_was_granted() {
    let (locks, held, waiter) = queued(retry("b", 60 * SECOND)).await;
    let ending = CancellationToken::new();
    waiter.abort();
    sleep(SECOND / 10).await;
    let wait = |owner: &str, ending| {
        let call = locks.wait_for(retry(owner, 60 * SECOND), (None, ending), None).unwrap();
        tokio::spawn(async move { call.await.map(UndeliveredGrant::delivered) })
    };
    let first = wait("b", Some(ending.clone()));
    sleep(SECOND / 10).await;
    let behind = waiting(&locks, request("c", 60 * SECOND));
    sleep(SECOND / 10).await;
    ending.cancel();
    assert_eq!(first.await.unwrap().unwrap_err(), Error::Draining);
    locks.release(&held.key).await.unwrap();
    sleep(SECOND).await;
    assert_eq!(counts(&locks).await, (0, 2), "nobody overtakes a kept place");
    let again = wait("b", None).await.unwrap().unwrap();
    sleep(KEPT).await;
    let queue = locks.inspect(&name(), 9).await.unwrap();
    assert_eq!(
        queue.holders[0].token, again.key.token,
        "the undo of the first call leaves it"
    );
    locks.release(&again.key).await.unwrap();
    assert!(behind.await.unwrap().unwrap().key.token > again.key.token);
}

// G215
#[tokio::test(start_paused = true)]
async fn the_store_is_closed_when_the_last_place_is_over() {
    let (locks, _held, waiter) = queued(retry("b", 60 * SECOND)).await;
    locks.drains_until(Instant::now() + 60 * SECOND);
    locks.drain();
    assert_eq!(waiter.await.unwrap().unwrap_err(), Error::Draining);
    let began = Instant::now();
    locks.end().await;
    assert!(
        (KEPT..KEPT + SECOND).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );
    let (locks, _held, waiter) = queued(request("b", 60 * SECOND)).await;
    locks.drains_until(Instant::now() + 60 * SECOND);
    locks.drain();
    assert_eq!(waiter.await.unwrap().unwrap_err(), Error::Draining);
    let began = Instant::now();
    locks.end().await;
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
}

// G220
#[tokio::test(start_paused = true)]
async fn the_store_is_closed_at_once_when_a_retry_elsewhere_has_adopted_the_last_place() {
    let store = Arc::new(BlockingStore::serving());
    let (locks, other) = (locks_over(&store), locks_over(&store));
    let _held = hold(&locks, "a").await;
    let waiter = waiting(&locks, retry("b", 60 * SECOND));
    sleep(SECOND / 10).await;
    locks.drains_until(Instant::now() + 60 * SECOND);
    locks.drain();
    assert_eq!(waiter.await.unwrap().unwrap_err(), Error::Draining);
    let (began, closing) = (Instant::now(), tokio::spawn(async move { locks.end().await }));
    sleep(SECOND).await;
    assert!(!closing.is_finished(), "the place is kept");
    let again = waiting(&other, retry("b", 60 * SECOND));
    closing.await.unwrap();
    assert!(began.elapsed() < SECOND + SECOND / 2, "{:?}", began.elapsed());
    again.abort();
}
