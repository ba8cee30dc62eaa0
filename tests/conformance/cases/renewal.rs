//! Renewal: it lengthens, never shortens, and brings nothing back.

use std::time::Duration;

use fencepost::backend::{AcquireOutcome, RenewOutcome};
use fencepost::claim::Cause;
use tokio::time::Instant;

use super::release::forgeries;
use crate::claims::{Asking, claim, ttl};
use crate::fixture::{Fixture, LONG};
use crate::replica::{Held, busy};

pub async fn a_renewal_gives_the_time_that_was_asked(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let grant = fixture.here().renewed(&a, Some(2 * LONG)).await;
    assert!(grant.ttl >= 2 * LONG, "{:?}", grant.ttl);
    assert_eq!(
        (grant.token, grant.claim, grant.secret),
        (a.token(), a.claim.id, a.claim.secret)
    );
    assert_eq!((grant.waited, grant.holds), (Duration::ZERO, 1));
    assert!(fixture.there().holders().await[0].remaining > LONG);
}

// G32
pub async fn any_replica_renews(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    assert!(fixture.there().renewed(&a, Some(2 * LONG)).await.ttl >= 2 * LONG);
    assert!(fixture.here().holders().await[0].remaining > LONG);
}

// G28
pub async fn a_lease_keeps_others_out_for_its_ttl_from_the_sending_of_its_call_or_renewal(fixture: &Fixture) {
    let ttl = fixture.ample();
    for renews in [false, true] {
        let mut sent = Instant::now();
        let a = fixture.here().hold(claim("a").living(ttl)).await;
        if renews {
            fixture.sleep(ttl / 3).await;
            sent = Instant::now();
            fixture.here().renewed(&a, None).await;
        }
        // A try is a claim of its own each time, as another call would be.
        let b = loop {
            let claim = claim("b").trying();
            match fixture.there().acquire(&claim).await {
                AcquireOutcome::Held(grant) => break fixture.there().known(claim, grant),
                busy => assert!(matches!(busy, AcquireOutcome::Busy(_)), "{busy:?}"),
            }
            fixture.sleep(ttl / 50).await;
        };
        assert!(sent.elapsed() >= ttl, "renewed: {renews}: {:?}", sent.elapsed());
        fixture.there().release(&b).await;
    }
}

pub async fn a_renewed_lease_outlives_its_first_ttl(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").living(fixture.ample())).await;
    for _ in 0..4 {
        fixture.sleep(fixture.ample() / 3).await;
        fixture.here().renewed(&a, Some(fixture.ample())).await;
    }
    assert_eq!(fixture.here().tokens().await, [a.token()]);
    busy(fixture.here().acquire(&claim("b").trying()).await);
}

pub async fn a_lease_outlives_the_ttl_of_an_earlier_one(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").living(fixture.short())).await;
    fixture.here().release(&a).await;
    let b = fixture.here().hold(claim("b")).await;
    fixture.outlive(fixture.short()).await;
    assert_eq!(fixture.here().tokens().await, [b.token()]);
    fixture.here().renewed(&b, None).await;
}

// G31
pub async fn a_shorter_renewal_never_shortens(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let grant = fixture.here().renewed(&a, Some(fixture.short())).await;
    assert!(grant.ttl > LONG / 2, "{:?}", grant.ttl);
    fixture.outlive(fixture.short()).await;
    assert_eq!(fixture.here().tokens().await, [a.token()]);
}

// G31
pub async fn a_renewal_without_a_ttl_uses_the_last_one(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    fixture.here().renewed(&a, Some(3 * LONG)).await;
    let grant = fixture.here().renewed(&a, None).await;
    assert!(grant.ttl > 2 * LONG, "{:?}", grant.ttl);
}

pub async fn the_last_ttl_may_be_a_shorter_one(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").living(2 * fixture.ample())).await;
    fixture.here().renewed(&a, Some(fixture.short())).await;
    fixture.sleep(fixture.ample()).await;
    let grant = fixture.here().renewed(&a, None).await;
    // A store that cannot shorten a lease answers what it has.
    let most = if fixture.pace.ttl_shrinks { 1 } else { 2 } * fixture.ample();
    let most = most + fixture.pace.slack;
    assert!(grant.ttl >= fixture.short() && grant.ttl <= most, "{:?}", grant.ttl);
}

// G30
pub async fn a_lease_that_ran_out_is_gone_though_nobody_took_the_lock(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").living(fixture.short())).await;
    fixture.outlive(fixture.short()).await;
    for _ in 0..2 {
        assert_eq!(
            fixture.here().renew(&a, Some(LONG)).await,
            RenewOutcome::Gone(Some(Cause::Expired))
        );
    }
    assert!(fixture.here().is_free().await);
}

// G30
pub async fn an_end_that_was_shown_is_final(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").living(fixture.short())).await;
    while !fixture.there().is_free().await {
        fixture.sleep(fixture.short() / 10).await;
    }
    assert_eq!(
        fixture.here().renew(&a, Some(LONG)).await,
        RenewOutcome::Gone(Some(Cause::Expired))
    );
    assert!(fixture.there().is_free().await);
}

pub async fn a_late_renewal_gives_nothing_to_the_next_holder(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").living(fixture.ample())).await;
    let b = fixture.here().queue(claim("b")).await;
    fixture.outlive(fixture.ample()).await;
    let b = fixture.here().take(&b).await;
    assert_eq!(
        fixture.here().renew(&a, Some(5 * LONG)).await,
        RenewOutcome::Gone(Some(Cause::Expired))
    );
    let holders = fixture.here().holders().await;
    assert_eq!(holders[0].token, b.token());
    assert!(
        holders[0].remaining <= LONG + fixture.short(),
        "{:?}",
        holders[0].remaining
    );
}

pub async fn a_lease_that_was_given_back_or_forced_is_gone(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    fixture.here().release(&a).await;
    assert_eq!(
        fixture.here().renew(&a, None).await,
        RenewOutcome::Gone(Some(Cause::Released))
    );
    let b = fixture.here().hold(claim("b")).await;
    fixture.here().force(b.token()).await;
    assert_eq!(
        fixture.here().renew(&b, None).await,
        RenewOutcome::Gone(Some(Cause::Forced))
    );
    assert!(fixture.here().is_free().await);
}

// G33
pub async fn a_lease_with_a_false_part_renews_nothing(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    for (what, lease) in forgeries(&a) {
        let answer = fixture.first.renew(&lease, Some(ttl(5 * LONG))).await;
        assert_eq!(answer, Ok(RenewOutcome::Gone(None)), "{what}");
    }
    assert!(fixture.here().holders().await[0].remaining <= 2 * LONG);
}

pub async fn a_renewal_keeps_waiters_waiting(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").living(fixture.ample())).await;
    let b = fixture.here().queue(claim("b")).await;
    fixture.here().renewed(&a, Some(LONG)).await;
    fixture.outlive(fixture.ample()).await;
    crate::replica::waiting(fixture.here().promote(&b).await);
    assert_eq!(fixture.here().tokens().await, [a.token()]);
}

pub async fn renewals_of_two_holders_are_apart(fixture: &Fixture) {
    let ample = fixture.ample();
    let a = fixture.here().hold(claim("a").shared().living(ample)).await;
    let b = fixture.here().hold(claim("b").shared().living(ample)).await;
    fixture.here().renewed(&a, Some(LONG)).await;
    fixture.outlive(ample).await;
    assert_eq!(fixture.here().tokens().await, [a.token()]);
    is_expired(fixture, &b).await;
}

async fn is_expired(fixture: &Fixture, held: &Held) {
    let answer = fixture.here().renew(held, None).await;
    assert_eq!(answer, RenewOutcome::Gone(Some(Cause::Expired)));
}
