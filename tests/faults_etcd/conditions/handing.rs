//! What a hand-over asks of the holder that ends and of the waiter that is next.

use fencepost::backend::{NewClaim, ReleaseOutcome, Released};
use fencepost::claim::Cause;

use crate::claims::{Asking, claim};
use crate::fixture::{Fixture, step};
use crate::replica::{Held, waiting};

/// Releases to the next waiter; `meanwhile` happens before that reaches etcd, so that nothing is handed over.
async fn not_handed_over(
    fixture: &Fixture,
    (hold, next): (&Held, &NewClaim),
    kind: &str,
    meanwhile: impl Future<Output = ()>,
) {
    let here = fixture.here();
    let ReleaseOutcome { released, next } = fixture
        .while_held(&step(next, kind), here.release_to(hold, next), meanwhile)
        .await;
    assert_eq!(released, Released::Ended(Cause::Released));
    assert!(next.is_none(), "{next:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_was_joined_meanwhile_is_not_handed_over() {
    let Some(fixture) = Fixture::new().await else { return };
    let owner = || claim("owner").reentrant();
    let hold = fixture.here().hold(owner()).await;
    let next = fixture.here().queue(claim("next")).await;
    let mut other = None;
    let joined = async { other = Some(fixture.there().hold(owner()).await) };
    not_handed_over(&fixture, (&hold, &next), "h/x/", joined).await;
    fixture.there().renewed(&other.expect("it was granted"), None).await;
    waiting(fixture.here().promote(&next).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_a_retry_adopted_meanwhile_is_not_handed_the_lock_for_the_older_call() {
    let Some(fixture) = Fixture::new().await else { return };
    let hold = fixture.here().hold(claim("holder")).await;
    let next = fixture.here().queue(claim("next")).await;
    let retry = next.again();
    let adopted = async { drop(fixture.there().queue(retry.clone()).await) };
    not_handed_over(&fixture, (&hold, &next), "h/x/", adopted).await;
    fixture.there().take(&retry).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_a_retry_adopted_before_is_not_handed_the_lock_for_the_older_call() {
    let Some(fixture) = Fixture::new().await else { return };
    let hold = fixture.here().hold(claim("holder")).await;
    let next = fixture.here().queue(claim("next")).await;
    fixture.here().queue(claim("behind")).await;
    let retry = fixture.there().queue(next.again()).await;
    fixture.woken(&next).await;
    let left = fixture.here().release_to(&hold, &next).await;
    assert!(left.next.is_none(), "{left:?}");
    fixture.there().take(&retry).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_handed_over_although_another_replica_raised_the_base_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    let hold = fixture.here().hold(claim("holder")).await;
    let next = fixture.here().queue(claim("next")).await;
    fixture.raise_base(1_000_000).await;
    let outcome = fixture.here().release_to(&hold, &next).await;
    assert_eq!(outcome.released, Released::Ended(Cause::Released));
    let granted = outcome.next.expect("handed over");
    assert!(granted.token > hold.token(), "{granted:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_left_meanwhile_is_not_handed_the_lock() {
    let Some(fixture) = Fixture::new().await else { return };
    let hold = fixture.here().hold(claim("holder")).await;
    let next = fixture.here().queue(claim("next")).await;
    let left = async { assert_eq!(fixture.here().undo(&next).await, Released::Ended(Cause::Cancelled)) };
    not_handed_over(&fixture, (&hold, &next), "h/x/", left).await;
    assert!(fixture.there().is_free().await);
}
