//! Retries: a call with the id of an earlier one finds what that one entered.

use std::time::Duration;

use fencepost::backend::{ClaimLimits, FINISHED_KEPT, Found, NewClaim, Place, Refusal};
use fencepost::claim::Cause;

use crate::bed::{Bed, LONG};
use crate::claims::{Asking, ROOMY, claim, note_of};
use crate::replica::{busy, held, refused, waiting};

/// Asserts that a retry was answered with the end of its request.
#[track_caller]
pub fn is_finished(place: Place, cause: Cause) {
    match place {
        Place::Finished(found) => assert_eq!(found, cause),
        other => panic!("not finished: {other:?}"),
    }
}

pub async fn a_retry_finds_its_hold(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let again = bed.there().hold(a.claim.again().living(5 * LONG).noting("later")).await;
    assert_eq!(again.lease, a.lease);
    assert_eq!((again.grant.holds, again.grant.waited), (1, Duration::ZERO));
    assert!(again.grant.ttl <= a.grant.ttl, "{:?}", again.grant.ttl);
    let holders = bed.here().holders().await;
    assert_eq!(holders.len(), 1);
    assert_eq!(holders[0].metadata, a.claim.metadata);
    assert!(holders[0].remaining <= a.grant.ttl);
}

pub async fn a_try_finds_its_hold_too(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let again = bed.there().hold(a.claim.again().trying()).await;
    assert_eq!(again.lease, a.lease);
}

pub async fn a_retry_finds_its_place_in_the_queue(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    let c = bed.here().queue(claim("c")).await;
    let again = bed.there().queue(b.again()).await;
    assert_eq!(bed.here().owners().await.1, ["b", "c"]);
    assert!(matches!(bed.here().take_up(&b).await, Place::Superseded));
    bed.here().release(&a).await;
    waiting(bed.here().take_up(&c).await);
    assert!(matches!(bed.here().take_up(&b).await, Place::Superseded));
    let b = bed.there().take(&again).await;
    assert_eq!(b.grant.secret, again.secret);
}

pub async fn a_waiter_takes_the_ttl_and_metadata_of_its_retry(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b").noting("first")).await;
    let again = bed.there().queue(b.again().noting("second").living(3 * LONG)).await;
    assert_eq!(bed.here().waiters().await[0].metadata, note_of("second"));
    bed.here().release(&a).await;
    let b = bed.there().take(&again).await;
    assert!(b.grant.ttl >= 3 * LONG, "{:?}", b.grant.ttl);
    assert_eq!(bed.here().holders().await[0].metadata, note_of("second"));
}

pub async fn a_retry_that_fits_by_now_is_held_at_once(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    bed.here().release(&a).await;
    let again = bed.there().hold(b.again()).await;
    assert_eq!(bed.here().tokens().await, [again.token()]);
    let older = bed.here().take_up(&b).await;
    assert!(matches!(older, Place::Superseded | Place::Left), "{older:?}");
}

pub async fn a_try_that_fits_by_now_is_held_at_once(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    bed.here().release(&a).await;
    let again = bed.there().hold(b.again().trying()).await;
    assert_eq!(bed.here().tokens().await, [again.token()]);
}

pub async fn a_try_takes_its_own_waiting_claim_out(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    let c = bed.here().queue(claim("c")).await;
    let found = busy(bed.there().enter(&b.again().trying()).await);
    assert_eq!(found.expect("somebody holds").token, a.token());
    assert_eq!(bed.here().owners().await.1, ["c"]);
    bed.here().release(&a).await;
    bed.here().take(&c).await;
}

pub async fn a_claim_that_a_try_took_out_is_forgotten(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    busy(bed.here().enter(&b.again().trying()).await);
    let again = bed.here().queue(b.again()).await;
    bed.here().release(&a).await;
    bed.here().take(&again).await;
}

pub async fn a_retry_after_the_end_learns_its_cause(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    bed.here().release(&a).await;
    let b = bed.here().hold(claim("b")).await;
    bed.here().force(b.token()).await;
    let c = bed.here().hold(claim("c").living(bed.short())).await;
    bed.outlive(bed.short()).await;
    for (ended, cause) in [(&a, Cause::Released), (&b, Cause::Forced), (&c, Cause::Expired)] {
        is_finished(bed.there().enter(&ended.claim.again()).await, cause);
        is_finished(bed.there().enter(&ended.claim.again().trying()).await, cause);
    }
    assert!(bed.here().is_free().await);
}

pub async fn a_retry_learns_its_end_while_another_holds(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    bed.here().release(&a).await;
    bed.here().take(&b).await;
    is_finished(bed.here().enter(&a.claim.again()).await, Cause::Released);
    assert!(bed.here().waiters().await.is_empty());
}

pub async fn a_take_back_forgets_the_request(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    bed.here().undo(&a.claim).await;
    let again = bed.here().hold(a.claim.again()).await;
    assert!(again.token() > a.token());
}

pub async fn a_claim_that_ended_waiting_is_forgotten(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    bed.here().queue(claim("c")).await;
    bed.here().undo(&b).await;
    let again = bed.here().queue(b.again()).await;
    assert_eq!(bed.here().owners().await.1, ["c", "b"]);
    bed.here().release(&a).await;
    waiting(bed.here().take_up(&again).await);
}

pub async fn a_failed_try_is_forgotten(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = claim("b").trying();
    busy(bed.here().enter(&b).await);
    bed.here().release(&a).await;
    bed.here().hold(b.again()).await;
}

/// What a retry must not change, and the word that its refusal may begin with.
fn changed(of: &NewClaim) -> [(&'static str, NewClaim); 3] {
    [
        ("mode", of.again().shared()),
        ("mode", of.again().semaphore(1, 9)),
        ("reentrant", of.again().reentrant()),
    ]
}

#[track_caller]
fn is_other(place: Place, begins: &str) {
    match refused(place) {
        Refusal::OtherParameters { field } => assert!(field.starts_with(begins), "{field}"),
        other => panic!("{other:?}"),
    }
}

pub async fn a_retry_with_other_parameters_is_refused(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    for of in [&a.claim, &b] {
        for (field, asking) in changed(of) {
            is_other(bed.there().enter(&asking).await, field);
            is_other(bed.there().enter(&asking.again().trying()).await, field);
        }
    }
    waiting(bed.here().take_up(&b).await);
    assert_eq!(bed.here().owners().await, (vec!["a".into()], vec!["b".into()]));
    assert_eq!(bed.here().undo(&a.claim).await, Found::Ended(Cause::TakenBack));
}

pub async fn a_retry_with_other_permits_or_limit_is_refused(bed: &Bed) {
    let a = bed.here().hold(claim("a").semaphore(1, 5)).await;
    is_other(bed.here().enter(&a.claim.again().semaphore(2, 5)).await, "mode");
    is_other(bed.here().enter(&a.claim.again().semaphore(1, 6)).await, "mode");
    assert_eq!(bed.here().hold(a.claim.again()).await.lease, a.lease);
}

pub async fn a_full_queue_lets_a_retry_find_its_claim(bed: &Bed) {
    let narrow = ClaimLimits { queue: 2, ..ROOMY };
    let a = bed.here().hold(claim("a").within(narrow)).await;
    let b = bed.here().queue(claim("b").within(narrow)).await;
    waiting(bed.here().enter(&b.again()).await);
    held(bed.here().enter(&a.claim.again()).await);
    assert_eq!(bed.here().look().await.waiter_count, 1);
}

pub async fn past_the_limit_the_oldest_ends_are_forgotten(bed: &Bed) {
    let asking = |owner: &str| claim(owner).within(ClaimLimits { finished: 2, ..ROOMY });
    let mut ended = Vec::new();
    for owner in ["a", "b", "c"] {
        let held = bed.here().hold(asking(owner)).await;
        bed.here().release(&held).await;
        ended.push(held);
    }
    is_finished(bed.here().enter(&ended[2].claim.again()).await, Cause::Released);
    is_finished(bed.here().enter(&ended[1].claim.again()).await, Cause::Released);
    bed.here().hold(ended[0].claim.again()).await;
}

pub async fn ends_are_remembered_for_their_time(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    bed.here().release(&a).await;
    bed.sleep(FINISHED_KEPT - bed.short()).await;
    is_finished(bed.here().enter(&a.claim.again()).await, Cause::Released);
    assert_eq!(bed.here().release(&a).await, Found::EndedBefore(Cause::Released));
}

pub async fn ends_are_forgotten_after_their_time(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    bed.here().release(&a).await;
    bed.sleep(2 * FINISHED_KEPT).await;
    assert_eq!(bed.here().release(&a).await, Found::Nothing);
    let again = bed.here().hold(a.claim.again()).await;
    assert!(again.token() > a.token());
}
