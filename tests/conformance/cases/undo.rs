//! Undoing a call: it ends what the call entered, and nothing that another call has found.

use fencepost::backend::{Found, MARKS_KEPT, NewClaim, Place, Renewal};
use fencepost::claim::Cause;
use std::time::Duration;

use crate::bed::Bed;
use crate::claims::{Asking, claim};
use crate::replica::waiting;

/// Asserts that a call has no claim any more, by its mark or because nothing is left of it.
async fn is_over(bed: &Bed, call: &NewClaim) {
    let place = bed.here().take_up(call).await;
    assert!(matches!(place, Place::Left | Place::Gone), "{place:?}");
}

pub async fn a_waiter_that_is_undone_leaves_the_queue(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    assert_eq!(bed.here().undo(&b).await, Found::Ended(Cause::Left));
    assert!(bed.here().waiters().await.is_empty());
    bed.here().release(&a).await;
    is_over(bed, &b).await;
    assert!(bed.here().is_free().await);
}

pub async fn a_grant_that_is_undone_frees_the_lock(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    assert_eq!(bed.here().undo(&a.claim).await, Found::Ended(Cause::TakenBack));
    assert!(bed.here().is_free().await);
    assert!(matches!(bed.here().renew(&a, None).await, Renewal::Gone(_)));
}

pub async fn a_grant_that_was_waited_for_is_undone_too(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    bed.here().release(&a).await;
    bed.here().take(&b).await;
    assert_eq!(bed.here().undo(&b).await, Found::Ended(Cause::TakenBack));
    assert!(bed.here().is_free().await);
}

pub async fn an_undo_that_comes_first_keeps_its_enter_out(bed: &Bed) {
    let late = claim("a");
    assert_eq!(bed.here().undo(&late).await, Found::Nothing);
    for _ in 0..2 {
        assert!(matches!(bed.here().enter(&late).await, Place::Left));
    }
    assert!(matches!(bed.here().enter(&late.clone().trying()).await, Place::Left));
    assert!(bed.here().is_free().await);
    bed.here().hold(claim("b").trying()).await;
}

pub async fn an_undo_that_comes_first_keeps_its_enter_out_of_the_queue(bed: &Bed) {
    bed.here().hold(claim("a")).await;
    let late = claim("b");
    assert_eq!(bed.here().undo(&late).await, Found::Nothing);
    assert!(matches!(bed.here().enter(&late).await, Place::Left));
    assert!(bed.here().waiters().await.is_empty());
}

pub async fn a_mark_names_one_call_and_not_its_claim(bed: &Bed) {
    let late = claim("a");
    bed.here().undo(&late).await;
    bed.here().hold(late.again()).await;
    assert!(matches!(bed.here().enter(&late).await, Place::Left));
}

pub async fn marks_are_kept(bed: &Bed) {
    let late = claim("a");
    bed.here().undo(&late).await;
    let nearly = if bed.has_minutes() {
        MARKS_KEPT - bed.short()
    } else {
        bed.short()
    };
    bed.sleep(nearly).await;
    assert!(matches!(bed.here().enter(&late).await, Place::Left));
    assert!(nearly > Duration::ZERO && bed.here().is_free().await);
}

pub async fn an_undo_of_the_older_call_leaves_an_adopted_waiter(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let older = bed.here().queue(claim("b")).await;
    let newer = bed.there().queue(older.again()).await;
    assert_eq!(bed.here().undo(&older).await, Found::Adopted);
    assert_eq!(bed.here().look().await.waiter_count, 1);
    bed.here().release(&a).await;
    is_over(bed, &older).await;
    let newer = bed.there().take(&newer).await;
    assert_eq!(bed.here().undo(&older).await, Found::Adopted);
    assert_eq!(bed.here().tokens().await, [newer.token()]);
}

pub async fn an_undo_of_the_newer_call_takes_an_adopted_waiter_out(bed: &Bed) {
    bed.here().hold(claim("a")).await;
    let older = bed.here().queue(claim("b")).await;
    let newer = bed.there().queue(older.again()).await;
    assert_eq!(bed.there().undo(&newer).await, Found::Ended(Cause::Left));
    assert!(bed.here().waiters().await.is_empty());
    let place = bed.here().take_up(&older).await;
    assert!(
        matches!(place, Place::Left | Place::Gone | Place::Superseded),
        "{place:?}"
    );
}

pub async fn a_hold_that_a_retry_has_found_is_undone_by_neither_call(bed: &Bed) {
    let older = bed.here().hold(claim("a")).await;
    let newer = bed.there().hold(older.claim.again()).await;
    assert_eq!(bed.here().undo(&older.claim).await, Found::Adopted);
    assert_eq!(bed.there().undo(&newer.claim).await, Found::Adopted);
    assert_eq!(bed.here().tokens().await, [older.token()]);
    bed.here().renewed(&newer, None).await;
    assert_eq!(bed.here().release(&newer).await, Found::Ended(Cause::Released));
    assert!(bed.here().is_free().await);
}

pub async fn a_hold_granted_to_the_adopter_of_a_waiter_is_undone_by_it(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let older = bed.here().queue(claim("b")).await;
    let newer = bed.here().queue(older.again()).await;
    bed.here().release(&a).await;
    bed.here().take(&newer).await;
    assert_eq!(bed.here().undo(&newer).await, Found::Ended(Cause::TakenBack));
    assert!(bed.here().is_free().await);
}

pub async fn an_undo_that_comes_first_keeps_its_retry_from_adopting(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let older = bed.here().queue(claim("b")).await;
    let newer = older.again();
    assert_eq!(bed.there().undo(&newer).await, Found::Adopted);
    assert!(matches!(bed.there().enter(&newer).await, Place::Left));
    bed.here().release(&a).await;
    let held = bed.here().take(&older).await;
    assert!(matches!(bed.there().enter(&newer).await, Place::Left));
    assert_eq!(bed.here().undo(&held.claim).await, Found::Ended(Cause::TakenBack));
}

pub async fn a_try_that_takes_its_claim_out_ends_the_older_call(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let older = bed.here().queue(claim("b")).await;
    let place = bed.there().enter(&older.again().trying()).await;
    assert_eq!(crate::replica::busy(place).expect("somebody holds").token, a.token());
    assert!(bed.here().waiters().await.is_empty());
    assert!(matches!(bed.here().take_up(&older).await, Place::Left));
    assert!(matches!(bed.here().enter(&older).await, Place::Left));
    bed.here().release(&a).await;
    assert!(matches!(bed.here().take_up(&older).await, Place::Left));
    assert!(bed.here().is_free().await);
}

pub async fn a_try_that_takes_its_claim_out_wakes_the_older_call(bed: &Bed) {
    let mut wakes = bed.wakes();
    bed.here().hold(claim("a")).await;
    let older = bed.here().queue(claim("b")).await;
    wakes.all().await;
    crate::replica::busy(bed.there().enter(&older.again().trying()).await);
    wakes.until(bed.here().name(), &older).await;
    assert!(matches!(bed.here().take_up(&older).await, Place::Left));
}

pub async fn an_undo_of_a_call_that_nobody_knows_harms_nobody(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    assert_eq!(bed.here().undo(&claim("c")).await, Found::Nothing);
    assert_eq!(bed.here().tokens().await, [a.token()]);
    waiting(bed.here().take_up(&b).await);
}

pub async fn a_repeated_undo_harms_nobody(bed: &Bed) {
    bed.here().hold(claim("a")).await;
    let first = bed.here().queue(claim("b")).await;
    bed.here().undo(&first).await;
    let second = bed.here().queue(first.again()).await;
    let found = bed.here().undo(&first).await;
    assert!(!matches!(found, Found::Ended(_)), "{found:?}");
    waiting(bed.here().take_up(&second).await);
}

pub async fn an_undo_after_the_release_takes_nothing(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    bed.here().release(&a).await;
    let b = bed.here().hold(claim("b")).await;
    let found = bed.here().undo(&a.claim).await;
    assert!(!matches!(found, Found::Ended(_)), "{found:?}");
    assert_eq!(bed.here().tokens().await, [b.token()]);
    assert_eq!(bed.here().release(&a).await, Found::EndedBefore(Cause::Released));
}

pub async fn an_undo_of_a_failed_try_harms_nobody(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = claim("b").trying();
    bed.here().enter(&b).await;
    let found = bed.here().undo(&b).await;
    assert!(!matches!(found, Found::Ended(_)), "{found:?}");
    assert_eq!(bed.here().tokens().await, [a.token()]);
}

pub async fn a_reentry_that_is_undone_takes_only_its_hold(bed: &Bed) {
    let a = bed.here().hold(claim("a").reentrant()).await;
    let more = bed.here().hold(claim("a").reentrant()).await;
    assert_eq!(bed.here().undo(&more.claim).await, Found::Ended(Cause::TakenBack));
    let holders = bed.here().holders().await;
    assert_eq!((holders[0].token, holders[0].holds), (a.token(), 1));
    assert!(matches!(bed.here().renew(&more, None).await, Renewal::Gone(_)));
    bed.here().renewed(&a, None).await;
}

pub async fn a_first_hold_that_is_undone_leaves_the_reentry(bed: &Bed) {
    let a = bed.here().hold(claim("a").reentrant()).await;
    let more = bed.here().hold(claim("a").reentrant()).await;
    assert_eq!(bed.here().undo(&a.claim).await, Found::Ended(Cause::TakenBack));
    let holders = bed.here().holders().await;
    assert_eq!((holders[0].token, holders[0].holds), (a.token(), 1));
    bed.here().renewed(&more, None).await;
    assert_eq!(bed.here().release(&more).await, Found::Ended(Cause::Released));
    assert!(bed.here().is_free().await);
}

pub async fn a_reentry_that_a_retry_has_found_stays(bed: &Bed) {
    bed.here().hold(claim("a").reentrant()).await;
    let more = bed.here().hold(claim("a").reentrant()).await;
    bed.there().hold(more.claim.again()).await;
    assert_eq!(bed.here().undo(&more.claim).await, Found::Adopted);
    assert_eq!(bed.here().holders().await[0].holds, 2);
}

pub async fn an_undo_that_comes_first_keeps_its_reentry_out(bed: &Bed) {
    bed.here().hold(claim("a").reentrant()).await;
    let late = claim("a").reentrant();
    assert_eq!(bed.here().undo(&late).await, Found::Nothing);
    assert!(matches!(bed.here().enter(&late).await, Place::Left));
    assert_eq!(bed.here().holders().await[0].holds, 1);
}
