//! Other releases on the same namespace. The first kept readers among the semaphore claims; the second named the keys of
//! claims by their ids. Each had the base of its tokens at another key. What they leave is written here by hand.

use fencepost::backend::{AcquireOutcome, Released};
use fencepost::claim::Cause;
use fencepost::name::FencingToken;

use crate::claims::{Asking, claim};
use crate::fixture::{BASE, FORGETFUL, Fixture};
use crate::replica::{Held, held};

/// A base of a release before that is an hour ahead.
async fn earlier_base(fixture: &Fixture) -> u64 {
    fixture.text(BASE).await.parse::<u64>().expect("a number") + 3_600_000_000
}

// G116
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_before_grant_nothing_once_this_one_has_begun_and_tokens_rise_over_theirs() {
    let Some(fixture) = Fixture::new().await else { return };
    for key in ["base", "token_base"] {
        let base = earlier_base(&fixture).await;
        fixture.put(key, &base.to_string()).await;
        // As any replica does on its first connection, and on each that follows.
        let replica = fixture.another().await;
        let new = claim(key);
        let lock = crate::fixture::lock(key);
        let granted = held(replica.acquire(&lock, &new).await.expect("it serves"));
        assert!(granted.token.get() > base, "{granted:?} over {base}");
        // A release before reads this as a base that need not be raised, and compares its grants with it as it writes
        // numbers. The last one before this says that a later release grants here.
        let closed = fixture.text(key).await;
        let as_read = closed.parse::<u64>().expect("a number, to them");
        assert_eq!(as_read, u64::MAX);
        assert_ne!(as_read.to_string(), closed);
    }
}

/// A reader of a release before; its client knows the lease that it was given.
async fn earlier_reader(fixture: &Fixture) -> Held {
    let mut reader = fixture.there().on("other").hold(claim("earlier").shared()).await;
    fixture.plant_earlier_reader("other").await;
    let holders = fixture.there().holders().await;
    let [holder] = &holders[..] else {
        panic!("not one holder: {holders:?}");
    };
    let token: FencingToken = holder.token;
    reader.lease.token = token;
    reader.lease.lock.name = fixture.here().name().clone();
    reader
}

// G116
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_a_release_before_is_renewed_found_and_released() {
    let Some(fixture) = Fixture::new().await else { return };
    let reader = earlier_reader(&fixture).await;
    fixture.here().renewed(&reader, Some(crate::fixture::LONG * 2)).await;
    let found = held(fixture.here().acquire(&reader.claim.again()).await);
    assert_eq!((found.token, found.secret), (reader.lease.token, reader.lease.secret));
    assert_eq!(fixture.here().release(&reader).await, Released::Ended(Cause::Released));
    assert_eq!(
        fixture.there().release(&reader).await,
        Released::EndedBefore(Cause::Released)
    );
    assert!(fixture.here().is_free().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_holds_beside_one_of_a_release_before_and_semaphore_claims_do_not() {
    let Some(fixture) = Fixture::new().await else { return };
    earlier_reader(&fixture).await;
    fixture.here().hold(claim("reader").shared()).await;
    let refused = fixture.there().acquire(&claim("permit").semaphore(1, 2)).await;
    assert!(matches!(refused, AcquireOutcome::Refused(_)), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_beside_one_of_a_release_before_passes_no_semaphore_claim_that_came_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    let earlier = earlier_reader(&fixture).await;
    let late = claim("late").shared().trying();
    let came = async {
        fixture.there().release(&earlier).await;
        fixture.there().hold(claim("permit").semaphore(1, 2)).await;
    };
    let place = fixture.acquire_fitting_while(&late, "h/r/", came).await;
    assert!(matches!(place, AcquireOutcome::Refused(_)), "{place:?}");
    assert_eq!(fixture.there().owners().await.0, ["permit"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_that_was_granted_beside_a_reader_of_a_release_before_keeps_its_record() {
    let Some(fixture) = Fixture::new().await else { return };
    earlier_reader(&fixture).await;
    let late = claim("late").shared().within(FORGETFUL);
    let (retry, mut granted) = (late.again(), None);
    let came = async { granted = Some(fixture.there().hold(retry).await) };
    let place = fixture.acquire_fitting_while(&late, "h/r/", came).await;
    let (granted, found) = (granted.expect("it was granted"), held(place));
    assert_eq!((found.token, found.secret), (granted.token(), granted.grant.secret));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_of_a_release_before_is_found_by_its_retry_renewed_and_released() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut before = fixture.there().on("other").hold(claim("earlier")).await;
    fixture.plant_as_before("other", &before.claim).await;
    let tokens = fixture.there().tokens().await;
    (before.lease.token, before.lease.lock.name) = (tokens[0], fixture.here().name().clone());
    let retry = before.claim.again();
    let found = held(fixture.here().acquire(&retry).await);
    assert_eq!((found.token, found.secret), (tokens[0], before.lease.secret));
    fixture.there().renewed(&before, None).await;
    assert_eq!(fixture.here().release(&before).await, Released::Ended(Cause::Released));
    let finished = fixture.there().acquire(&before.claim.again()).await;
    assert!(
        matches!(finished, AcquireOutcome::Finished(Cause::Released)),
        "{finished:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_of_a_release_before_which_has_no_spare_second_gets_a_keep_alive_with_each_grant() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut earlier = fixture.there().on("other").hold(claim("earlier")).await;
    fixture.plant_holder("other").await;
    earlier.lease.token = fixture.there().tokens().await[0];
    earlier.lease.lock.name = fixture.here().name().clone();
    let lease = fixture.lease().await;
    assert_eq!(fixture.here().release(&earlier).await, Released::Ended(Cause::Released));
    for _ in 0..4 {
        let before = fixture.proxy.signs_of_life(lease);
        let next = fixture.here().hold(claim("next")).await;
        assert_eq!(fixture.lease().await, lease, "another lease was taken");
        assert_eq!(fixture.proxy.signs_of_life(lease), before + 1);
        fixture.here().release(&next).await;
    }
}
