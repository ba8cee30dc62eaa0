//! What a hand-over asks of the holder that ends and of the waiter that is next.

use fencepost::backend::{Departure, Found, NewClaim};
use fencepost::claim::Cause;

use crate::bed::{Bed, step};
use crate::claims::{Asking, claim};
use crate::replica::{Held, waiting};

/// Releases to the next waiter; `meanwhile` happens before that reaches etcd, so that nothing is handed over.
async fn not_handed_over(bed: &Bed, (hold, next): (&Held, &NewClaim), kind: &str, meanwhile: impl Future<Output = ()>) {
    let here = bed.here();
    let Departure { found, next } = bed
        .while_held(&step(next, kind), here.release_to(hold, next), meanwhile)
        .await;
    assert_eq!(found, Found::Ended(Cause::Released));
    assert!(next.is_none(), "{next:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_was_joined_meanwhile_is_not_handed_over() {
    let Some(bed) = Bed::new().await else { return };
    let owner = || claim("owner").reentrant();
    let hold = bed.here().hold(owner()).await;
    let next = bed.here().queue(claim("next")).await;
    let mut other = None;
    let joined = async { other = Some(bed.there().hold(owner()).await) };
    not_handed_over(&bed, (&hold, &next), "h/x/", joined).await;
    bed.there().renewed(&other.expect("it was granted"), None).await;
    waiting(bed.here().take_up(&next).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_a_retry_adopted_meanwhile_is_not_handed_the_lock_for_the_older_call() {
    let Some(bed) = Bed::new().await else { return };
    let hold = bed.here().hold(claim("holder")).await;
    let next = bed.here().queue(claim("next")).await;
    let retry = next.again();
    let adopted = async { drop(bed.there().queue(retry.clone()).await) };
    not_handed_over(&bed, (&hold, &next), "h/x/", adopted).await;
    bed.there().take(&retry).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_a_retry_adopted_before_is_not_handed_the_lock_for_the_older_call() {
    let Some(bed) = Bed::new().await else { return };
    let hold = bed.here().hold(claim("holder")).await;
    let next = bed.here().queue(claim("next")).await;
    bed.here().queue(claim("behind")).await;
    let retry = bed.there().queue(next.again()).await;
    bed.woken(&next).await;
    let left = bed.here().release_to(&hold, &next).await;
    assert!(left.next.is_none(), "{left:?}");
    bed.there().take(&retry).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_left_meanwhile_is_not_handed_the_lock() {
    let Some(bed) = Bed::new().await else { return };
    let hold = bed.here().hold(claim("holder")).await;
    let next = bed.here().queue(claim("next")).await;
    let left = async { assert_eq!(bed.here().undo(&next).await, Found::Ended(Cause::Left)) };
    not_handed_over(&bed, (&hold, &next), "h/x/", left).await;
    assert!(bed.there().is_free().await);
}

/// No replica makes such a holder while the next one waits; this one is put there by hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_is_not_handed_over_beside_a_holder_that_was_not_known() {
    let Some(bed) = Bed::new().await else { return };
    let hold = bed.here().hold(claim("holder").semaphore(1, 2)).await;
    let next = bed.here().queue(claim("next").semaphore(2, 2)).await;
    bed.there().on("other").hold(claim("other").semaphore(1, 2)).await;
    not_handed_over(&bed, (&hold, &next), "h/s/", bed.plant_holder("other")).await;
    assert_eq!(
        bed.there().owners().await,
        (vec!["other".to_owned()], vec!["next".to_owned()])
    );
}
