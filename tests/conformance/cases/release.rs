//! Release and force: exactly the named hold ends, and no late or false release frees anybody's.

use fencepost::backend::{ReleaseTarget, Released};
use fencepost::claim::Cause;
use fencepost::name::{FencingToken, LeaseKey, Secret};

use crate::claims::{Asking, claim, random};
use crate::fixture::Fixture;
use crate::replica::Held;

pub async fn a_release_frees_the_lock(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    assert_eq!(fixture.here().release(&a).await, Released::Ended(Cause::Released));
    assert!(fixture.here().is_free().await);
}

// G32
pub async fn any_replica_releases(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    assert_eq!(fixture.there().release(&a).await, Released::Ended(Cause::Released));
    assert_eq!(fixture.here().release(&a).await, Released::EndedBefore(Cause::Released));
    assert!(fixture.here().is_free().await);
}

// G29
pub async fn a_repeated_release_frees_nobody_else(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    fixture.here().release(&a).await;
    let b = fixture.here().hold(claim("b")).await;
    for _ in 0..2 {
        assert_eq!(fixture.here().release(&a).await, Released::EndedBefore(Cause::Released));
    }
    assert_eq!(fixture.here().tokens().await, [b.token()]);
}

// G29
pub async fn a_release_after_the_expiry_frees_nobody_else(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").living(fixture.short())).await;
    fixture.outlive(fixture.short()).await;
    assert_eq!(fixture.here().release(&a).await, Released::EndedBefore(Cause::Expired));
    let b = fixture.here().hold(claim("b")).await;
    assert_eq!(fixture.here().release(&a).await, Released::EndedBefore(Cause::Expired));
    assert_eq!(fixture.here().tokens().await, [b.token()]);
}

// G29
pub async fn a_release_after_a_force_frees_nobody_else(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    assert_eq!(fixture.there().force(a.token()).await, Released::Ended(Cause::Forced));
    assert_eq!(fixture.here().release(&a).await, Released::EndedBefore(Cause::Forced));
    let b = fixture.here().hold(claim("b")).await;
    assert_eq!(fixture.here().release(&a).await, Released::EndedBefore(Cause::Forced));
    assert_eq!(fixture.here().tokens().await, [b.token()]);
}

// G33
pub async fn a_lease_with_a_false_part_releases_nothing(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    for (what, lease) in forgeries(&a) {
        let found = fixture.here().end(ReleaseTarget::Hold(&lease), None).await.released;
        assert_eq!(found, Released::Nothing, "{what}");
    }
    assert_eq!(fixture.here().tokens().await, [a.token()]);
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

pub async fn a_lease_of_another_lock_releases_nothing(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let other = fixture.here().on("other");
    let b = other.hold(claim("b")).await;
    let mixed = LeaseKey {
        lock: b.lease.lock.clone(),
        ..a.lease.clone()
    };
    assert_eq!(
        other.end(ReleaseTarget::Hold(&mixed), None).await.released,
        Released::Nothing
    );
    assert_eq!(other.tokens().await, [b.token()]);
    assert_eq!(fixture.here().tokens().await, [a.token()]);
    fixture.here().release(&a).await;
    assert_eq!(
        other.end(ReleaseTarget::Hold(&mixed), None).await.released,
        Released::Nothing
    );
}

pub async fn a_released_lease_with_another_token_is_unknown(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    fixture.here().release(&a).await;
    let [_, _, (_, lease)] = forgeries(&a);
    let found = fixture.here().end(ReleaseTarget::Hold(&lease), None).await.released;
    assert_eq!(found, Released::Nothing);
}

pub async fn a_released_lease_with_another_secret_is_unknown(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    fixture.here().release(&a).await;
    let [(_, lease), ..] = forgeries(&a);
    let found = fixture.here().end(ReleaseTarget::Hold(&lease), None).await.released;
    assert_eq!(found, Released::Nothing);
}

// G9
pub async fn a_force_removes_whoever_holds_the_token(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    fixture.here().queue(claim("b")).await;
    assert_eq!(fixture.there().force(a.token()).await, Released::Ended(Cause::Forced));
    assert_eq!(fixture.here().owners().await, (vec![], vec!["b".into()]));
}

pub async fn a_force_of_a_token_that_ended_says_how(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    fixture.here().release(&a).await;
    assert_eq!(
        fixture.here().force(a.token()).await,
        Released::EndedBefore(Cause::Released)
    );
    let b = fixture.here().hold(claim("b")).await;
    fixture.here().force(b.token()).await;
    assert_eq!(
        fixture.here().force(b.token()).await,
        Released::EndedBefore(Cause::Forced)
    );
    let c = fixture.here().hold(claim("c").living(fixture.short())).await;
    fixture.outlive(fixture.short()).await;
    assert_eq!(
        fixture.here().force(c.token()).await,
        Released::EndedBefore(Cause::Expired)
    );
}

// G9
pub async fn a_force_of_an_unknown_token_removes_nobody(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let never = FencingToken::new(a.token().get() + 1_000).expect("a token");
    assert_eq!(fixture.here().force(never).await, Released::Nothing);
    assert_eq!(fixture.here().tokens().await, [a.token()]);
}

// G9
pub async fn a_force_of_a_token_of_another_lock_removes_nobody(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let other = fixture.here().on("other");
    // Tokens rise, and a lock may have had those of another one.
    let b = other.hold(claim("b")).await;
    assert_eq!(fixture.here().force(b.token()).await, Released::Nothing);
    assert_eq!(fixture.here().tokens().await, [a.token()]);
    assert_eq!(other.tokens().await, [b.token()]);
    other.release(&b).await;
    assert_eq!(fixture.here().force(b.token()).await, Released::Nothing);
}

// G9
pub async fn a_force_removes_one_of_several_holders(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").shared()).await;
    let b = fixture.here().hold(claim("b").shared()).await;
    assert_eq!(fixture.here().force(a.token()).await, Released::Ended(Cause::Forced));
    assert_eq!(fixture.here().tokens().await, [b.token()]);
}

pub async fn a_release_removes_one_of_several_holders(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").semaphore(1, 3)).await;
    let b = fixture.here().hold(claim("b").semaphore(2, 3)).await;
    assert_eq!(fixture.here().release(&a).await, Released::Ended(Cause::Released));
    assert_eq!(fixture.here().tokens().await, [b.token()]);
    fixture.here().hold(claim("c").semaphore(1, 3).trying()).await;
}
