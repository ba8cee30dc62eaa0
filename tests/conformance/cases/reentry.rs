//! Re-entry: more holds on one claim.

use std::time::Duration;

use fencepost::backend::{ClaimLimits, FINISHED_KEPT, Found, Refusal, Renewal};
use fencepost::claim::Cause;

use crate::bed::{Bed, LONG};
use crate::claims::{Asking, ROOMY, claim};
use crate::replica::{busy, refused, waiting};

pub async fn a_reentry_adds_a_hold_with_the_same_token(bed: &Bed) {
    let a = bed.here().hold(claim("a").reentrant()).await;
    let more = bed.there().hold(claim("a").reentrant().trying()).await;
    assert_eq!((more.token(), more.grant.claim), (a.token(), a.grant.claim));
    assert_eq!((more.grant.holds, more.grant.waited), (2, Duration::ZERO));
    assert_eq!(more.grant.secret, more.claim.secret);
    assert_ne!(more.lease, a.lease);
    let queue = bed.here().look().await;
    assert_eq!((queue.holder_count, queue.holders[0].holds), (1, 2));
}

pub async fn the_lock_is_free_when_every_hold_is_released(bed: &Bed) {
    let a = bed.here().hold(claim("a").reentrant()).await;
    let more = bed.here().hold(claim("a").reentrant()).await;
    let b = bed.here().queue(claim("b")).await;
    assert_eq!(bed.here().release(&a).await, Found::Ended(Cause::Released));
    waiting(bed.here().take_up(&b).await);
    assert_eq!(bed.here().holders().await[0].holds, 1);
    assert_eq!(bed.here().release(&more).await, Found::Ended(Cause::Released));
    bed.here().take(&b).await;
}

pub async fn a_repeated_release_of_a_hold_leaves_the_others(bed: &Bed) {
    let a = bed.here().hold(claim("a").reentrant()).await;
    let more = bed.here().hold(claim("a").reentrant()).await;
    bed.here().release(&more).await;
    for _ in 0..2 {
        assert_eq!(bed.here().release(&more).await, Found::EndedBefore(Cause::Released));
    }
    assert_eq!(
        bed.here().renew(&more, None).await,
        Renewal::Gone(Some(Cause::Released))
    );
    assert_eq!(bed.here().tokens().await, [a.token()]);
    bed.here().renewed(&a, None).await;
}

pub async fn both_sides_must_be_reentrant(bed: &Bed) {
    bed.here().on("newcomer").hold(claim("a")).await;
    waiting(bed.here().on("newcomer").enter(&claim("a").reentrant()).await);
    bed.here().on("holder").hold(claim("a").reentrant()).await;
    busy(bed.here().on("holder").enter(&claim("a").trying()).await);
    assert_eq!(bed.here().on("holder").holders().await[0].holds, 1);
}

pub async fn another_owner_or_identity_does_not_reenter(bed: &Bed) {
    bed.here().hold(claim("a").reentrant().proven("alice")).await;
    waiting(bed.here().enter(&claim("b").reentrant().proven("alice")).await);
    waiting(bed.here().enter(&claim("a").reentrant().proven("bob")).await);
    waiting(bed.here().enter(&claim("a").reentrant()).await);
    let queue = bed.here().look().await;
    assert_eq!((queue.holders[0].holds, queue.waiter_count), (1, 3));
}

pub async fn a_reentry_of_another_mode_is_refused(bed: &Bed) {
    bed.here().on("exclusive").hold(claim("a").reentrant()).await;
    bed.here()
        .on("permits")
        .hold(claim("a").semaphore(1, 5).reentrant())
        .await;
    let shared = claim("a").shared().reentrant();
    let more = claim("a").semaphore(2, 5).reentrant();
    for (lock, asking) in [("exclusive", shared), ("permits", more)] {
        match refused(bed.here().on(lock).enter(&asking).await) {
            Refusal::OtherParameters { field } => assert!(field.starts_with("mode"), "{field}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(bed.here().on(lock).holders().await[0].holds, 1);
    }
}

pub async fn a_reentry_passes_those_who_wait(bed: &Bed) {
    let a = bed.here().hold(claim("a").reentrant()).await;
    let b = bed.here().queue(claim("b")).await;
    let more = bed.here().hold(claim("a").reentrant()).await;
    bed.here().release(&more).await;
    bed.here().release(&a).await;
    bed.here().take(&b).await;
}

pub async fn a_waiting_claim_is_not_reentered(bed: &Bed) {
    let x = bed.here().hold(claim("x")).await;
    let a = bed.here().queue(claim("a").reentrant()).await;
    let more = bed.here().queue(claim("a").reentrant()).await;
    assert_eq!(bed.here().look().await.waiter_count, 2);
    bed.here().release(&x).await;
    assert_eq!(bed.here().take(&a).await.grant.holds, 1);
    bed.here().undo(&more).await;
}

pub async fn the_holds_share_the_later_expiry(bed: &Bed) {
    let a = bed.here().hold(claim("a").reentrant()).await;
    let shorter = bed.here().hold(claim("a").reentrant().living(bed.short())).await;
    assert!(shorter.grant.ttl > LONG / 2, "{:?}", shorter.grant.ttl);
    let longer = bed.here().hold(claim("a").reentrant().living(3 * LONG)).await;
    assert!(longer.grant.ttl >= 3 * LONG, "{:?}", longer.grant.ttl);
    assert!(bed.here().renewed(&a, Some(bed.short())).await.ttl > 2 * LONG);
}

pub async fn any_hold_renews_for_all(bed: &Bed) {
    let a = bed.here().hold(claim("a").reentrant().living(bed.ample())).await;
    let more = bed.here().hold(claim("a").reentrant().living(bed.ample())).await;
    assert_eq!(bed.there().renewed(&more, Some(LONG)).await.holds, 2);
    bed.outlive(bed.ample()).await;
    bed.here().renewed(&a, None).await;
    assert_eq!(bed.here().tokens().await, [a.token()]);
}

pub async fn an_expiry_ends_every_hold(bed: &Bed) {
    let a = bed.here().hold(claim("a").reentrant().living(bed.ample())).await;
    let more = bed.here().hold(claim("a").reentrant().living(bed.ample())).await;
    bed.outlive(bed.ample()).await;
    for hold in [&a, &more] {
        assert_eq!(bed.here().renew(hold, None).await, Renewal::Gone(Some(Cause::Expired)));
        assert_eq!(bed.here().release(hold).await, Found::EndedBefore(Cause::Expired));
    }
    assert!(bed.here().is_free().await);
}

pub async fn a_force_ends_every_hold(bed: &Bed) {
    let a = bed.here().hold(claim("a").reentrant()).await;
    let more = bed.here().hold(claim("a").reentrant()).await;
    assert_eq!(bed.here().force(a.token()).await, Found::Ended(Cause::Forced));
    for hold in [&a, &more] {
        assert_eq!(bed.here().renew(hold, None).await, Renewal::Gone(Some(Cause::Forced)));
        assert_eq!(bed.here().release(hold).await, Found::EndedBefore(Cause::Forced));
    }
    assert!(bed.here().is_free().await);
}

pub async fn readers_reenter_their_own_claim(bed: &Bed) {
    let a = bed.here().hold(claim("a").shared().reentrant()).await;
    let b = bed.here().hold(claim("b").shared().reentrant()).await;
    let more = bed.here().hold(claim("b").shared().reentrant()).await;
    assert_eq!((more.token(), more.grant.holds), (b.token(), 2));
    assert_ne!(more.token(), a.token());
    assert_eq!(bed.here().look().await.holder_count, 2);
}

pub async fn a_claim_takes_holds_up_to_its_limit(bed: &Bed) {
    let asking = || claim("a").reentrant().within(ClaimLimits { holds: 2, ..ROOMY });
    bed.here().hold(asking()).await;
    let more = bed.here().hold(asking()).await;
    super::limits::is_full(bed.here().enter(&asking()).await, 2);
    bed.here().hold(more.claim.again()).await;
    bed.here().release(&more).await;
    assert_eq!(bed.here().hold(asking()).await.grant.holds, 2);
}

pub async fn a_retried_reentry_is_one_hold(bed: &Bed) {
    bed.here().hold(claim("a").reentrant()).await;
    let more = bed.here().hold(claim("a").reentrant()).await;
    let again = bed.there().hold(more.claim.again()).await;
    assert_eq!(again.lease, more.lease);
    assert_eq!((again.grant.holds, again.grant.waited), (2, Duration::ZERO));
}

pub async fn a_retry_of_a_released_reentry_learns_so(bed: &Bed) {
    let a = bed.here().hold(claim("a").reentrant()).await;
    let more = bed.here().hold(claim("a").reentrant()).await;
    bed.here().release(&more).await;
    super::retries::is_finished(bed.here().enter(&more.claim.again()).await, Cause::Released);
    assert_eq!(bed.here().holders().await[0].holds, 1);
    assert_eq!(bed.here().hold(a.claim.again()).await.lease, a.lease);
}

pub async fn a_first_hold_that_is_forgotten_may_come_again(bed: &Bed) {
    let asking = claim("a").reentrant().living(10 * FINISHED_KEPT);
    let a = bed.here().hold(asking.clone()).await;
    let more = bed.here().hold(claim("a").reentrant()).await;
    bed.here().release(&a).await;
    bed.sleep(2 * FINISHED_KEPT).await;
    let again = bed.here().hold(asking.again()).await;
    assert_eq!((again.token(), again.grant.holds), (a.token(), 2));
    assert_eq!(bed.here().renew(&a, None).await, Renewal::Gone(None));
    assert_eq!(bed.here().release(&more).await, Found::Ended(Cause::Released));
    assert_eq!(bed.here().release(&again).await, Found::Ended(Cause::Released));
    assert!(bed.here().is_free().await);
}

pub async fn a_renewal_gives_a_hold_the_ttl_that_it_was_last_given(bed: &Bed) {
    let a = bed.here().hold(claim("a").reentrant().living(LONG)).await;
    let more = bed.here().hold(claim("a").reentrant().living(bed.short())).await;
    bed.sleep(bed.short()).await;
    let renewed = bed.here().renewed(&a, None).await;
    assert!(renewed.ttl > LONG - bed.short(), "{renewed:?}");
    assert_eq!(bed.here().release(&more).await, Found::Ended(Cause::Released));
    bed.sleep(bed.short()).await;
    let renewed = bed.here().renewed(&a, None).await;
    assert!(renewed.ttl > LONG - bed.short(), "{renewed:?}");
}

pub async fn a_full_queue_lets_its_holder_reenter(bed: &Bed) {
    let asking = |owner| claim(owner).reentrant().within(ClaimLimits { queue: 1, ..ROOMY });
    bed.here().hold(asking("a")).await;
    assert_eq!(bed.here().hold(asking("a")).await.grant.holds, 2);
    super::limits::is_full(bed.here().enter(&asking("b")).await, 1);
}
