//! Re-entry: more holds on one claim.

use std::time::Duration;

use fencepost::backend::{ClaimLimits, FINISHED_KEPT, Refusal, Released, RenewOutcome};
use fencepost::claim::Cause;

use crate::claims::{Asking, ROOMY, claim};
use crate::fixture::{Fixture, LONG};
use crate::replica::{busy, refused, waiting};

// G20
pub async fn a_reentry_adds_a_hold_with_the_same_token(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").reentrant()).await;
    let more = fixture.there().hold(claim("a").reentrant().trying()).await;
    assert_eq!(more.token(), a.token());
    assert_eq!((more.grant.holds, more.grant.waited), (2, Duration::ZERO));
    assert_eq!(more.grant.secret, more.claim.secret);
    assert_ne!(more.lease, a.lease);
    let queue = fixture.here().inspect().await;
    assert_eq!((queue.holder_count, queue.holders[0].holds), (1, 2));
}

pub async fn a_hold_that_another_replica_added_is_renewed_and_released_here(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").reentrant()).await;
    let more = fixture.there().hold(claim("a").reentrant()).await;
    fixture.here().renewed(&more, None).await;
    assert_eq!(fixture.there().release(&a).await, Released::Ended(Cause::Released));
    let last = fixture.there().hold(claim("a").reentrant()).await;
    for hold in [&more, &last] {
        assert_eq!(fixture.here().release(hold).await, Released::Ended(Cause::Released));
    }
    assert!(fixture.here().inspect().await.holders.is_empty());
}

// G20
pub async fn the_lock_is_free_when_every_hold_is_released(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").reentrant()).await;
    let more = fixture.here().hold(claim("a").reentrant()).await;
    let b = fixture.here().queue(claim("b")).await;
    assert_eq!(fixture.here().release(&a).await, Released::Ended(Cause::Released));
    waiting(fixture.here().promote(&b).await);
    assert_eq!(fixture.here().holders().await[0].holds, 1);
    assert_eq!(fixture.here().release(&more).await, Released::Ended(Cause::Released));
    fixture.here().take(&b).await;
}

pub async fn a_repeated_release_of_a_hold_leaves_the_others(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").reentrant()).await;
    let more = fixture.here().hold(claim("a").reentrant()).await;
    fixture.here().release(&more).await;
    for _ in 0..2 {
        assert_eq!(
            fixture.here().release(&more).await,
            Released::EndedBefore(Cause::Released)
        );
    }
    assert_eq!(
        fixture.here().renew(&more, None).await,
        RenewOutcome::Gone(Some(Cause::Released))
    );
    assert_eq!(fixture.here().tokens().await, [a.token()]);
    fixture.here().renewed(&a, None).await;
}

// G19
pub async fn both_sides_must_be_reentrant(fixture: &Fixture) {
    fixture.here().on("newcomer").hold(claim("a")).await;
    waiting(fixture.here().on("newcomer").acquire(&claim("a").reentrant()).await);
    fixture.here().on("holder").hold(claim("a").reentrant()).await;
    busy(fixture.here().on("holder").acquire(&claim("a").trying()).await);
    assert_eq!(fixture.here().on("holder").holders().await[0].holds, 1);
}

// G19
pub async fn another_owner_or_identity_does_not_reenter(fixture: &Fixture) {
    fixture.here().hold(claim("a").reentrant().proven("alice")).await;
    waiting(fixture.here().acquire(&claim("b").reentrant().proven("alice")).await);
    waiting(fixture.here().acquire(&claim("a").reentrant().proven("bob")).await);
    waiting(fixture.here().acquire(&claim("a").reentrant()).await);
    let queue = fixture.here().inspect().await;
    assert_eq!((queue.holders[0].holds, queue.waiter_count), (1, 3));
}

// G19
pub async fn a_reentry_of_another_mode_is_refused(fixture: &Fixture) {
    fixture.here().on("exclusive").hold(claim("a").reentrant()).await;
    fixture
        .here()
        .on("permits")
        .hold(claim("a").semaphore(1, 5).reentrant())
        .await;
    let shared = claim("a").shared().reentrant();
    let more = claim("a").semaphore(2, 5).reentrant();
    for (lock, asking) in [("exclusive", shared), ("permits", more)] {
        match refused(fixture.here().on(lock).acquire(&asking).await) {
            Refusal::OtherParameters { field } => assert!(field.starts_with("mode"), "{field}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(fixture.here().on(lock).holders().await[0].holds, 1);
    }
}

pub async fn a_reentry_passes_those_who_wait(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").reentrant()).await;
    let b = fixture.here().queue(claim("b")).await;
    let more = fixture.here().hold(claim("a").reentrant()).await;
    fixture.here().release(&more).await;
    fixture.here().release(&a).await;
    fixture.here().take(&b).await;
}

pub async fn a_waiting_claim_is_not_reentered(fixture: &Fixture) {
    let x = fixture.here().hold(claim("x")).await;
    let a = fixture.here().queue(claim("a").reentrant()).await;
    let more = fixture.here().queue(claim("a").reentrant()).await;
    assert_eq!(fixture.here().inspect().await.waiter_count, 2);
    fixture.here().release(&x).await;
    assert_eq!(fixture.here().take(&a).await.grant.holds, 1);
    fixture.here().undo(&more).await;
}

pub async fn a_reader_that_does_not_hold_yet_is_not_reentered(fixture: &Fixture) {
    let x = fixture.here().hold(claim("x")).await;
    let b = fixture.here().queue(claim("b").shared()).await;
    let a = fixture.here().queue(claim("a").shared().reentrant()).await;
    fixture.here().release(&x).await;
    fixture.here().take(&b).await;
    let more = fixture.here().hold(claim("a").shared().reentrant()).await;
    assert_eq!(more.grant.holds, 1);
    assert_ne!(fixture.here().take(&a).await.token(), more.token());
}

// G20
pub async fn the_holds_share_the_later_expiry(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").reentrant()).await;
    let shorter = fixture
        .here()
        .hold(claim("a").reentrant().living(fixture.short()))
        .await;
    assert!(shorter.grant.ttl > LONG / 2, "{:?}", shorter.grant.ttl);
    let longer = fixture.here().hold(claim("a").reentrant().living(3 * LONG)).await;
    assert!(longer.grant.ttl >= 3 * LONG, "{:?}", longer.grant.ttl);
    assert!(fixture.here().renewed(&a, Some(fixture.short())).await.ttl > 2 * LONG);
}

// G20
pub async fn any_hold_renews_for_all(fixture: &Fixture) {
    let a = fixture
        .here()
        .hold(claim("a").reentrant().living(fixture.ample()))
        .await;
    let more = fixture
        .here()
        .hold(claim("a").reentrant().living(fixture.ample()))
        .await;
    assert_eq!(fixture.there().renewed(&more, Some(LONG)).await.holds, 2);
    fixture.outlive(fixture.ample()).await;
    fixture.here().renewed(&a, None).await;
    assert_eq!(fixture.here().tokens().await, [a.token()]);
}

pub async fn an_expiry_ends_every_hold(fixture: &Fixture) {
    let a = fixture
        .here()
        .hold(claim("a").reentrant().living(fixture.ample()))
        .await;
    let more = fixture
        .here()
        .hold(claim("a").reentrant().living(fixture.ample()))
        .await;
    fixture.outlive(fixture.ample()).await;
    for hold in [&a, &more] {
        assert_eq!(
            fixture.here().renew(hold, None).await,
            RenewOutcome::Gone(Some(Cause::Expired))
        );
        assert_eq!(
            fixture.here().release(hold).await,
            Released::EndedBefore(Cause::Expired)
        );
    }
    assert!(fixture.here().is_free().await);
}

// G9
pub async fn a_force_ends_every_hold(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").reentrant()).await;
    let more = fixture.here().hold(claim("a").reentrant()).await;
    assert_eq!(fixture.here().force(a.token()).await, Released::Ended(Cause::Forced));
    for hold in [&a, &more] {
        assert_eq!(
            fixture.here().renew(hold, None).await,
            RenewOutcome::Gone(Some(Cause::Forced))
        );
        assert_eq!(fixture.here().release(hold).await, Released::EndedBefore(Cause::Forced));
    }
    assert!(fixture.here().is_free().await);
}

pub async fn each_hold_is_remembered_with_its_own_end(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").reentrant()).await;
    let more = fixture.here().hold(claim("a").reentrant()).await;
    fixture.here().release(&more).await;
    fixture.here().force(a.token()).await;
    assert_eq!(
        fixture.here().release(&more).await,
        Released::EndedBefore(Cause::Released)
    );
    assert_eq!(fixture.here().release(&a).await, Released::EndedBefore(Cause::Forced));
}

pub async fn a_claim_that_ended_is_not_reentered(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").reentrant()).await;
    fixture.here().release(&a).await;
    let next = fixture.here().hold(claim("a").reentrant()).await;
    assert!(next.token() > a.token());
    assert_eq!(next.grant.holds, 1);
}

pub async fn readers_reenter_their_own_claim(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").shared().reentrant()).await;
    let b = fixture.here().hold(claim("b").shared().reentrant()).await;
    let more = fixture.here().hold(claim("b").shared().reentrant()).await;
    assert_eq!((more.token(), more.grant.holds), (b.token(), 2));
    assert_ne!(more.token(), a.token());
    assert_eq!(fixture.here().inspect().await.holder_count, 2);
}

pub async fn a_claim_takes_holds_up_to_its_limit(fixture: &Fixture) {
    let asking = || claim("a").reentrant().within(ClaimLimits { holds: 2, ..ROOMY });
    fixture.here().hold(asking()).await;
    let more = fixture.here().hold(asking()).await;
    super::limits::is_full(fixture.here().acquire(&asking()).await, 2);
    fixture.here().hold(more.claim.again()).await;
    fixture.here().release(&more).await;
    assert_eq!(fixture.here().hold(asking()).await.grant.holds, 2);
}

pub async fn a_retried_reentry_is_one_hold(fixture: &Fixture) {
    fixture.here().hold(claim("a").reentrant()).await;
    let more = fixture.here().hold(claim("a").reentrant()).await;
    let again = fixture.there().hold(more.claim.again()).await;
    assert_eq!(again.lease, more.lease);
    assert_eq!((again.grant.holds, again.grant.waited), (2, Duration::ZERO));
}

pub async fn a_retry_of_a_released_reentry_learns_so(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").reentrant()).await;
    let more = fixture.here().hold(claim("a").reentrant()).await;
    fixture.here().release(&more).await;
    super::retries::is_finished(fixture.here().acquire(&more.claim.again()).await, Cause::Released);
    assert_eq!(fixture.here().holders().await[0].holds, 1);
    assert_eq!(fixture.here().hold(a.claim.again()).await.lease, a.lease);
}

pub async fn a_first_hold_that_is_forgotten_may_come_again(fixture: &Fixture) {
    let asking = claim("a").reentrant().living(10 * FINISHED_KEPT);
    let a = fixture.here().hold(asking.clone()).await;
    let more = fixture.here().hold(claim("a").reentrant()).await;
    fixture.here().release(&a).await;
    fixture.sleep(2 * FINISHED_KEPT).await;
    let again = fixture.here().hold(asking.again()).await;
    assert_eq!((again.token(), again.grant.holds), (a.token(), 2));
    assert_eq!(fixture.here().renew(&a, None).await, RenewOutcome::Gone(None));
    assert_eq!(fixture.here().release(&more).await, Released::Ended(Cause::Released));
    assert_eq!(fixture.here().release(&again).await, Released::Ended(Cause::Released));
    assert!(fixture.here().is_free().await);
}

pub async fn a_renewal_gives_a_hold_the_ttl_that_it_was_last_given(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").reentrant().living(LONG)).await;
    let more = fixture
        .here()
        .hold(claim("a").reentrant().living(fixture.short()))
        .await;
    fixture.sleep(fixture.short()).await;
    let renewed = fixture.here().renewed(&a, None).await;
    assert!(renewed.ttl > LONG - fixture.short(), "{renewed:?}");
    assert_eq!(fixture.here().release(&more).await, Released::Ended(Cause::Released));
    fixture.sleep(fixture.short()).await;
    let renewed = fixture.here().renewed(&a, None).await;
    assert!(renewed.ttl > LONG - fixture.short(), "{renewed:?}");
}

pub async fn a_full_queue_lets_its_holder_reenter(fixture: &Fixture) {
    let asking = |owner| claim(owner).reentrant().within(ClaimLimits { queue: 1, ..ROOMY });
    fixture.here().hold(asking("a")).await;
    assert_eq!(fixture.here().hold(asking("a")).await.grant.holds, 2);
    super::limits::is_full(fixture.here().acquire(&asking("b")).await, 1);
}
