//! Claims that stay when their holds have ended.

use super::*;

fn keep(lock: &mut LockState, store: &mut Store, lease: &LeaseKey, time: Duration) -> ReleaseOutcome {
    lock.release(store, ReleaseTarget::Keeping(lease, time), None)
}

// G210
#[test]
fn a_kept_claim_takes_one_place_and_ends_as_its_release_says() {
    let (mut lock, mut store) = start();
    let lease = take(&mut lock, &mut store, &claim(1));
    let waiter = queue_behind(&mut lock, &mut store, 2, OWN);
    let outcome = keep(&mut lock, &mut store, &lease, secs(5));
    assert_eq!(
        (outcome.released, outcome.kept),
        (Released::Ended(Cause::Released), Some(secs(5)))
    );
    let now = store.now + secs(1);
    store.commit(&mut lock, now);
    assert_eq!((lock.len(), lock.places(), lock.holders()), (2, 2, 1));
    assert_eq!(
        lock.first_holder(now).map(|holder| (holder.holds, holder.remaining)),
        Some((0, secs(5)))
    );
    assert_eq!(lock.find(&claim(1).id), None, "no call finds it");
    let promoted = lock.promote(&mut store, &incoming(&waiter));
    assert!(matches!(promoted, AcquireOutcome::Waiting(it) if it.frees_in == Some(secs(5))));
    let again = lock.release(&mut store, ReleaseTarget::Hold(&lease), None);
    assert_eq!(
        (again.released, again.kept),
        (Released::EndedBefore(Cause::Released), Some(secs(5)))
    );
    let position = lock.find_token(lease.token).expect("it is held");
    lock.end(&mut store, position, Cause::Expired);
    assert_eq!((lock.places(), store.notified.last()), (1, Some(&(OWN, waiter.id))));
}

// G211
#[test]
fn a_later_release_of_another_hold_shortens_nothing() {
    let (mut lock, mut store) = start();
    let reentrant = |number| NewClaim {
        reentrant: true,
        ..claim(number)
    };
    let lease = take(&mut lock, &mut store, &reentrant(1));
    let second = take(&mut lock, &mut store, &reentrant(2));
    keep(&mut lock, &mut store, &lease, secs(90));
    assert_eq!(
        lock.first_holder(store.now).map(|it| (it.holds, it.remaining)),
        Some((1, secs(90)))
    );
    keep(&mut lock, &mut store, &second, secs(5));
    let now = store.now + secs(1);
    store.commit(&mut lock, now);
    assert_eq!(
        lock.first_holder(now).map(|it| (it.holds, it.remaining)),
        Some((0, secs(90)))
    );
    assert!(matches!(
        acquire(&mut lock, &mut store, &reentrant(3)),
        AcquireOutcome::Waiting(_)
    ));
}
