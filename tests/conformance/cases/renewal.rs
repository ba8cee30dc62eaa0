//! Renewal: it lengthens, never shortens, and brings nothing back.

use std::time::Duration;

use fencepost::backend::Renewal;
use fencepost::claim::Cause;

use super::release::forgeries;
use crate::bed::{Bed, LONG};
use crate::claims::{Asking, claim, ttl};
use crate::replica::{Held, busy};

pub async fn a_renewal_gives_the_time_that_was_asked(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let grant = bed.here().renewed(&a, Some(2 * LONG)).await;
    assert!(grant.ttl >= 2 * LONG, "{:?}", grant.ttl);
    assert_eq!(
        (grant.token, grant.claim, grant.secret),
        (a.token(), a.claim.id, a.claim.secret)
    );
    assert_eq!((grant.waited, grant.holds), (Duration::ZERO, 1));
    assert!(bed.there().holders().await[0].remaining > LONG);
}

pub async fn any_replica_renews(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    assert!(bed.there().renewed(&a, Some(2 * LONG)).await.ttl >= 2 * LONG);
    assert!(bed.here().holders().await[0].remaining > LONG);
}

pub async fn a_renewed_lease_outlives_its_first_ttl(bed: &Bed) {
    let a = bed.here().hold(claim("a").living(bed.ample())).await;
    for _ in 0..4 {
        bed.sleep(bed.ample() / 3).await;
        bed.here().renewed(&a, Some(bed.ample())).await;
    }
    assert_eq!(bed.here().tokens().await, [a.token()]);
    busy(bed.here().enter(&claim("b").trying()).await);
}

pub async fn a_shorter_renewal_never_shortens(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let grant = bed.here().renewed(&a, Some(bed.short())).await;
    assert!(grant.ttl > LONG / 2, "{:?}", grant.ttl);
    bed.outlive(bed.short()).await;
    assert_eq!(bed.here().tokens().await, [a.token()]);
}

pub async fn a_renewal_without_a_ttl_uses_the_last_one(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    bed.here().renewed(&a, Some(3 * LONG)).await;
    let grant = bed.here().renewed(&a, None).await;
    assert!(grant.ttl > 2 * LONG, "{:?}", grant.ttl);
}

pub async fn the_last_ttl_may_be_a_shorter_one(bed: &Bed) {
    let a = bed.here().hold(claim("a").living(2 * bed.ample())).await;
    bed.here().renewed(&a, Some(bed.short())).await;
    bed.sleep(bed.ample()).await;
    let grant = bed.here().renewed(&a, None).await;
    // A store that cannot shorten a lease answers what it has.
    let most = if bed.pace.ttl_shrinks { 1 } else { 2 } * bed.ample();
    let most = most + bed.pace.slack;
    assert!(grant.ttl >= bed.short() && grant.ttl <= most, "{:?}", grant.ttl);
}

pub async fn a_lease_that_ran_out_is_gone_though_nobody_took_the_lock(bed: &Bed) {
    let a = bed.here().hold(claim("a").living(bed.short())).await;
    bed.outlive(bed.short()).await;
    for _ in 0..2 {
        assert_eq!(
            bed.here().renew(&a, Some(LONG)).await,
            Renewal::Gone(Some(Cause::Expired))
        );
    }
    assert!(bed.here().is_free().await);
}

pub async fn an_end_that_was_shown_is_final(bed: &Bed) {
    let a = bed.here().hold(claim("a").living(bed.short())).await;
    while !bed.there().is_free().await {
        bed.sleep(bed.short() / 10).await;
    }
    assert_eq!(
        bed.here().renew(&a, Some(LONG)).await,
        Renewal::Gone(Some(Cause::Expired))
    );
    assert!(bed.there().is_free().await);
}

pub async fn a_late_renewal_gives_nothing_to_the_next_holder(bed: &Bed) {
    let a = bed.here().hold(claim("a").living(bed.ample())).await;
    let b = bed.here().queue(claim("b")).await;
    bed.outlive(bed.ample()).await;
    let b = bed.here().take(&b).await;
    assert_eq!(
        bed.here().renew(&a, Some(5 * LONG)).await,
        Renewal::Gone(Some(Cause::Expired))
    );
    let holders = bed.here().holders().await;
    assert_eq!(holders[0].token, b.token());
    assert!(holders[0].remaining <= LONG + bed.short(), "{:?}", holders[0].remaining);
}

pub async fn a_lease_that_was_given_back_or_forced_is_gone(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    bed.here().release(&a).await;
    assert_eq!(bed.here().renew(&a, None).await, Renewal::Gone(Some(Cause::Released)));
    let b = bed.here().hold(claim("b")).await;
    bed.here().force(b.token()).await;
    assert_eq!(bed.here().renew(&b, None).await, Renewal::Gone(Some(Cause::Forced)));
    assert!(bed.here().is_free().await);
}

pub async fn a_lease_with_a_false_part_renews_nothing(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    for (what, lease) in forgeries(&a) {
        let answer = bed.first.renew(&lease, Some(ttl(5 * LONG))).await;
        assert_eq!(answer, Ok(Renewal::Gone(None)), "{what}");
    }
    assert!(bed.here().holders().await[0].remaining <= 2 * LONG);
}

pub async fn a_renewal_keeps_waiters_waiting(bed: &Bed) {
    let a = bed.here().hold(claim("a").living(bed.ample())).await;
    let b = bed.here().queue(claim("b")).await;
    bed.here().renewed(&a, Some(LONG)).await;
    bed.outlive(bed.ample()).await;
    crate::replica::waiting(bed.here().take_up(&b).await);
    assert_eq!(bed.here().tokens().await, [a.token()]);
}

pub async fn renewals_of_two_holders_are_apart(bed: &Bed) {
    let ample = bed.ample();
    let a = bed.here().hold(claim("a").shared().living(ample)).await;
    let b = bed.here().hold(claim("b").shared().living(ample)).await;
    bed.here().renewed(&a, Some(LONG)).await;
    bed.outlive(ample).await;
    assert_eq!(bed.here().tokens().await, [a.token()]);
    is_expired(bed, &b).await;
}

async fn is_expired(bed: &Bed, held: &Held) {
    let answer = bed.here().renew(held, None).await;
    assert_eq!(answer, Renewal::Gone(Some(Cause::Expired)));
}
