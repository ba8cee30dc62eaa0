//! Release and force: exactly the named hold ends, and no late or false release frees anybody's.

use fencepost::backend::{Found, Leaving};
use fencepost::claim::Cause;
use fencepost::name::{FencingToken, LeaseKey, Secret};

use crate::bed::Bed;
use crate::claims::{Asking, claim, random};
use crate::replica::Held;

pub async fn a_release_frees_the_lock(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    assert_eq!(bed.here().release(&a).await, Found::Ended(Cause::Released));
    assert!(bed.here().is_free().await);
}

pub async fn any_replica_releases(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    assert_eq!(bed.there().release(&a).await, Found::Ended(Cause::Released));
    assert_eq!(bed.here().release(&a).await, Found::EndedBefore(Cause::Released));
    assert!(bed.here().is_free().await);
}

pub async fn a_repeated_release_frees_nobody_else(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    bed.here().release(&a).await;
    let b = bed.here().hold(claim("b")).await;
    for _ in 0..2 {
        assert_eq!(bed.here().release(&a).await, Found::EndedBefore(Cause::Released));
    }
    assert_eq!(bed.here().tokens().await, [b.token()]);
}

pub async fn a_release_after_the_expiry_frees_nobody_else(bed: &Bed) {
    let a = bed.here().hold(claim("a").living(bed.short())).await;
    bed.outlive(bed.short()).await;
    assert_eq!(bed.here().release(&a).await, Found::EndedBefore(Cause::Expired));
    let b = bed.here().hold(claim("b")).await;
    assert_eq!(bed.here().release(&a).await, Found::EndedBefore(Cause::Expired));
    assert_eq!(bed.here().tokens().await, [b.token()]);
}

pub async fn a_release_after_a_force_frees_nobody_else(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    assert_eq!(bed.there().force(a.token()).await, Found::Ended(Cause::Forced));
    assert_eq!(bed.here().release(&a).await, Found::EndedBefore(Cause::Forced));
    let b = bed.here().hold(claim("b")).await;
    assert_eq!(bed.here().release(&a).await, Found::EndedBefore(Cause::Forced));
    assert_eq!(bed.here().tokens().await, [b.token()]);
}

pub async fn a_lease_with_a_false_part_releases_nothing(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    for (what, lease) in forgeries(&a) {
        let found = bed.here().leave(Leaving::Hold(&lease), None).await.found;
        assert_eq!(found, Found::Nothing, "{what}");
    }
    assert_eq!(bed.here().tokens().await, [a.token()]);
}

/// The lease of a hold with each of its parts changed.
pub fn forgeries(held: &Held) -> [(&'static str, LeaseKey); 3] {
    let real = || held.lease.clone();
    let token = FencingToken::new(real().token.get() + 1).expect("a token");
    [
        (
            "secret",
            LeaseKey {
                secret: Secret::from_bytes(random()),
                ..real()
            },
        ),
        (
            "claim",
            LeaseKey {
                claim: claim("other").id,
                ..real()
            },
        ),
        ("token", LeaseKey { token, ..real() }),
    ]
}

pub async fn a_lease_of_another_lock_releases_nothing(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let other = bed.here().on("other");
    let b = other.hold(claim("b")).await;
    let mixed = LeaseKey {
        lock: b.lease.lock.clone(),
        ..a.lease.clone()
    };
    assert_eq!(other.leave(Leaving::Hold(&mixed), None).await.found, Found::Nothing);
    assert_eq!(other.tokens().await, [b.token()]);
    assert_eq!(bed.here().tokens().await, [a.token()]);
    bed.here().release(&a).await;
    assert_eq!(other.leave(Leaving::Hold(&mixed), None).await.found, Found::Nothing);
}

pub async fn a_released_lease_with_another_token_is_unknown(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    bed.here().release(&a).await;
    let [_, _, (_, lease)] = forgeries(&a);
    let found = bed.here().leave(Leaving::Hold(&lease), None).await.found;
    assert_eq!(found, Found::Nothing);
}

pub async fn a_force_removes_whoever_holds_the_token(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    bed.here().queue(claim("b")).await;
    assert_eq!(bed.there().force(a.token()).await, Found::Ended(Cause::Forced));
    assert_eq!(bed.here().owners().await, (vec![], vec!["b".into()]));
}

pub async fn a_force_of_a_token_that_ended_says_how(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    bed.here().release(&a).await;
    assert_eq!(bed.here().force(a.token()).await, Found::EndedBefore(Cause::Released));
    let b = bed.here().hold(claim("b")).await;
    bed.here().force(b.token()).await;
    assert_eq!(bed.here().force(b.token()).await, Found::EndedBefore(Cause::Forced));
    let c = bed.here().hold(claim("c").living(bed.short())).await;
    bed.outlive(bed.short()).await;
    assert_eq!(bed.here().force(c.token()).await, Found::EndedBefore(Cause::Expired));
}

pub async fn a_force_of_an_unknown_token_removes_nobody(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let never = FencingToken::new(a.token().get() + 1_000).expect("a token");
    assert_eq!(bed.here().force(never).await, Found::Nothing);
    assert_eq!(bed.here().tokens().await, [a.token()]);
}

pub async fn a_force_removes_one_of_several_holders(bed: &Bed) {
    let a = bed.here().hold(claim("a").shared()).await;
    let b = bed.here().hold(claim("b").shared()).await;
    assert_eq!(bed.here().force(a.token()).await, Found::Ended(Cause::Forced));
    assert_eq!(bed.here().tokens().await, [b.token()]);
}

pub async fn a_release_removes_one_of_several_holders(bed: &Bed) {
    let a = bed.here().hold(claim("a").semaphore(1, 3)).await;
    let b = bed.here().hold(claim("b").semaphore(2, 3)).await;
    assert_eq!(bed.here().release(&a).await, Found::Ended(Cause::Released));
    assert_eq!(bed.here().tokens().await, [b.token()]);
    bed.here().hold(claim("c").semaphore(1, 3).trying()).await;
}
