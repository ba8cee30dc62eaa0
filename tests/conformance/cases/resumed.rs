//! Sessions that go on on another stream: what a replica reads of an earlier one changes nothing.

use fencepost::backend::{AcquireOutcome, NewClaim, Released, UpdateOutcome};
use fencepost::claim::Cause;

use crate::claims::{Asking, claim, note_of, stream};
use crate::fixture::Fixture;
use crate::replica::{Replica, held};

async fn is_superseded(replica: &Replica<'_>, claim: &NewClaim) {
    let outcome = replica.acquire(claim).await;
    assert!(matches!(outcome, AcquireOutcome::Superseded), "{outcome:?}");
}

// G222
pub async fn an_acquire_of_an_earlier_stream_takes_no_place(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b").on(1)).await;
    let c = fixture.here().queue(claim("c")).await;
    let again = fixture.there().queue(b.again().on(2)).await;
    for replica in [fixture.here(), fixture.there()] {
        is_superseded(&replica, &b.again()).await;
        is_superseded(&replica, &b.again().trying()).await;
    }
    assert_eq!(fixture.here().owners().await.1, ["b", "c"]);
    fixture.here().release(&a).await;
    is_superseded(&fixture.here(), &b.again()).await;
    let b = fixture.there().take(&again).await;
    fixture.there().release(&b).await;
    fixture.here().take(&c).await;
}

// G222
pub async fn an_acquire_of_an_earlier_stream_finds_no_hold(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").on(1)).await;
    let again = fixture.there().hold(a.claim.again().on(2)).await;
    assert_eq!(again.lease, a.lease);
    for replica in [fixture.here(), fixture.there()] {
        is_superseded(&replica, &a.claim.again()).await;
    }
    fixture.there().renewed(&again, None).await;
    fixture.there().release(&again).await;
    assert!(fixture.here().is_free().await);
}

// G221
pub async fn a_hold_that_a_later_stream_has_found_is_undone_by_its_call_alone(fixture: &Fixture) {
    let first = fixture.here().hold(claim("a").on(1)).await;
    let second = fixture.there().hold(first.claim.again().on(2)).await;
    assert!(fixture.there().owns(&second.claim).await && !fixture.here().owns(&first.claim).await);
    let late = fixture.here().promote(&first.claim).await;
    assert!(matches!(late, AcquireOutcome::Superseded), "{late:?}");
    assert_eq!(fixture.here().undo(&first.claim).await, Released::Adopted);
    assert_eq!(fixture.here().tokens().await, [second.token()]);
    fixture.there().renewed(&second, None).await;
    assert_eq!(
        fixture.there().undo(&second.claim).await,
        Released::Ended(Cause::Undone)
    );
    assert!(fixture.here().is_free().await);
    fixture.here().hold(second.claim.again().on(3)).await;
}

// G16
pub async fn a_hold_that_two_calls_of_one_stream_have_found_is_undone_by_neither(fixture: &Fixture) {
    let first = fixture.here().hold(claim("a").on(1)).await;
    let second = fixture.here().hold(first.claim.again().on(1)).await;
    let third = fixture.there().hold(first.claim.again().on(2)).await;
    for call in [&first, &second, &third] {
        assert_eq!(fixture.here().undo(&call.claim).await, Released::Adopted);
    }
    assert_eq!(fixture.here().tokens().await, [first.token()]);
}

// G222
pub async fn a_place_that_fits_by_now_is_granted_to_the_later_stream_alone(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b").on(1)).await;
    fixture.here().release(&a).await;
    let again = fixture.there().hold(b.again().on(2)).await;
    is_superseded(&fixture.here(), &b.again()).await;
    assert_eq!(fixture.here().tokens().await, [again.token()]);
}

// G222
pub async fn a_call_of_no_stream_adopts_and_leaves_the_number(fixture: &Fixture) {
    fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b").on(2)).await;
    let unary = NewClaim {
        stream: None,
        ..b.again()
    };
    fixture.there().queue(unary).await;
    is_superseded(&fixture.here(), &b.again().on(1)).await;
    fixture.here().queue(b.again().on(2)).await;
    assert_eq!(fixture.here().owners().await.1, ["b"]);
}

// G222
pub async fn the_grant_of_a_place_that_a_call_of_no_stream_adopted_has_the_number(fixture: &Fixture) {
    for promotes in [false, true] {
        let a = fixture.here().hold(claim("a")).await;
        let b = fixture.here().queue(claim("b").on(2)).await;
        let unary = NewClaim {
            stream: None,
            ..b.again()
        };
        let unary = fixture.there().queue(unary).await;
        let granted = match promotes {
            true => {
                fixture.here().release(&a).await;
                fixture.there().take(&unary).await
            }
            false => match fixture.there().release_to(&a, &unary).await.next {
                Some(grant) => fixture.there().known(unary.clone(), grant),
                None => fixture.there().take(&unary).await,
            },
        };
        is_superseded(&fixture.here(), &b.again().on(1)).await;
        fixture.there().release(&granted).await;
    }
}

// G222
pub async fn an_update_of_an_earlier_stream_changes_nothing(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").on(1)).await;
    let updated = fixture.there().update_on(Some(stream(2)), &a, "second").await;
    assert_eq!(updated, UpdateOutcome::Updated);
    for replica in [fixture.here(), fixture.there()] {
        let late = replica.update_on(Some(stream(1)), &a, "first").await;
        assert_eq!(late, UpdateOutcome::Superseded);
    }
    assert_eq!(fixture.here().holders().await[0].metadata, note_of("second"));
    assert_eq!(fixture.here().update(&a, "third").await, UpdateOutcome::Updated);
}

// G223
pub async fn a_request_that_is_cancelled_leaves_the_queue_and_is_forgotten(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b").on(1)).await;
    let c = fixture.here().queue(claim("c")).await;
    let cancelled = fixture.there().cancel(&b, stream(2)).await;
    assert_eq!(cancelled, Released::Ended(Cause::Cancelled));
    assert_eq!(fixture.here().owners().await.1, ["c"]);
    let older = fixture.here().promote(&b).await;
    assert!(matches!(older, AcquireOutcome::Cancelled), "{older:?}");
    assert_eq!(fixture.there().cancel(&b, stream(2)).await, Released::Nothing);
    fixture.there().queue(b.again().on(2)).await;
    fixture.here().release(&a).await;
    fixture.here().take(&c).await;
}

// G223
pub async fn a_grant_that_is_cancelled_is_released_and_wakes_the_next(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").on(1)).await;
    let b = fixture.here().queue(claim("b")).await;
    let cancelled = fixture.there().cancel(&a.claim, stream(2)).await;
    assert_eq!(cancelled, Released::Ended(Cause::Undone));
    fixture.here().take(&b).await;
    fixture.there().queue(a.claim.again().on(2)).await;
}

// G223
pub async fn a_request_of_a_later_stream_or_of_another_caller_is_not_cancelled(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").on(2)).await;
    let b = fixture.here().queue(claim("b").on(2)).await;
    let c = fixture.here().queue(claim("c")).await;
    for (claim, number) in [(&a.claim, 1), (&b, 1), (&c, 9)] {
        let cancelled = fixture.there().cancel(claim, stream(number)).await;
        assert_eq!(cancelled, Released::Adopted);
    }
    assert_eq!(
        fixture.here().owners().await,
        (vec!["a".into()], vec!["b".into(), "c".into()])
    );
}

// G220
pub async fn a_call_owns_what_it_has_until_another_has_found_it(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    assert!(fixture.here().owns(&a.claim).await && fixture.here().owns(&b).await);
    let again = fixture.there().queue(b.again()).await;
    held(fixture.there().acquire(&a.claim.again()).await);
    assert!(!fixture.here().owns(&a.claim).await && !fixture.here().owns(&b).await);
    assert!(fixture.there().owns(&again).await);
    fixture.there().undo(&again).await;
    assert!(!fixture.there().owns(&again).await);
}
