//! The short cut of a hot lock: a leave that takes its `next` up in the same step.

use fencepost::backend::{AcquireOutcome, ReleaseTarget, Released};
use fencepost::claim::Cause;

use crate::claims::{Asking, claim};
use crate::fixture::Fixture;
use crate::replica::waiting;

// G13
pub async fn a_release_hands_over_to_the_next(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    let outcome = fixture.here().release_to(&a, &b).await;
    assert_eq!(outcome.released, Released::Ended(Cause::Released));
    let grant = outcome.next.expect("handed over");
    assert_eq!((grant.claim, grant.secret), (b.id, b.secret));
    assert!(grant.ttl >= b.ttl.get() && grant.token > a.token());
    assert_eq!(fixture.here().owners().await, (vec!["b".into()], vec![]));
    assert_eq!(fixture.here().take(&b).await.grant.token, grant.token);
}

pub async fn a_force_and_an_undo_hand_over_too(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    let outcome = fixture.here().end(ReleaseTarget::Forced(a.token()), Some(&b)).await;
    assert_eq!(outcome.released, Released::Ended(Cause::Forced));
    assert_eq!(outcome.next.expect("handed over").claim, b.id);
    let c = fixture.here().queue(claim("c")).await;
    let outcome = fixture.here().end(ReleaseTarget::Call(&b.id, b.call), Some(&c)).await;
    assert_eq!(outcome.released, Released::Ended(Cause::Undone));
    assert_eq!(outcome.next.expect("handed over").claim, c.id);
}

pub async fn a_next_that_is_not_first_is_passed(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    let c = fixture.here().queue(claim("c")).await;
    let outcome = fixture.here().release_to(&a, &c).await;
    assert_eq!(
        (outcome.released, outcome.next),
        (Released::Ended(Cause::Released), None)
    );
    waiting(fixture.here().promote(&c).await);
    fixture.here().take(&b).await;
}

pub async fn a_next_that_another_call_adopted_is_passed(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let older = fixture.here().queue(claim("b")).await;
    let newer = fixture.there().queue(older.again()).await;
    let outcome = fixture.here().release_to(&a, &older).await;
    assert_eq!(
        (outcome.released, outcome.next),
        (Released::Ended(Cause::Released), None)
    );
    fixture.there().take(&newer).await;
}

pub async fn a_next_that_has_left_is_passed(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    fixture.here().undo(&b).await;
    assert_eq!(fixture.here().release_to(&a, &b).await.next, None);
    assert!(fixture.here().is_free().await);
}

pub async fn a_next_that_never_came_is_passed(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let stranger = claim("b");
    assert_eq!(fixture.here().release_to(&a, &stranger).await.next, None);
    assert!(fixture.here().is_free().await);
    assert!(matches!(fixture.here().promote(&stranger).await, AcquireOutcome::Gone));
}

pub async fn a_next_that_does_not_fit_yet_is_passed(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").semaphore(1, 3)).await;
    let b = fixture.here().hold(claim("b").semaphore(2, 3)).await;
    let c = fixture.here().queue(claim("c").semaphore(3, 3)).await;
    assert_eq!(fixture.here().release_to(&a, &c).await.next, None);
    assert_eq!(
        fixture.here().release_to(&b, &c).await.next.expect("handed over").claim,
        c.id
    );
}

pub async fn a_hold_that_leaves_its_claim_hands_nothing_over(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").reentrant()).await;
    let more = fixture.here().hold(claim("a").reentrant()).await;
    let b = fixture.here().queue(claim("b")).await;
    let outcome = fixture.here().release_to(&more, &b).await;
    assert_eq!(
        (outcome.released, outcome.next),
        (Released::Ended(Cause::Released), None)
    );
    waiting(fixture.here().promote(&b).await);
    assert_eq!(
        fixture.here().release_to(&a, &b).await.next.expect("handed over").claim,
        b.id
    );
}

pub async fn a_false_lease_hands_nothing_over(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    for (what, lease) in super::release::forgeries(&a) {
        let outcome = fixture.here().end(ReleaseTarget::Hold(&lease), Some(&b)).await;
        assert_eq!((outcome.released, outcome.next), (Released::Nothing, None), "{what}");
    }
    assert_eq!(fixture.here().tokens().await, [a.token()]);
}

pub async fn a_release_sent_twice_grants_its_next_once(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    let grant = fixture.here().release_to(&a, &b).await.next.expect("handed over");
    let again = fixture.here().release_to(&a, &b).await;
    assert_eq!(again.released, Released::EndedBefore(Cause::Released));
    assert_eq!(fixture.here().tokens().await, [grant.token]);
    assert_eq!(fixture.here().take(&b).await.grant.token, grant.token);
}

pub async fn a_hand_over_wakes_others_that_fit(fixture: &Fixture) {
    let mut notifications = fixture.notifications();
    let lock = fixture.here();
    let a = lock.hold(claim("a")).await;
    let b = lock.queue(claim("b").shared()).await;
    let c = lock.queue(claim("c").shared()).await;
    notifications.all().await;
    assert!(lock.release_to(&a, &b).await.next.is_some());
    notifications.until(lock.name(), &c).await;
    lock.take(&c).await;
    assert_eq!(lock.inspect().await.holder_count, 2);
}

pub async fn what_was_handed_over_has_waited(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    fixture.sleep(fixture.short()).await;
    let waited = fixture
        .here()
        .release_to(&a, &b)
        .await
        .next
        .expect("handed over")
        .waited;
    assert!((fixture.short()..4 * fixture.short()).contains(&waited), "{waited:?}");
}

pub async fn what_was_handed_over_can_be_undone(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    fixture.here().release_to(&a, &b).await;
    assert_eq!(fixture.here().undo(&b).await, Released::Ended(Cause::Undone));
    assert!(fixture.here().is_free().await);
}
