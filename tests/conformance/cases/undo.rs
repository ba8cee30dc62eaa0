//! Undoing a call: it ends what the call acquired, and nothing that another call has found.

use fencepost::backend::{AcquireOutcome, MARKS_KEPT, NewClaim, Released, RenewOutcome};
use fencepost::claim::Cause;
use std::time::Duration;

use crate::claims::{Asking, claim};
use crate::fixture::Fixture;
use crate::replica::waiting;

/// Asserts that a call has no claim any more, by its mark or because nothing is left of it.
async fn is_over(fixture: &Fixture, call: &NewClaim) {
    let place = fixture.here().promote(call).await;
    assert!(
        matches!(place, AcquireOutcome::Cancelled | AcquireOutcome::Gone),
        "{place:?}"
    );
}

pub async fn a_waiter_that_is_undone_leaves_the_queue(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    assert_eq!(fixture.here().undo(&b).await, Released::Ended(Cause::Cancelled));
    assert!(fixture.here().waiters().await.is_empty());
    fixture.here().release(&a).await;
    is_over(fixture, &b).await;
    assert!(fixture.here().is_free().await);
}

// G16
pub async fn a_grant_that_is_undone_frees_the_lock(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    assert_eq!(fixture.here().undo(&a.claim).await, Released::Ended(Cause::Undone));
    assert!(fixture.here().is_free().await);
    assert!(matches!(fixture.here().renew(&a, None).await, RenewOutcome::Gone(_)));
}

pub async fn a_grant_that_was_waited_for_is_undone_too(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    fixture.here().release(&a).await;
    fixture.here().take(&b).await;
    assert_eq!(fixture.here().undo(&b).await, Released::Ended(Cause::Undone));
    assert!(fixture.here().is_free().await);
}

// G17
pub async fn an_undo_that_comes_first_keeps_its_acquire_out(fixture: &Fixture) {
    let late = claim("a");
    assert_eq!(fixture.here().undo(&late).await, Released::Nothing);
    for _ in 0..2 {
        assert!(matches!(fixture.here().acquire(&late).await, AcquireOutcome::Cancelled));
    }
    assert!(matches!(
        fixture.here().acquire(&late.clone().trying()).await,
        AcquireOutcome::Cancelled
    ));
    assert!(fixture.here().is_free().await);
    fixture.here().hold(claim("b").trying()).await;
}

// G17
pub async fn an_undo_that_comes_first_keeps_its_acquire_out_of_the_queue(fixture: &Fixture) {
    fixture.here().hold(claim("a")).await;
    let late = claim("b");
    assert_eq!(fixture.here().undo(&late).await, Released::Nothing);
    assert!(matches!(fixture.here().acquire(&late).await, AcquireOutcome::Cancelled));
    assert!(fixture.here().waiters().await.is_empty());
}

pub async fn a_mark_names_one_call_and_not_its_claim(fixture: &Fixture) {
    let late = claim("a");
    fixture.here().undo(&late).await;
    fixture.here().hold(late.again()).await;
    assert!(matches!(fixture.here().acquire(&late).await, AcquireOutcome::Cancelled));
}

pub async fn marks_are_kept(fixture: &Fixture) {
    let late = claim("a");
    fixture.here().undo(&late).await;
    let nearly = if fixture.has_minutes() {
        MARKS_KEPT - fixture.short()
    } else {
        fixture.short()
    };
    fixture.sleep(nearly).await;
    assert!(matches!(fixture.here().acquire(&late).await, AcquireOutcome::Cancelled));
    assert!(nearly > Duration::ZERO && fixture.here().is_free().await);
}

// G22
pub async fn an_undo_of_the_older_call_leaves_an_adopted_waiter(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let older = fixture.here().queue(claim("b")).await;
    let newer = fixture.there().queue(older.again()).await;
    assert_eq!(fixture.here().undo(&older).await, Released::Adopted);
    assert_eq!(fixture.here().inspect().await.waiter_count, 1);
    fixture.here().release(&a).await;
    is_over(fixture, &older).await;
    let newer = fixture.there().take(&newer).await;
    assert_eq!(fixture.here().undo(&older).await, Released::Adopted);
    assert_eq!(fixture.here().tokens().await, [newer.token()]);
}

pub async fn an_undo_of_the_newer_call_takes_an_adopted_waiter_out(fixture: &Fixture) {
    fixture.here().hold(claim("a")).await;
    let older = fixture.here().queue(claim("b")).await;
    let newer = fixture.there().queue(older.again()).await;
    assert_eq!(fixture.there().undo(&newer).await, Released::Ended(Cause::Cancelled));
    assert!(fixture.here().waiters().await.is_empty());
    let place = fixture.here().promote(&older).await;
    assert!(
        matches!(
            place,
            AcquireOutcome::Cancelled | AcquireOutcome::Gone | AcquireOutcome::Superseded
        ),
        "{place:?}"
    );
}

// G16
pub async fn a_hold_that_a_retry_has_found_is_undone_by_neither_call(fixture: &Fixture) {
    let older = fixture.here().hold(claim("a")).await;
    let newer = fixture.there().hold(older.claim.again()).await;
    assert_eq!(fixture.here().undo(&older.claim).await, Released::Adopted);
    assert_eq!(fixture.there().undo(&newer.claim).await, Released::Adopted);
    assert_eq!(fixture.here().tokens().await, [older.token()]);
    fixture.here().renewed(&newer, None).await;
    assert_eq!(fixture.here().release(&newer).await, Released::Ended(Cause::Released));
    assert!(fixture.here().is_free().await);
}

pub async fn a_hold_granted_to_the_adopter_of_a_waiter_is_undone_by_it(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let older = fixture.here().queue(claim("b")).await;
    let newer = fixture.here().queue(older.again()).await;
    fixture.here().release(&a).await;
    fixture.here().take(&newer).await;
    assert_eq!(fixture.here().undo(&newer).await, Released::Ended(Cause::Undone));
    assert!(fixture.here().is_free().await);
}

pub async fn an_undo_that_comes_first_keeps_its_retry_from_adopting(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let older = fixture.here().queue(claim("b")).await;
    let newer = older.again();
    assert_eq!(fixture.there().undo(&newer).await, Released::Adopted);
    assert!(matches!(
        fixture.there().acquire(&newer).await,
        AcquireOutcome::Cancelled
    ));
    fixture.here().release(&a).await;
    let held = fixture.here().take(&older).await;
    assert!(matches!(
        fixture.there().acquire(&newer).await,
        AcquireOutcome::Cancelled
    ));
    assert_eq!(fixture.here().undo(&held.claim).await, Released::Ended(Cause::Undone));
}

pub async fn a_try_that_takes_its_claim_out_ends_the_older_call(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let older = fixture.here().queue(claim("b")).await;
    let place = fixture.there().acquire(&older.again().trying()).await;
    assert_eq!(crate::replica::busy(place).expect("somebody holds").token, a.token());
    assert!(fixture.here().waiters().await.is_empty());
    assert!(matches!(
        fixture.here().promote(&older).await,
        AcquireOutcome::Cancelled
    ));
    assert!(matches!(
        fixture.here().acquire(&older).await,
        AcquireOutcome::Cancelled
    ));
    fixture.here().release(&a).await;
    assert!(matches!(
        fixture.here().promote(&older).await,
        AcquireOutcome::Cancelled
    ));
    assert!(fixture.here().is_free().await);
}

pub async fn a_try_that_takes_its_claim_out_wakes_the_older_call(fixture: &Fixture) {
    let mut notifications = fixture.notifications();
    fixture.here().hold(claim("a")).await;
    let older = fixture.here().queue(claim("b")).await;
    notifications.all().await;
    crate::replica::busy(fixture.there().acquire(&older.again().trying()).await);
    notifications.until(fixture.here().name(), &older).await;
    assert!(matches!(
        fixture.here().promote(&older).await,
        AcquireOutcome::Cancelled
    ));
}

pub async fn an_undo_of_a_call_that_nobody_knows_harms_nobody(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    assert_eq!(fixture.here().undo(&claim("c")).await, Released::Nothing);
    assert_eq!(fixture.here().tokens().await, [a.token()]);
    waiting(fixture.here().promote(&b).await);
}

pub async fn a_repeated_undo_harms_nobody(fixture: &Fixture) {
    fixture.here().hold(claim("a")).await;
    let first = fixture.here().queue(claim("b")).await;
    fixture.here().undo(&first).await;
    let second = fixture.here().queue(first.again()).await;
    let found = fixture.here().undo(&first).await;
    assert!(!matches!(found, Released::Ended(_)), "{found:?}");
    waiting(fixture.here().promote(&second).await);
}

pub async fn an_undo_after_the_release_takes_nothing(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    fixture.here().release(&a).await;
    let b = fixture.here().hold(claim("b")).await;
    let found = fixture.here().undo(&a.claim).await;
    assert!(!matches!(found, Released::Ended(_)), "{found:?}");
    assert_eq!(fixture.here().tokens().await, [b.token()]);
    assert_eq!(fixture.here().release(&a).await, Released::EndedBefore(Cause::Released));
}

pub async fn an_undo_of_a_failed_try_harms_nobody(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = claim("b").trying();
    fixture.here().acquire(&b).await;
    let found = fixture.here().undo(&b).await;
    assert!(!matches!(found, Released::Ended(_)), "{found:?}");
    assert_eq!(fixture.here().tokens().await, [a.token()]);
}

pub async fn a_reentry_that_is_undone_takes_only_its_hold(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").reentrant()).await;
    let more = fixture.here().hold(claim("a").reentrant()).await;
    assert_eq!(fixture.here().undo(&more.claim).await, Released::Ended(Cause::Undone));
    let holders = fixture.here().holders().await;
    assert_eq!((holders[0].token, holders[0].holds), (a.token(), 1));
    assert!(matches!(fixture.here().renew(&more, None).await, RenewOutcome::Gone(_)));
    fixture.here().renewed(&a, None).await;
}

pub async fn a_first_hold_that_is_undone_leaves_the_reentry(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").reentrant()).await;
    let more = fixture.here().hold(claim("a").reentrant()).await;
    assert_eq!(fixture.here().undo(&a.claim).await, Released::Ended(Cause::Undone));
    let holders = fixture.here().holders().await;
    assert_eq!((holders[0].token, holders[0].holds), (a.token(), 1));
    fixture.here().renewed(&more, None).await;
    assert_eq!(fixture.here().release(&more).await, Released::Ended(Cause::Released));
    assert!(fixture.here().is_free().await);
}

pub async fn a_reentry_that_a_retry_has_found_stays(fixture: &Fixture) {
    fixture.here().hold(claim("a").reentrant()).await;
    let more = fixture.here().hold(claim("a").reentrant()).await;
    fixture.there().hold(more.claim.again()).await;
    assert_eq!(fixture.here().undo(&more.claim).await, Released::Adopted);
    assert_eq!(fixture.here().holders().await[0].holds, 2);
}

pub async fn an_undo_that_comes_first_keeps_its_reentry_out(fixture: &Fixture) {
    fixture.here().hold(claim("a").reentrant()).await;
    let late = claim("a").reentrant();
    assert_eq!(fixture.here().undo(&late).await, Released::Nothing);
    assert!(matches!(fixture.here().acquire(&late).await, AcquireOutcome::Cancelled));
    assert_eq!(fixture.here().holders().await[0].holds, 1);
}
