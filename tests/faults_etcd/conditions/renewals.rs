//! What a renewal, a move to a longer lease and a re-entry ask before their client counts on a lease.

use std::time::Duration;

use fencepost::backend::{AcquireOutcome, BackendError, Released, RenewOutcome};
use fencepost::claim::Cause;

use crate::claims::{Asking, claim};
use crate::fixture::{Fixture, LONG, step};
use crate::proxy::{Caught, Fate, Proxy, varint};

/// The next sign of life for this lease.
fn sign_of_life(proxy: &Proxy, lease: i64) -> Caught {
    proxy.catch(Fate::Held, &[b"LeaseKeepAlive".to_vec(), varint(lease)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_keeps_the_lease_alive_that_the_holder_moved_to_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    let hold = fixture.here().hold(claim("holder").living(LONG / 2)).await;
    let mut sign = sign_of_life(&fixture.proxy, fixture.lease().await);
    let moved = async {
        sign.is_here().await;
        fixture.there().renewed(&hold, Some(LONG)).await;
        sign.let_go().await;
    };
    let here = fixture.here();
    let (renewed, ()) = tokio::join!(here.renewed(&hold, None), moved);
    assert_eq!(renewed.ttl, LONG);
    assert_ne!(
        fixture.proxy.signs_of_life(fixture.lease().await),
        0,
        "it counts on a lease that it did not keep alive"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_keeps_the_lease_alive_that_the_holder_is_about_to_move_to() {
    let Some(fixture) = Fixture::new().await else { return };
    let hold = fixture.here().hold(claim("holder").living(LONG / 2)).await;
    let mut sign = sign_of_life(&fixture.proxy, fixture.lease().await);
    let mut announced = fixture.proxy_there.catch(Fate::Held, &step(&hold.claim, "h/x/"));
    let (here, there) = (fixture.here(), fixture.there());
    let renewing = async {
        let renewed = here.renewed(&hold, None).await;
        assert_eq!(renewed.ttl, LONG / 2);
    };
    let moving = there.renewed(&hold, Some(LONG));
    let control = async {
        sign.is_here().await;
        announced.is_here().await;
        let mut moved = fixture.proxy_there.catch(Fate::Held, &step(&hold.claim, "h/x/"));
        announced.let_go().await;
        moved.is_here().await;
        sign.let_go().await;
        moved
    };
    let all = async {
        let ((), moved) = tokio::join!(renewing, control);
        moved.let_go().await;
    };
    let (moved, ()) = tokio::join!(moving, all);
    assert_eq!(moved.ttl, LONG);
    let lease = fixture.lease().await;
    assert_ne!(fixture.proxy_there.signs_of_life(lease), 0, "who moves it counts on it");
    assert_ne!(
        fixture.proxy.signs_of_life(lease),
        0,
        "who renews it meanwhile counts on it, too"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_was_released_meanwhile_is_not_brought_back_by_its_renewal() {
    let Some(fixture) = Fixture::new().await else { return };
    let hold = fixture.here().hold(claim("holder")).await;
    let here = fixture.here();
    let released = async { assert_eq!(fixture.there().release(&hold).await, Released::Ended(Cause::Released)) };
    let renewing = here.renew(&hold, Some(LONG / 2));
    let renewed = fixture.while_held(&step(&hold.claim, "h/x/"), renewing, released).await;
    assert!(
        matches!(renewed, RenewOutcome::Gone(Some(Cause::Released))),
        "{renewed:?}"
    );
    assert!(fixture.there().is_free().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_was_released_meanwhile_is_not_renewed_by_another_of_its_claim() {
    let Some(fixture) = Fixture::new().await else { return };
    let hold = fixture.here().hold(claim("owner").reentrant()).await;
    let mut sign = sign_of_life(&fixture.proxy, fixture.lease().await);
    let released = async {
        sign.is_here().await;
        fixture.there().hold(claim("owner").reentrant()).await;
        fixture.there().release(&hold).await;
        sign.let_go().await;
    };
    let here = fixture.here();
    let (renewed, ()) = tokio::join!(here.renew(&hold, None), released);
    assert!(
        matches!(renewed, RenewOutcome::Gone(Some(Cause::Released))),
        "{renewed:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reentry_on_a_lease_that_ended_before_its_sign_of_life_fails() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.here().hold(claim("owner").reentrant()).await;
    let lease = fixture.lease().await;
    let mut sign = sign_of_life(&fixture.proxy, lease);
    let ended = async {
        sign.is_here().await;
        while fixture.there().holders().await.iter().all(|holder| holder.holds < 2) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        fixture.revoke(lease).await;
        sign.let_go().await;
    };
    let (here, new) = (fixture.here(), claim("owner").reentrant());
    let (acquired, ()) = tokio::join!(fixture.first.acquire(here.name(), &new), ended);
    assert!(
        matches!(acquired, Err(BackendError::Unavailable { .. })),
        "{acquired:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_is_not_told_of_a_hold_whose_lease_ended_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    let hold = fixture.there().hold(claim("holder")).await;
    let lease = fixture.lease().await;
    let here = fixture.here();
    let retry = hold.claim.again();
    let ended = fixture.revoke(lease);
    let place = fixture
        .while_held(&["LeaseTimeToLive"], here.acquire(&retry), ended)
        .await;
    assert!(matches!(place, AcquireOutcome::Finished(Cause::Expired)), "{place:?}");
}
