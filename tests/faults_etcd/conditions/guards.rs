//! What a step that grants asks of the lock: nobody holds or waits there whom its decision did not know.

use fencepost::backend::{AcquireOutcome, NewClaim, Refusal};

use crate::claims::{Asking, claim};
use crate::fixture::{FORGETFUL, Fixture, fitting, step};
use crate::proxy::Fate;
use crate::replica::{busy, held, refused, waiting};

/// Acquires with an exclusive claim whose first step fails for an old base. It has then seen a lock without any claim;
/// `meanwhile` happens before its second step reaches etcd.
async fn acquire_again_while(fixture: &Fixture, new: &NewClaim, meanwhile: impl Future<Output = ()>) -> AcquireOutcome {
    let mut first = fixture.proxy.catch(Fate::Held, &step(new, "h/x/"));
    let raised = async {
        first.is_here().await;
        fixture.raise_base(1_000).await;
        first.let_go().await;
    };
    let here = fixture.here();
    let acquired = async { tokio::join!(here.acquire(new), raised).0 };
    fixture.while_held(&fitting(new, "h/x/"), acquired, meanwhile).await
}

/// Acquires with a claim that is queued behind a holder of the second replica, and lets that one release.
async fn next_in_line(fixture: &Fixture, new: NewClaim) -> NewClaim {
    let holder = fixture.there().hold(claim("holder")).await;
    let next = fixture.here().queue(new).await;
    fixture.there().release(&holder).await;
    next
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_is_not_granted_beside_one_that_came_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    let late = claim("late").trying();
    let came = async { drop(fixture.there().hold(claim("other")).await) };
    busy(acquire_again_while(&fixture, &late, came).await);
    assert_eq!(fixture.there().owners().await.0, ["other"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_does_not_overtake_one_that_was_queued_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    let (late, next) = (claim("late").trying(), claim("next"));
    let came = async {
        let holder = fixture.there().hold(claim("holder")).await;
        fixture.there().queue(next.clone()).await;
        fixture.there().release(&holder).await;
    };
    busy(acquire_again_while(&fixture, &late, came).await);
    fixture.there().take(&next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_does_not_overtake_a_writer_that_was_queued_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.there().hold(claim("reader").shared()).await;
    let late = claim("late").shared().trying();
    let came = async { drop(fixture.there().queue(claim("writer")).await) };
    busy(fixture.acquire_while(&late, "h/r/", came).await);
    assert_eq!(fixture.there().owners().await.0, ["reader"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_is_not_granted_beside_a_writer_that_came_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    let reader = fixture.there().hold(claim("reader").shared()).await;
    let late = claim("late").shared().trying();
    let came = async {
        fixture.there().release(&reader).await;
        fixture.there().hold(claim("writer")).await;
    };
    busy(fixture.acquire_while(&late, "h/r/", came).await);
    assert_eq!(fixture.there().owners().await.0, ["writer"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_is_not_granted_beside_a_semaphore_claim_that_came_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    let reader = fixture.there().hold(claim("reader").shared()).await;
    let late = claim("late").shared().trying();
    let came = async {
        fixture.there().release(&reader).await;
        fixture.there().hold(claim("permit").semaphore(1, 2)).await;
    };
    let place = fixture.acquire_while(&late, "h/r/", came).await;
    assert!(matches!(place, AcquireOutcome::Refused(_)), "{place:?}");
    assert_eq!(fixture.there().owners().await.0, ["permit"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_semaphore_claim_is_not_granted_beside_a_writer_that_came_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    let permit = fixture.there().hold(claim("permit").semaphore(1, 2)).await;
    let late = claim("late").semaphore(1, 2).trying();
    let came = async {
        fixture.there().release(&permit).await;
        fixture.there().hold(claim("writer")).await;
    };
    busy(fixture.acquire_fitting_while(&late, "h/s/", came).await);
    assert_eq!(fixture.there().owners().await.0, ["writer"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_semaphore_claim_is_not_granted_beyond_the_limit_that_others_reached_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.there().hold(claim("first").semaphore(1, 2)).await;
    let late = claim("late").semaphore(1, 2).trying();
    let came = async { drop(fixture.there().hold(claim("second").semaphore(1, 2)).await) };
    busy(fixture.acquire_fitting_while(&late, "h/s/", came).await);
    assert_eq!(fixture.there().owners().await.0, ["first", "second"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_semaphore_claim_is_not_granted_beyond_a_smaller_limit_that_came_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.there().hold(claim("first").semaphore(1, 3)).await;
    let late = claim("late").semaphore(1, 3).trying();
    let came = async { drop(fixture.there().hold(claim("small").semaphore(1, 2)).await) };
    busy(fixture.acquire_fitting_while(&late, "h/s/", came).await);
    assert_eq!(fixture.there().owners().await.0, ["first", "small"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_that_was_granted_meanwhile_keeps_its_record() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.there().hold(claim("reader").shared()).await;
    // Of one that is remembered the request is in the way, too.
    let late = claim("late").shared().within(FORGETFUL);
    let (retry, mut granted) = (late.again(), None);
    let came = async { granted = Some(fixture.there().hold(retry).await) };
    let place = fixture.acquire_while(&late, "h/r/", came).await;
    let (granted, found) = (granted.expect("it was granted"), held(place));
    assert_eq!((found.token, found.secret), (granted.token(), granted.grant.secret));
    fixture.there().renewed(&granted, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_semaphore_claim_is_not_granted_beside_a_reader_that_came_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    let permit = fixture.there().hold(claim("permit").semaphore(1, 2)).await;
    let late = claim("late").semaphore(1, 2).trying();
    let came = async {
        fixture.there().release(&permit).await;
        fixture.there().hold(claim("reader").shared()).await;
    };
    let place = fixture.acquire_fitting_while(&late, "h/s/", came).await;
    assert!(matches!(place, AcquireOutcome::Refused(_)), "{place:?}");
    assert_eq!(fixture.there().owners().await.0, ["reader"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_may_join_a_holder_joins_one_that_came_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.there().hold(claim("other").shared()).await;
    let owner = || claim("owner").shared().reentrant();
    let mut first = None;
    let came = async { first = Some(fixture.there().hold(owner()).await) };
    let joined = held(fixture.acquire_fitting_while(&owner(), "h/r/", came).await);
    assert_eq!(
        (joined.token, joined.holds),
        (first.expect("it was granted").token(), 2)
    );
}

/// A waiter whose turn has come is not granted beside a holder that its view did not show. No replica makes such a
/// holder; this one is put there by hand, as a store that was restored or a release that knows another rule might.
async fn not_beside(waiter: NewClaim, kind: &str, holder: NewClaim) {
    let Some(fixture) = Fixture::new().await else { return };
    let next = next_in_line(&fixture, waiter).await;
    fixture.there().on("other").hold(holder).await;
    let here = fixture.here();
    let planted = fixture.plant_holder("other");
    let place = fixture
        .while_held(&step(&next, kind), here.promote(&next), planted)
        .await;
    waiting(place);
    assert_eq!(fixture.there().owners().await.0, ["there"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_is_not_promoted_beside_a_holder_that_it_did_not_know() {
    not_beside(claim("writer"), "h/x/", claim("there")).await;
    not_beside(claim("writer"), "h/x/", claim("there").shared()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_is_not_promoted_beside_a_writer_that_it_did_not_know() {
    not_beside(claim("reader").shared(), "h/r/", claim("there")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_semaphore_claim_is_not_promoted_beside_a_writer_that_it_did_not_know() {
    not_beside(claim("permit").semaphore(1, 2), "h/s/", claim("there")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_semaphore_claim_is_not_promoted_beside_one_that_it_did_not_know() {
    for (permits, limit) in [(2, 2), (1, 1)] {
        let there = claim("there").semaphore(permits, limit);
        not_beside(claim("permit").semaphore(1, 2), "h/s/", there).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_semaphore_claim_is_not_promoted_beside_a_reader_that_it_did_not_know() {
    not_beside(claim("permit").semaphore(1, 2), "h/s/", claim("there").shared()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_is_not_promoted_beside_a_semaphore_claim_that_it_did_not_know() {
    not_beside(claim("reader").shared(), "h/r/", claim("there").semaphore(1, 2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_counts_those_that_were_granted_after_it_saw_the_lock() {
    let Some(fixture) = Fixture::new().await else { return };
    let reader = |owner| {
        let mut reader = claim(owner).shared().trying();
        reader.limits.queue = 2;
        reader
    };
    let (here, late) = (fixture.here(), reader("late"));
    here.hold(reader("first")).await;
    // Half of the limit is granted without counting, so its first step is refused, and has seen one holder.
    let mut seen = fixture.proxy.catch(Fate::AnswerHeld, &step(&late, "h/r/"));
    let came = async {
        seen.is_here().await;
        here.hold(reader("other")).await;
        seen.let_go().await;
    };
    let (entered, ()) = tokio::join!(here.acquire(&late), came);
    assert_eq!(refused(entered), Refusal::Full { limit: 2 });
    assert_eq!(here.owners().await.0, ["first", "other"]);
}
