//! Claims for which several streams of one session ask.

use super::*;

/// The same request in another call, on a stream of the session.
fn on(number: u64, claim: &NewClaim) -> NewClaim {
    NewClaim {
        call: CallId::from_bytes([u8::try_from(100 + number).unwrap(); 16]),
        stream: Some(StreamNumber::new(7, number)),
        ..retry(claim)
    }
}

fn is_superseded(outcome: &AcquireOutcome) -> bool {
    matches!(outcome, AcquireOutcome::Superseded)
}

// G222
#[test]
fn an_acquire_of_an_earlier_stream_changes_no_waiting_claim() {
    let (mut lock, mut store) = start();
    let lease = take(&mut lock, &mut store, &claim(1));
    let first = on(1, &claim(2));
    acquire(&mut lock, &mut store, &first);
    let second = on(2, &first);
    acquire(&mut lock, &mut store, &second);
    store.notified.clear();
    for late in [
        on(1, &first),
        NewClaim {
            wait_policy: WaitPolicy::NoWait,
            ..on(1, &first)
        },
    ] {
        let outcome = acquire(&mut lock, &mut store, &late);
        assert!(is_superseded(&outcome), "{outcome:?}");
    }
    assert_eq!((lock.waiters(), store.notified.len()), (1, 0));
    lock.release(&mut store, ReleaseTarget::Hold(&lease), None);
    assert!(is_superseded(&acquire(&mut lock, &mut store, &on(1, &first))));
    let outcome = lock.promote(&mut store, &incoming(&second));
    assert!(matches!(outcome, AcquireOutcome::Held(_)), "{outcome:?}");
    assert!(is_superseded(&acquire(&mut lock, &mut store, &on(1, &first))));
    // One that finds the hold is noted, too.
    let outcome = acquire(&mut lock, &mut store, &on(3, &first));
    assert!(matches!(outcome, AcquireOutcome::Held(_)), "{outcome:?}");
    assert!(is_superseded(&acquire(&mut lock, &mut store, &on(2, &first))));
}

// G222
#[test]
fn a_call_without_a_stream_or_of_another_session_adopts_and_the_stream_stays_noted() {
    let (mut lock, mut store) = start();
    take(&mut lock, &mut store, &claim(1));
    let first = on(2, &claim(2));
    acquire(&mut lock, &mut store, &first);
    acquire(&mut lock, &mut store, &retry(&claim(2)));
    assert!(is_superseded(&acquire(&mut lock, &mut store, &on(1, &first))));
    let other = NewClaim {
        stream: Some(StreamNumber::new(8, 1)),
        ..retry(&first)
    };
    acquire(&mut lock, &mut store, &other);
    let outcome = acquire(&mut lock, &mut store, &on(1, &first));
    assert!(matches!(outcome, AcquireOutcome::Waiting(_)), "{outcome:?}");
}

// G222
#[test]
fn an_update_of_an_earlier_stream_changes_nothing() {
    let (mut lock, mut store) = start();
    let lease = take(&mut lock, &mut store, &on(1, &claim(1)));
    let note = |text: &str| Metadata::new([("note".into(), text.into())]).unwrap();
    let on = |number| Some(StreamNumber::new(7, number));
    let mut update = |note: &Metadata, stream| lock.update_metadata(&mut store, &lease, note, stream);
    assert_eq!(update(&note("a"), on(2)), UpdateOutcome::Updated);
    assert_eq!(update(&note("b"), on(1)), UpdateOutcome::Superseded);
    assert_eq!(update(&note("a"), on(3)), UpdateOutcome::Updated);
    assert_eq!(update(&note("b"), on(2)), UpdateOutcome::Superseded);
    assert_eq!(update(&note("c"), None), UpdateOutcome::Updated);
    assert_eq!(lock.get(0).unwrap().terms.metadata, note("c"));
}

// G223
#[test]
fn a_cancelled_request_loses_its_claim_and_its_call_acquires_no_more() {
    let (mut lock, mut store) = start();
    let lease = take(&mut lock, &mut store, &on(2, &claim(1)));
    let waiter = on(2, &claim(2));
    acquire(&mut lock, &mut store, &waiter);
    let mut cancel = |id: &ClaimId, session, number| {
        let target = ReleaseTarget::Request(id, StreamNumber::new(session, number));
        lock.release(&mut store, target, None).released
    };
    for (session, number) in [(7, 1), (8, 9)] {
        assert_eq!(cancel(&waiter.id, session, number), Released::Adopted);
        assert_eq!(cancel(&lease.claim, session, number), Released::Adopted);
    }
    assert_eq!(cancel(&waiter.id, 7, 3), Released::Ended(Cause::Cancelled));
    assert_eq!(cancel(&lease.claim, 7, 2), Released::Ended(Cause::Undone));
    assert_eq!(cancel(&lease.claim, 7, 2), Released::Nothing);
    assert!(
        lock.is_empty() && store.ended.is_empty(),
        "neither request is remembered"
    );
    let late = lock.promote(&mut store, &incoming(&waiter));
    assert!(matches!(late, AcquireOutcome::Cancelled), "{late:?}");
}

// G220
#[test]
fn a_call_owns_its_claim_until_another_one_has_found_it() {
    let (mut lock, mut store) = start();
    let (holder, waiter) = (claim(1), claim(2));
    take(&mut lock, &mut store, &holder);
    acquire(&mut lock, &mut store, &waiter);
    let owns = |lock: &LockState, claim: &NewClaim| lock.owns(&claim.id, claim.call);
    assert!(owns(&lock, &holder) && owns(&lock, &waiter));
    let again = [retry(&holder), retry(&waiter)];
    for retry in &again {
        acquire(&mut lock, &mut store, retry);
    }
    assert!(!owns(&lock, &holder) && !owns(&lock, &waiter));
    assert!(!owns(&lock, &again[0]) && owns(&lock, &again[1]) && !owns(&lock, &claim(3)));
}

// G221
#[test]
fn a_hold_that_a_later_stream_has_found_is_undone_by_its_call_alone() {
    let (mut lock, mut store) = start();
    let first = on(1, &claim(1));
    let second = on(2, &first);
    take(&mut lock, &mut store, &first);
    take(&mut lock, &mut store, &second);
    assert!(lock.owns(&first.id, second.call) && !lock.owns(&first.id, first.call));
    let mut undo = |claim: &NewClaim| {
        let target = ReleaseTarget::Call(&claim.id, claim.call);
        lock.release(&mut store, target, None).released
    };
    assert_eq!(undo(&first), Released::Adopted);
    assert_eq!(undo(&second), Released::Ended(Cause::Undone));
    assert!(lock.is_empty() && store.ended.is_empty());
}

// G16
#[test]
fn a_hold_that_two_calls_of_one_stream_or_a_call_of_none_have_found_is_undone_by_nobody() {
    let beside = NewClaim {
        stream: on(1, &claim(1)).stream,
        ..retry(&claim(1))
    };
    for other in [beside, retry(&claim(1))] {
        let (mut lock, mut store) = start();
        let first = on(1, &claim(1));
        let last = on(2, &first);
        for call in [&first, &other, &last] {
            take(&mut lock, &mut store, call);
        }
        for call in [&first, &other, &last] {
            let target = ReleaseTarget::Call(&call.id, call.call);
            assert_eq!(lock.release(&mut store, target, None).released, Released::Adopted);
        }
        assert_eq!(lock.len(), 1);
    }
}
