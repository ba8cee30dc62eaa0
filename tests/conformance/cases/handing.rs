//! The short cut of a hot lock: a leave that takes its `next` up in the same step.

use fencepost::backend::{Found, Leaving, Place};
use fencepost::claim::Cause;

use crate::bed::Bed;
use crate::claims::{Asking, claim};
use crate::replica::waiting;

pub async fn a_release_hands_over_to_the_next(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    let departure = bed.here().release_to(&a, &b).await;
    assert_eq!(departure.found, Found::Ended(Cause::Released));
    let grant = departure.next.expect("handed over");
    assert_eq!((grant.claim, grant.secret), (b.id, b.secret));
    assert!(grant.ttl >= b.ttl.get() && grant.token > a.token());
    assert_eq!(bed.here().owners().await, (vec!["b".into()], vec![]));
    assert_eq!(bed.here().take(&b).await.grant.token, grant.token);
}

pub async fn a_force_and_an_undo_hand_over_too(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    let departure = bed.here().leave(Leaving::Forced(a.token()), Some(&b)).await;
    assert_eq!(departure.found, Found::Ended(Cause::Forced));
    assert_eq!(departure.next.expect("handed over").claim, b.id);
    let c = bed.here().queue(claim("c")).await;
    let departure = bed.here().leave(Leaving::Call(&b.id, b.call), Some(&c)).await;
    assert_eq!(departure.found, Found::Ended(Cause::TakenBack));
    assert_eq!(departure.next.expect("handed over").claim, c.id);
}

pub async fn a_next_that_is_not_first_is_passed(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    let c = bed.here().queue(claim("c")).await;
    let departure = bed.here().release_to(&a, &c).await;
    assert_eq!((departure.found, departure.next), (Found::Ended(Cause::Released), None));
    waiting(bed.here().take_up(&c).await);
    bed.here().take(&b).await;
}

pub async fn a_next_that_another_call_adopted_is_passed(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let older = bed.here().queue(claim("b")).await;
    let newer = bed.there().queue(older.again()).await;
    let departure = bed.here().release_to(&a, &older).await;
    assert_eq!((departure.found, departure.next), (Found::Ended(Cause::Released), None));
    bed.there().take(&newer).await;
}

pub async fn a_next_that_has_left_is_passed(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    bed.here().undo(&b).await;
    assert_eq!(bed.here().release_to(&a, &b).await.next, None);
    assert!(bed.here().is_free().await);
}

pub async fn a_next_that_never_came_is_passed(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let stranger = claim("b");
    assert_eq!(bed.here().release_to(&a, &stranger).await.next, None);
    assert!(bed.here().is_free().await);
    assert!(matches!(bed.here().take_up(&stranger).await, Place::Gone));
}

pub async fn a_next_that_does_not_fit_yet_is_passed(bed: &Bed) {
    let a = bed.here().hold(claim("a").semaphore(1, 3)).await;
    let b = bed.here().hold(claim("b").semaphore(2, 3)).await;
    let c = bed.here().queue(claim("c").semaphore(3, 3)).await;
    assert_eq!(bed.here().release_to(&a, &c).await.next, None);
    assert_eq!(
        bed.here().release_to(&b, &c).await.next.expect("handed over").claim,
        c.id
    );
}

pub async fn a_hold_that_leaves_its_claim_hands_nothing_over(bed: &Bed) {
    let a = bed.here().hold(claim("a").reentrant()).await;
    let more = bed.here().hold(claim("a").reentrant()).await;
    let b = bed.here().queue(claim("b")).await;
    let departure = bed.here().release_to(&more, &b).await;
    assert_eq!((departure.found, departure.next), (Found::Ended(Cause::Released), None));
    waiting(bed.here().take_up(&b).await);
    assert_eq!(
        bed.here().release_to(&a, &b).await.next.expect("handed over").claim,
        b.id
    );
}

pub async fn a_false_lease_hands_nothing_over(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    for (what, lease) in super::release::forgeries(&a) {
        let departure = bed.here().leave(Leaving::Hold(&lease), Some(&b)).await;
        assert_eq!((departure.found, departure.next), (Found::Nothing, None), "{what}");
    }
    assert_eq!(bed.here().tokens().await, [a.token()]);
}

pub async fn a_release_sent_twice_grants_its_next_once(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    let grant = bed.here().release_to(&a, &b).await.next.expect("handed over");
    let again = bed.here().release_to(&a, &b).await;
    assert_eq!(again.found, Found::EndedBefore(Cause::Released));
    assert_eq!(bed.here().tokens().await, [grant.token]);
    assert_eq!(bed.here().take(&b).await.grant.token, grant.token);
}

pub async fn a_hand_over_wakes_others_that_fit(bed: &Bed) {
    let mut wakes = bed.wakes();
    let lock = bed.here();
    let a = lock.hold(claim("a")).await;
    let b = lock.queue(claim("b").shared()).await;
    let c = lock.queue(claim("c").shared()).await;
    wakes.all().await;
    assert!(lock.release_to(&a, &b).await.next.is_some());
    wakes.until(lock.name(), &c).await;
    lock.take(&c).await;
    assert_eq!(lock.look().await.holder_count, 2);
}

pub async fn what_was_handed_over_has_waited(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    bed.sleep(bed.short()).await;
    let waited = bed.here().release_to(&a, &b).await.next.expect("handed over").waited;
    assert!((bed.short()..4 * bed.short()).contains(&waited), "{waited:?}");
}

pub async fn what_was_handed_over_can_be_undone(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    bed.here().release_to(&a, &b).await;
    assert_eq!(bed.here().undo(&b).await, Found::Ended(Cause::TakenBack));
    assert!(bed.here().is_free().await);
}
