//! Sessions that break off: what their calls have is kept for the grace, and another stream goes on with it.

use super::blocking_store::{BlockingStore, locks_over};
use super::*;
use crate::locks::undo::MAX_KEPT;

const GRACE: Duration = Duration::from_secs(8);

fn stream(number: u64) -> Arc<SessionStream> {
    SessionStream::new("session", number, GRACE, Identity::anonymous())
}

/// A call on a stream. Its task is dropped where the stream breaks off.
fn call(
    locks: &Locks,
    stream: &Arc<SessionStream>,
    request: Acquire,
) -> tokio::task::JoinHandle<Result<UndeliveredGrant, Error>> {
    let (locks, stream) = (locks.clone(), Arc::clone(stream));
    tokio::spawn(async move { locks.acquire_on(Some(&stream), request).await })
}

async fn hold_long(locks: &Locks) -> Lease {
    let long = Acquire {
        ttl: Some(3_600 * SECOND),
        ..request("a", Duration::ZERO)
    };
    locks.acquire(long).await.unwrap().delivered()
}

async fn settle() {
    sleep(SECOND / 10).await;
}

/// The locks of two servers of one store, with a holder, and a call on the first stream behind it that breaks off.
async fn broken(request: Acquire, stream: &Arc<SessionStream>) -> (Locks, Locks, Lease) {
    let store = Arc::new(BlockingStore::serving());
    let (locks, other) = (locks_over(&store), locks_over(&store));
    let held = hold_long(&locks).await;
    let waiter = call(&locks, stream, request);
    settle().await;
    assert_eq!(counts(&locks).await, (1, 1));
    stream.broke_off();
    waiter.abort();
    settle().await;
    (locks, other, held)
}

// G221
#[tokio::test(start_paused = true)]
async fn a_stream_that_breaks_off_keeps_its_places_for_the_grace_and_none_is_granted() {
    let (locks, _other, held) = broken(retry("b", 60 * SECOND), &stream(1)).await;
    let behind = waiting(&locks, request("c", 60 * SECOND));
    settle().await;
    locks.release(&held.key).await.unwrap();
    sleep(GRACE - SECOND).await;
    assert_eq!(counts(&locks).await, (0, 2), "nobody is granted, and nobody overtakes");
    sleep(SECOND).await;
    behind.await.unwrap().unwrap();
    assert_eq!(counts(&locks).await, (1, 0));
}

// G221
#[tokio::test(start_paused = true)]
async fn a_later_stream_goes_on_in_the_place_at_another_server() {
    let (locks, other, held) = broken(retry("b", 60 * SECOND), &stream(1)).await;
    let behind = waiting(&locks, request("c", 60 * SECOND));
    settle().await;
    let again = call(&other, &stream(2), retry("b", 60 * SECOND));
    settle().await;
    locks.release(&held.key).await.unwrap();
    // Only the first server hears from this store: the other one looks by itself.
    let again = again.await.unwrap().unwrap().delivered();
    let late = locks.acquire_on(Some(&stream(1)), retry("b", Duration::ZERO)).await;
    assert_eq!(late.unwrap_err(), Error::Superseded);
    sleep(GRACE).await;
    let queue = locks.inspect(&name(), 9).await.unwrap();
    assert_eq!(
        queue.holders[0].token, again.key.token,
        "the undo of the first call leaves it"
    );
    other.release(&again.key).await.unwrap();
    assert!(behind.await.unwrap().unwrap().key.token > again.key.token);
}

// G221
#[tokio::test(start_paused = true)]
async fn a_place_without_a_request_id_or_a_grace_or_of_a_stream_that_was_ended_is_not_kept() {
    let without = SessionStream::new("session", 1, Duration::ZERO, Identity::anonymous());
    let ended = stream(1);
    ended.ended();
    for (request, stream) in [
        (request("b", 60 * SECOND), stream(1)),
        (retry("b", 60 * SECOND), without),
        (retry("b", 60 * SECOND), ended),
    ] {
        let (locks, _other, _held) = broken(request, &stream).await;
        assert_eq!(counts(&locks).await, (1, 0));
    }
}

// G221
#[tokio::test(start_paused = true)]
async fn a_place_is_kept_to_the_end_of_its_wait_and_a_wait_that_ends_by_itself_keeps_none() {
    let (locks, _other, _held) = broken(retry("b", 2 * SECOND), &stream(1)).await;
    sleep(SECOND).await;
    assert_eq!(counts(&locks).await, (1, 1));
    sleep(SECOND).await;
    assert_eq!(counts(&locks).await, (1, 0));
    let stream = stream(2);
    let ended = locks.acquire_on(Some(&stream), retry("b", SECOND)).await;
    assert!(matches!(ended, Err(Error::WaitTimeout { .. })));
    stream.broke_off();
    settle().await;
    assert_eq!(counts(&locks).await, (1, 0));
}

// G221
#[tokio::test(start_paused = true)]
async fn a_grant_that_was_not_delivered_is_kept_for_the_grace_and_found_by_a_later_stream() {
    for is_found in [true, false] {
        let locks = locks_over(&Arc::new(BlockingStore::serving()));
        let first = stream(1);
        let request = Acquire {
            ttl: Some(60 * SECOND),
            ..retry("b", Duration::ZERO)
        };
        let granted = locks.acquire_on(Some(&first), request.clone()).await.unwrap();
        let token = granted.lease.key.token;
        first.broke_off();
        drop(granted);
        sleep(GRACE - SECOND).await;
        assert_eq!(counts(&locks).await, (1, 0));
        if is_found {
            let again = locks.acquire_on(Some(&stream(2)), request).await.unwrap().delivered();
            assert_eq!(again.key.token, token);
        }
        sleep(SECOND + SECOND / 2).await;
        assert_eq!(counts(&locks).await, (usize::from(is_found), 0));
    }
}

// G221
#[tokio::test(start_paused = true)]
async fn a_grant_that_a_second_stream_found_and_did_not_deliver_is_taken_out_after_its_grace() {
    let locks = locks_over(&Arc::new(BlockingStore::serving()));
    let request = Acquire {
        ttl: Some(60 * SECOND),
        ..retry("b", Duration::ZERO)
    };
    for number in 1..=2 {
        let stream = stream(number);
        let granted = locks.acquire_on(Some(&stream), request.clone()).await.unwrap();
        stream.broke_off();
        drop(granted);
        sleep(GRACE - SECOND).await;
        assert_eq!(counts(&locks).await, (1, 0));
    }
    sleep(SECOND + SECOND / 2).await;
    assert_eq!(counts(&locks).await, (0, 0));
}

// G221
#[tokio::test(start_paused = true)]
async fn a_kept_grant_is_undone_before_its_lease_ends_and_its_request_acquires_anew() {
    let locks = locks_over(&Arc::new(BlockingStore::serving()));
    let (first, request) = (stream(1), retry("b", Duration::ZERO));
    let request = Acquire {
        ttl: Some(3 * SECOND),
        ..request
    };
    let granted = locks.acquire_on(Some(&first), request.clone()).await.unwrap();
    let token = granted.lease.key.token;
    first.broke_off();
    drop(granted);
    sleep(2 * SECOND).await;
    assert_eq!(counts(&locks).await, (1, 0));
    sleep(2 * SECOND).await;
    let again = locks.acquire_on(Some(&stream(2)), request).await.unwrap();
    assert!(again.lease.key.token > token);
}

// G221
#[tokio::test(start_paused = true)]
async fn a_kept_grant_that_was_renewed_is_kept_for_the_grace() {
    let locks = locks_over(&Arc::new(BlockingStore::serving()));
    let (first, request) = (stream(1), retry("b", Duration::ZERO));
    let request = Acquire {
        ttl: Some(SECOND),
        ..request
    };
    let mut granted = locks.acquire_on(Some(&first), request).await.unwrap();
    locks.renew(&granted.lease.key, Some(60 * SECOND)).await.unwrap();
    granted.renewed(Instant::now(), 60 * SECOND);
    sleep(2 * SECOND).await;
    first.broke_off();
    drop(granted);
    sleep(GRACE - SECOND).await;
    assert_eq!(counts(&locks).await, (1, 0));
    sleep(SECOND + SECOND / 2).await;
    assert_eq!(counts(&locks).await, (0, 0));
}

// G221
#[tokio::test(start_paused = true)]
async fn what_a_call_of_a_stream_was_granted_is_kept_when_the_waits_of_its_connection_end() {
    let locks = locks_over(&Arc::new(BlockingStore::serving()));
    let (first, ending) = (stream(1), CancellationToken::new());
    let request = Acquire {
        ttl: Some(60 * SECOND),
        ..retry("b", SECOND)
    };
    let granted = locks
        .wait_for(request, (None, Some(ending.clone())), Some(first))
        .unwrap();
    let granted = granted.await.unwrap();
    // The stream ends only when its other commands have.
    ending.cancel();
    drop(granted);
    sleep(GRACE - SECOND).await;
    assert_eq!(counts(&locks).await, (1, 0));
    sleep(SECOND + SECOND / 2).await;
    assert_eq!(counts(&locks).await, (0, 0));
}

// G221
#[tokio::test(start_paused = true)]
async fn of_a_drain_and_a_grace_the_later_end_counts() {
    let locks = locks_over(&Arc::new(BlockingStore::serving()));
    let _held = hold_long(&locks).await;
    let waiter = call(&locks, &stream(1), retry("b", 60 * SECOND));
    settle().await;
    locks.drains_until(Instant::now() + 60 * SECOND);
    locks.drain();
    assert_eq!(waiter.await.unwrap().unwrap_err(), Error::Draining);
    sleep(GRACE - SECOND).await;
    assert_eq!(counts(&locks).await, (1, 1));
    sleep(SECOND + SECOND / 10).await;
    assert_eq!(counts(&locks).await, (1, 0));
}

// G221
#[tokio::test(start_paused = true)]
async fn a_drain_ends_the_places_of_broken_streams_with_it() {
    let (locks, _other, _held) = broken(retry("b", 60 * SECOND), &stream(1)).await;
    locks.drains_until(Instant::now() + SECOND);
    let began = Instant::now();
    locks.end().await;
    assert!(began.elapsed() < SECOND + SECOND / 2, "{:?}", began.elapsed());
}

// G224
#[tokio::test(start_paused = true)]
async fn the_places_of_broken_streams_are_bounded_and_those_of_one_identity_too() {
    for (identity, most) in [
        (Identity::anonymous(), MAX_KEPT),
        (Identity::authenticated("alice"), MAX_KEPT / 2),
    ] {
        let locks = locks_over(&Arc::new(BlockingStore::serving()));
        let _held = hold_long(&locks).await;
        for round in 0..2 {
            let stream = SessionStream::new("session", 1, GRACE, identity.clone());
            let waits = (0..MAX_KEPT + 9).map(|number| {
                let request = Acquire {
                    identity: identity.clone(),
                    request_id: Some(RequestId::new(&format!("{round} {number}")).unwrap()),
                    ..request("b", 60 * SECOND)
                };
                call(&locks, &stream, request)
            });
            let waits: Vec<_> = waits.collect();
            settle().await;
            stream.broke_off();
            waits.iter().for_each(tokio::task::JoinHandle::abort);
            settle().await;
            assert_eq!(counts(&locks).await, (1, most));
            sleep(GRACE).await;
            assert_eq!(counts(&locks).await, (1, 0));
        }
    }
}

// G221
#[tokio::test(start_paused = true)]
async fn a_store_that_forgets_requests_keeps_no_place_and_one_that_is_closed_with_its_server_none_in_a_drain() {
    let forgets = BlockingStore {
        forgets_requests: true,
        ..BlockingStore::serving()
    };
    for (locks, drains) in [(locks_over(&Arc::new(forgets)), false), (locks(), true)] {
        let (_held, stream) = (hold_long(&locks).await, stream(1));
        let waiter = call(&locks, &stream, retry("b", 60 * SECOND));
        settle().await;
        if drains {
            locks.drains_until(Instant::now() + 60 * SECOND);
        }
        stream.broke_off();
        waiter.abort();
        settle().await;
        assert_eq!(counts(&locks).await, (1, 0));
        let (lock, owner) = (request("b", SECOND).lock, request("b", SECOND).owner);
        let id = RequestId::new("request").unwrap();
        let cancelled = locks.cancel_request(&stream, (&lock, &owner), &id).await;
        let is_refused = matches!(cancelled, Err(Error::Backend(BackendError::Unsupported { .. })));
        assert_eq!(is_refused, !drains, "{cancelled:?}");
    }
}

// G224
#[tokio::test(start_paused = true)]
async fn the_places_of_all_identities_are_bounded_together_and_count_for_the_bytes_of_waiters() {
    let locks = locks_over(&Arc::new(BlockingStore::serving()));
    let _held = hold_long(&locks).await;
    let large = |identity: &str, number: usize| Acquire {
        identity: Identity::authenticated(identity),
        request_id: Some(RequestId::new(&number.to_string()).unwrap()),
        metadata: Metadata::new([("a".into(), "x".repeat(998))]).unwrap(),
        ..request("b", 60 * SECOND)
    };
    for identity in ["alice", "bob", "carol"] {
        let stream = SessionStream::new(identity, 1, GRACE, Identity::authenticated(identity));
        let waits = (0..MAX_KEPT * 2 / 5).map(|number| call(&locks, &stream, large(identity, number)));
        let waits: Vec<_> = waits.collect();
        settle().await;
        stream.broke_off();
        waits.iter().for_each(tokio::task::JoinHandle::abort);
        settle().await;
    }
    assert_eq!(counts(&locks).await, (1, MAX_KEPT));
    locks.set_limits(Limits {
        waiting_bytes: u32::try_from(1_000 * MAX_KEPT).unwrap(),
        ..Limits::default()
    });
    let refused = locks.acquire(large("dave", 1)).await.unwrap_err();
    assert!(matches!(refused, Error::Overloaded { .. }), "{refused}");
    sleep(GRACE).await;
    let wait = waiting(&locks, large("dave", 1));
    settle().await;
    assert_eq!(counts(&locks).await, (1, 1));
    wait.abort();
}

// G223
#[tokio::test(start_paused = true)]
async fn a_grant_that_is_cancelled_by_its_request_counts_for_no_limit_any_more() {
    let (locks, owner, request_id) = (locks(), Owner::new("b").unwrap(), RequestId::new("r").unwrap());
    let granted = locks.acquire_on(Some(&stream(1)), retry("b", Duration::ZERO)).await;
    let lease = granted.unwrap().delivered();
    let (ledger, end) = (locks.ledger(), Instant::now() + 10 * SECOND);
    let delivery = ledger.watch_delivery(&lease.key);
    ledger.attach(&lease.key, end, Box::new(()), &delivery);
    assert!(ledger.has_share(lease.key.claim));
    let cancelled = locks.cancel_request(&stream(2), (&name(), &owner), &request_id).await;
    assert_eq!(cancelled, Ok(()));
    assert!(!ledger.has_share(lease.key.claim));
}

// G223
#[tokio::test(start_paused = true)]
async fn a_cancelled_hold_ends_its_own_share_and_watch_and_those_of_no_other_hold_of_its_claim() {
    let (locks, owner) = (locks(), Owner::new("b").unwrap());
    let ids = ["first", "second", "third"].map(|id| RequestId::new(id).unwrap());
    let ledger = locks.ledger();
    let (to, mut told) = tokio::sync::mpsc::unbounded_channel();
    let mut held = Vec::new();
    for id in &ids {
        let request = Acquire {
            reentrant: true,
            request_id: Some(id.clone()),
            ..request("b", Duration::ZERO)
        };
        let granted = locks.acquire_on(Some(&stream(1)), request).await;
        let key = granted.unwrap().delivered().key;
        let (share, delivery) = (Arc::new(()), ledger.watch_delivery(&key));
        let counts = Arc::downgrade(&share);
        ledger.attach(&key, Instant::now() + 10 * SECOND, Box::new(share), &delivery);
        held.push((ledger.watch_end(&key, to.clone()), key.secret, counts));
    }
    // A re-entry first, then the hold that has made the claim, while another one lives.
    for (at, left) in [(1, 2), (0, 1), (2, 0)] {
        let cancelled = locks.cancel_request(&stream(2), (&name(), &owner), &ids[at]).await;
        assert_eq!(cancelled, Ok(()));
        let counted = held.iter().filter(|(_, _, counts)| counts.upgrade().is_some()).count();
        assert_eq!((counted, held[at].2.upgrade()), (left, None));
        assert_eq!(told.try_recv().map(|ended| ended.secret), Ok(held[at].1));
        assert!(told.try_recv().is_err());
    }
}

// G223
#[tokio::test(start_paused = true)]
async fn a_request_of_a_broken_stream_is_cancelled_by_a_later_one() {
    let (locks, other, _held) = broken(retry("b", 60 * SECOND), &stream(1)).await;
    let (lock, owner, request_id) = (name(), Owner::new("b").unwrap(), RequestId::new("r").unwrap());
    let cancel = |stream: Arc<SessionStream>| {
        let (other, ids) = (&other, (&lock, &owner));
        let request_id = &request_id;
        async move { other.cancel_request(&stream, ids, request_id).await }
    };
    let early = SessionStream::new("another", 9, GRACE, Identity::anonymous());
    assert_eq!(cancel(early).await, Err(Error::Superseded));
    assert_eq!(cancel(stream(2)).await, Ok(()));
    assert_eq!(counts(&locks).await, (1, 0));
    assert_eq!(cancel(stream(2)).await, Ok(()));
}
