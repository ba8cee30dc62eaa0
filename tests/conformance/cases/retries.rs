//! Retries: a call with the id of an earlier one finds what that one acquired.

use std::time::Duration;

use fencepost::backend::{AcquireOutcome, ClaimLimits, FINISHED_KEPT, NewClaim, Refusal, Released};
use fencepost::claim::Cause;

use crate::claims::{Asking, ROOMY, claim, note_of};
use crate::fixture::{Fixture, LONG};
use crate::replica::{busy, held, refused, waiting};

/// Asserts that a retry was answered with the end of its request.
#[track_caller]
pub fn is_finished(place: AcquireOutcome, cause: Cause) {
    match place {
        AcquireOutcome::Finished(found) => assert_eq!(found, cause),
        other => panic!("not finished: {other:?}"),
    }
}

// G21
pub async fn a_retry_finds_its_hold(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let again = fixture
        .there()
        .hold(a.claim.again().living(5 * LONG).noting("later"))
        .await;
    assert_eq!(again.lease, a.lease);
    assert_eq!((again.grant.holds, again.grant.waited), (1, Duration::ZERO));
    assert!(again.grant.ttl <= a.grant.ttl, "{:?}", again.grant.ttl);
    let holders = fixture.here().holders().await;
    assert_eq!(holders.len(), 1);
    assert_eq!(holders[0].metadata, a.claim.metadata);
    assert!(holders[0].remaining <= a.grant.ttl);
}

pub async fn a_try_finds_its_hold_too(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let again = fixture.there().hold(a.claim.again().trying()).await;
    assert_eq!(again.lease, a.lease);
}

// G21
pub async fn a_retry_finds_its_place_in_the_queue(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    let c = fixture.here().queue(claim("c")).await;
    let again = fixture.there().queue(b.again()).await;
    assert_eq!(fixture.here().owners().await.1, ["b", "c"]);
    assert!(matches!(fixture.here().promote(&b).await, AcquireOutcome::Superseded));
    fixture.here().release(&a).await;
    waiting(fixture.here().promote(&c).await);
    assert!(matches!(fixture.here().promote(&b).await, AcquireOutcome::Superseded));
    let b = fixture.there().take(&again).await;
    assert_eq!(b.grant.secret, again.secret);
}

// G23
pub async fn a_waiter_takes_the_ttl_and_metadata_of_its_retry(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b").noting("first")).await;
    let again = fixture.there().queue(b.again().noting("second").living(3 * LONG)).await;
    assert_eq!(fixture.here().waiters().await[0].metadata, note_of("second"));
    fixture.here().release(&a).await;
    let b = fixture.there().take(&again).await;
    assert!(b.grant.ttl >= 3 * LONG, "{:?}", b.grant.ttl);
    assert_eq!(fixture.here().holders().await[0].metadata, note_of("second"));
}

pub async fn a_retry_that_fits_by_now_is_held_at_once(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    fixture.here().release(&a).await;
    let again = fixture.there().hold(b.again()).await;
    assert_eq!(fixture.here().tokens().await, [again.token()]);
    let older = fixture.here().promote(&b).await;
    assert!(
        matches!(older, AcquireOutcome::Superseded | AcquireOutcome::Cancelled),
        "{older:?}"
    );
}

pub async fn a_try_that_fits_by_now_is_held_at_once(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    fixture.here().release(&a).await;
    let again = fixture.there().hold(b.again().trying()).await;
    assert_eq!(fixture.here().tokens().await, [again.token()]);
}

// G10
pub async fn a_try_takes_its_own_waiting_claim_out(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    let c = fixture.here().queue(claim("c")).await;
    let found = busy(fixture.there().acquire(&b.again().trying()).await);
    assert_eq!(found.expect("somebody holds").token, a.token());
    assert_eq!(fixture.here().owners().await.1, ["c"]);
    fixture.here().release(&a).await;
    fixture.here().take(&c).await;
}

// G25
pub async fn a_claim_that_a_try_took_out_is_forgotten(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    busy(fixture.here().acquire(&b.again().trying()).await);
    let again = fixture.here().queue(b.again()).await;
    fixture.here().release(&a).await;
    fixture.here().take(&again).await;
}

// G24
pub async fn a_retry_after_the_end_learns_its_cause(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    fixture.here().release(&a).await;
    let b = fixture.here().hold(claim("b")).await;
    fixture.here().force(b.token()).await;
    let c = fixture.here().hold(claim("c").living(fixture.short())).await;
    fixture.outlive(fixture.short()).await;
    for (ended, cause) in [(&a, Cause::Released), (&b, Cause::Forced), (&c, Cause::Expired)] {
        is_finished(fixture.there().acquire(&ended.claim.again()).await, cause);
        is_finished(fixture.there().acquire(&ended.claim.again().trying()).await, cause);
        for (_, other) in changed(&ended.claim) {
            is_finished(fixture.there().acquire(&other).await, cause);
        }
    }
    assert!(fixture.here().is_free().await);
}

pub async fn a_retry_learns_its_end_while_another_holds(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    fixture.here().release(&a).await;
    fixture.here().take(&b).await;
    is_finished(fixture.here().acquire(&a.claim.again()).await, Cause::Released);
    assert!(fixture.here().waiters().await.is_empty());
}

// G25
pub async fn a_take_back_forgets_the_request(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    fixture.here().undo(&a.claim).await;
    let again = fixture.here().hold(a.claim.again()).await;
    assert!(again.token() > a.token());
}

// G25
pub async fn a_claim_that_ended_waiting_is_forgotten(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    fixture.here().queue(claim("c")).await;
    fixture.here().undo(&b).await;
    let again = fixture.here().queue(b.again()).await;
    assert_eq!(fixture.here().owners().await.1, ["c", "b"]);
    fixture.here().release(&a).await;
    waiting(fixture.here().promote(&again).await);
}

pub async fn a_failed_try_is_forgotten(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = claim("b").trying();
    busy(fixture.here().acquire(&b).await);
    fixture.here().release(&a).await;
    fixture.here().hold(b.again()).await;
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
fn is_other(place: AcquireOutcome, begins: &str) {
    match refused(place) {
        Refusal::OtherParameters { field } => assert!(field.starts_with(begins), "{field}"),
        other => panic!("{other:?}"),
    }
}

// G23
pub async fn a_retry_with_other_parameters_is_refused(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    for of in [&a.claim, &b] {
        for (field, asking) in changed(of) {
            is_other(fixture.there().acquire(&asking).await, field);
            is_other(fixture.there().acquire(&asking.again().trying()).await, field);
        }
    }
    waiting(fixture.here().promote(&b).await);
    assert_eq!(fixture.here().owners().await, (vec!["a".into()], vec!["b".into()]));
    assert_eq!(fixture.here().undo(&a.claim).await, Released::Ended(Cause::Undone));
}

// G23
pub async fn a_retry_with_other_permits_or_limit_is_refused(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").semaphore(1, 5)).await;
    is_other(fixture.here().acquire(&a.claim.again().semaphore(2, 5)).await, "mode");
    is_other(fixture.here().acquire(&a.claim.again().semaphore(1, 6)).await, "mode");
    assert_eq!(fixture.here().hold(a.claim.again()).await.lease, a.lease);
}

pub async fn a_full_queue_lets_a_retry_find_its_claim(fixture: &Fixture) {
    let narrow = ClaimLimits { queue: 2, ..ROOMY };
    let a = fixture.here().hold(claim("a").within(narrow)).await;
    let b = fixture.here().queue(claim("b").within(narrow)).await;
    waiting(fixture.here().acquire(&b.again()).await);
    held(fixture.here().acquire(&a.claim.again()).await);
    assert_eq!(fixture.here().inspect().await.waiter_count, 1);
}

// G26
pub async fn past_the_limit_the_oldest_ends_are_forgotten(fixture: &Fixture) {
    let asking = |owner: &str| claim(owner).within(ClaimLimits { finished: 2, ..ROOMY });
    let mut ended = Vec::new();
    for owner in ["a", "b", "c"] {
        let held = fixture.here().hold(asking(owner)).await;
        fixture.here().release(&held).await;
        ended.push(held);
    }
    is_finished(fixture.here().acquire(&ended[2].claim.again()).await, Cause::Released);
    is_finished(fixture.here().acquire(&ended[1].claim.again()).await, Cause::Released);
    fixture.here().hold(ended[0].claim.again()).await;
}

pub async fn an_end_is_remembered_although_its_request_waited_in_vain_before(fixture: &Fixture) {
    let asking = |owner: &str| claim(owner).within(ClaimLimits { finished: 2, ..ROOMY });
    let first = fixture.here().hold(asking("a")).await;
    let vain = fixture.here().queue(asking("b")).await;
    fixture.here().undo(&vain).await;
    fixture.here().release(&first).await;
    let held = fixture.here().hold(vain.again()).await;
    fixture.here().release(&held).await;
    // Time for what is deleted in the background.
    fixture.sleep(Duration::from_secs(1)).await;
    is_finished(fixture.here().acquire(&vain.again()).await, Cause::Released);
    assert_eq!(
        fixture.here().release(&held).await,
        Released::EndedBefore(Cause::Released)
    );
}

// G26
pub async fn ends_are_remembered_for_their_time(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    fixture.here().release(&a).await;
    fixture.sleep(FINISHED_KEPT - fixture.short()).await;
    is_finished(fixture.here().acquire(&a.claim.again()).await, Cause::Released);
    assert_eq!(fixture.here().release(&a).await, Released::EndedBefore(Cause::Released));
}

// G26
pub async fn ends_are_forgotten_after_their_time(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    fixture.here().release(&a).await;
    fixture.sleep(2 * FINISHED_KEPT).await;
    assert_eq!(fixture.here().release(&a).await, Released::Nothing);
    let again = fixture.here().hold(a.claim.again()).await;
    assert!(again.token() > a.token());
}
