//! Retries, undone calls and ended holds.

use super::*;

#[test]
fn a_retry_takes_a_waiting_claim_over_and_its_older_replica_is_told() {
    let (mut lock, mut store) = start();
    let lease = take(&mut lock, &mut store, &claim(1));
    let older = queue_behind(&mut lock, &mut store, 2, OTHER);
    let newer = retry(&older);
    assert!(matches!(
        acquire(&mut lock, &mut store, &newer),
        AcquireOutcome::Waiting(_)
    ));
    assert_eq!(store.notified, [(OTHER, older.id)]);
    assert!(matches!(
        lock.promote(&mut store, &incoming(&older)),
        AcquireOutcome::Superseded
    ));
    // A replica that has not been told yet does not promote it by the older call.
    let outcome = lock.release(&mut store, ReleaseTarget::Forced(lease.token), Some(incoming(&older)));
    assert_eq!(outcome.next, None);
    let undo = ReleaseTarget::Call(&older.id, older.call);
    assert_eq!(lock.release(&mut store, undo, None).released, Released::Adopted);
    let late = lock.promote(&mut store, &incoming(&older));
    assert!(matches!(late, AcquireOutcome::Cancelled), "{late:?}");
}

#[test]
fn a_step_that_is_sent_twice_takes_nothing_over() {
    let (mut lock, mut store) = start();
    let lease = take(&mut lock, &mut store, &claim(1));
    let older = queue_behind(&mut lock, &mut store, 2, OTHER);
    let newer = retry(&older);
    acquire(&mut lock, &mut store, &newer);
    // The same step, sent twice, is not a second call.
    store.notified.clear();
    acquire(&mut lock, &mut store, &newer);
    assert_eq!(store.notified, []);
    lock.release(&mut store, ReleaseTarget::Hold(&lease), None);
    assert_eq!(
        store.notified,
        [(OWN, newer.id)],
        "it belongs to the replica of its latest call"
    );
}

#[test]
fn a_try_takes_a_waiting_claim_out_and_marks_the_older_call() {
    let (mut lock, mut store) = start();
    take(&mut lock, &mut store, &claim(1));
    let older = queue_behind(&mut lock, &mut store, 2, OWN);
    let newer = NewClaim {
        wait_policy: WaitPolicy::NoWait,
        ..retry(&older)
    };
    let outcome = acquire(&mut lock, &mut store, &newer);
    assert!(matches!(outcome, AcquireOutcome::Busy(Some(_))), "{outcome:?}");
    assert_eq!(lock.len(), 1);
    assert!(matches!(
        lock.promote(&mut store, &incoming(&older)),
        AcquireOutcome::Cancelled
    ));
    assert!(matches!(
        acquire(&mut lock, &mut store, &older),
        AcquireOutcome::Cancelled
    ));
}

#[test]
fn a_retry_is_granted_the_waiting_claim_when_it_fits() {
    let (mut lock, mut store) = start();
    let lease = take(&mut lock, &mut store, &claim(1));
    let older = queue_behind(&mut lock, &mut store, 2, OTHER);
    lock.release(&mut store, ReleaseTarget::Hold(&lease), None);
    let outcome = acquire(&mut lock, &mut store, &retry(&older));
    assert!(matches!(outcome, AcquireOutcome::Held(_)), "{outcome:?}");
}

#[test]
fn a_retry_and_a_re_entry_have_the_parameters_of_their_claim() {
    let (mut lock, mut store) = start();
    let one = NewClaim {
        reentrant: true,
        ..claim(1)
    };
    take(&mut lock, &mut store, &one);
    for id in [one.id, claim(2).id] {
        let other = NewClaim {
            id,
            mode: Mode::Shared,
            ..retry(&one)
        };
        let outcome = acquire(&mut lock, &mut store, &other);
        let expected = Refusal::OtherParameters { field: "mode" };
        assert!(
            matches!(&outcome, AcquireOutcome::Refused(refusal) if *refusal == expected),
            "{outcome:?}"
        );
    }
}

#[test]
fn an_undo_ends_what_its_own_call_has_and_stops_its_late_steps() {
    let (mut lock, mut store) = start();
    let one = claim(1);
    take(&mut lock, &mut store, &one);
    let other = CallId::from_bytes([99; 16]);
    let undo = ReleaseTarget::Call(&one.id, other);
    assert_eq!(lock.release(&mut store, undo, None).released, Released::Adopted);
    let two = claim(2);
    let undo = ReleaseTarget::Call(&two.id, two.call);
    assert_eq!(lock.release(&mut store, undo, None).released, Released::Nothing);
    assert!(matches!(
        acquire(&mut lock, &mut store, &two),
        AcquireOutcome::Cancelled
    ));
    let three = queue_behind(&mut lock, &mut store, 3, OWN);
    let undo = ReleaseTarget::Call(&three.id, three.call);
    assert_eq!(
        lock.release(&mut store, undo, None).released,
        Released::Ended(Cause::Cancelled)
    );
    assert_eq!((lock.holders(), lock.waiters()), (1, 0));
}

#[test]
fn only_a_retryable_end_is_found_by_its_request() {
    let (mut lock, mut store) = start();
    let one = NewClaim::numbered(1);
    let lease = take(&mut lock, &mut store, &one);
    lock.release(&mut store, ReleaseTarget::Hold(&lease), None);
    take(&mut lock, &mut store, &retry(&one));
}

#[test]
fn an_adopted_hold_is_not_undone_by_its_first_call() {
    let (mut lock, mut store) = start();
    let one = claim(1);
    let lease = take(&mut lock, &mut store, &one);
    assert_eq!(take(&mut lock, &mut store, &retry(&one)), lease);
    let undo = ReleaseTarget::Call(&one.id, one.call);
    assert_eq!(lock.release(&mut store, undo, None).released, Released::Adopted);
    assert_eq!(lock.holders(), 1);
}

#[test]
fn an_end_is_found_by_request_secret_lease_and_token() {
    let (mut lock, mut store) = start();
    let one = claim(1);
    let lease = take(&mut lock, &mut store, &one);
    let next = queue_behind(&mut lock, &mut store, 8, OTHER);
    lock.end(&mut store, 0, Cause::Expired);
    assert_eq!(store.notified, [(OTHER, next.id)]);
    assert!(store.touched.contains(&(0, "removed")));
    let outcome = acquire(&mut lock, &mut store, &retry(&one));
    assert!(matches!(outcome, AcquireOutcome::Finished(Cause::Expired)));
    let outcome = lock.promote(&mut store, &incoming(&one));
    assert!(matches!(outcome, AcquireOutcome::Finished(Cause::Expired)));
    let before = Released::EndedBefore(Cause::Expired);
    for target in [ReleaseTarget::Hold(&lease), ReleaseTarget::Forced(lease.token)] {
        assert_eq!(lock.release(&mut store, target, None).released, before);
    }
    let gone = lock.renew(&mut store, &lease, None);
    assert_eq!(gone, RenewOutcome::Gone(Some(Cause::Expired)));
    let gone = lock.update_metadata(&mut store, &lease, &Metadata::default(), None);
    assert_eq!(gone, UpdateOutcome::Gone(Some(Cause::Expired)));
    assert!(matches!(
        lock.promote(&mut store, &incoming(&claim(9))),
        AcquireOutcome::Gone
    ));
}

#[test]
fn a_hold_with_a_longer_ttl_than_another_raises_the_span_again() {
    let (mut lock, mut store) = start();
    let one = NewClaim {
        reentrant: true,
        ..claim(1)
    };
    let first = take(&mut lock, &mut store, &one);
    store.now += secs(58);
    let second = take(
        &mut lock,
        &mut store,
        &NewClaim {
            ttl: Ttl::new(secs(3)).unwrap(),
            ..retry(&NewClaim { id: claim(2).id, ..one })
        },
    );
    assert_eq!(second.token, first.token);
    let span = |lock: &LockState| lock.get(0).unwrap().holding().unwrap().span;
    assert_eq!(span(&lock), secs(3));
    lock.renew(&mut store, &first, None);
    assert_eq!(span(&lock), TTL);
    assert!(store.touched.contains(&(0, "saved")));
}
