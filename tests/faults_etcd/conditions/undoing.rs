//! What an undo, or a release, asks of the claim that it found: what came late, or another call, may have changed it.

use fencepost::backend::{Found, NewClaim};
use fencepost::claim::Cause;

use crate::bed::Bed;
use crate::claims::{Asking, claim};
use crate::replica::{held, waiting};

/// The parts of the step that leaves this call's mark.
fn marking(bed: &Bed, call: &NewClaim) -> [String; 2] {
    ["KV/Txn".to_owned(), bed.key(&format!("mark/{}", call.call))]
}

/// The parts of a step about the key of a claim with this end.
fn about(claim: &NewClaim, end: &str) -> [String; 2] {
    ["KV/Txn".to_owned(), format!("\t{end}{}", claim.id)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_comes_after_the_undo_of_its_call_takes_no_effect() {
    let Some(bed) = Bed::new().await else { return };
    let new = claim("late");
    let late = bed.enter_late(&new, "h/x/").await;
    assert_eq!(bed.here().undo(&new).await, Found::Nothing);
    late.let_go().await;
    assert!(bed.there().is_free().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_comes_to_the_queue_after_the_undo_of_its_call_takes_no_effect() {
    let Some(bed) = Bed::new().await else { return };
    bed.there().hold(claim("holder")).await;
    let new = claim("late");
    let late = bed.enter_late(&new, "q/").await;
    assert_eq!(bed.here().undo(&new).await, Found::Nothing);
    late.let_go().await;
    assert!(bed.there().waiters().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adoption_that_comes_after_the_undo_of_its_call_takes_no_effect() {
    let Some(bed) = Bed::new().await else { return };
    bed.there().hold(claim("holder")).await;
    let waiter = bed.there().queue(claim("waiter")).await;
    let retry = waiter.again();
    let late = bed.enter_late(&retry, "q/").await;
    assert_eq!(bed.here().undo(&retry).await, Found::Adopted);
    late.let_go().await;
    waiting(bed.there().take_up(&waiter).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_comes_after_the_undo_of_its_call_and_the_end_of_another_takes_no_effect() {
    let Some(bed) = Bed::new().await else { return };
    let new = claim("late");
    let late = bed.enter_late(&new, "h/x/").await;
    let retry = bed.there().hold(new.again()).await;
    assert_eq!(bed.here().undo(&new).await, Found::Adopted);
    assert_eq!(bed.there().undo(&retry.claim).await, Found::Ended(Cause::TakenBack));
    late.let_go().await;
    assert!(bed.there().is_free().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_takes_back_a_grant_that_came_while_it_found_nothing() {
    let Some(bed) = Bed::new().await else { return };
    let (here, new) = (bed.here(), claim("late"));
    let late = bed.enter_late(&new, "h/x/").await;
    let undone = bed
        .while_held(&marking(&bed, &new), here.undo(&new), late.let_go())
        .await;
    assert_eq!(undone, Found::Ended(Cause::TakenBack));
    assert!(bed.there().is_free().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_takes_out_a_claim_that_was_queued_while_it_found_nothing() {
    let Some(bed) = Bed::new().await else { return };
    bed.there().hold(claim("holder")).await;
    let (here, new) = (bed.here(), claim("late"));
    let late = bed.enter_late(&new, "q/").await;
    let undone = bed
        .while_held(&marking(&bed, &new), here.undo(&new), late.let_go())
        .await;
    assert_eq!(undone, Found::Ended(Cause::Left));
    assert!(bed.there().waiters().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_takes_out_a_claim_that_its_call_adopted_while_it_found_anothers() {
    let Some(bed) = Bed::new().await else { return };
    bed.there().hold(claim("holder")).await;
    let waiter = bed.there().queue(claim("waiter")).await;
    let (here, new) = (bed.here(), waiter.again());
    let late = bed.enter_late(&new, "q/").await;
    let undone = bed
        .while_held(&marking(&bed, &new), here.undo(&new), late.let_go())
        .await;
    assert_eq!(undone, Found::Ended(Cause::Left));
    assert!(bed.there().waiters().await.is_empty(), "nobody would serve it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_takes_back_a_grant_that_came_while_it_found_anothers() {
    let Some(bed) = Bed::new().await else { return };
    let (here, new) = (bed.here(), claim("late"));
    let late = bed.enter_late(&new, "h/x/").await;
    let retry = bed.there().hold(new.again()).await;
    let replaced = async {
        bed.there().undo(&retry.claim).await;
        late.let_go().await;
    };
    let undone = bed.while_held(&marking(&bed, &new), here.undo(&new), replaced).await;
    assert_eq!(undone, Found::Ended(Cause::TakenBack));
    assert!(bed.there().is_free().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_leaves_a_waiter_that_a_retry_adopted_meanwhile() {
    let Some(bed) = Bed::new().await else { return };
    bed.there().hold(claim("holder")).await;
    let waiter = bed.here().queue(claim("waiter")).await;
    let (here, retry) = (bed.here(), waiter.again());
    let adopted = async { drop(bed.there().queue(retry.clone()).await) };
    let undone = bed.while_held(&about(&waiter, "q/"), here.undo(&waiter), adopted).await;
    assert_eq!(undone, Found::Adopted);
    waiting(bed.there().take_up(&retry).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_leaves_a_hold_that_a_retry_found_meanwhile() {
    let Some(bed) = Bed::new().await else { return };
    let hold = bed.here().hold(claim("holder")).await;
    let here = bed.here();
    let found = async { drop(held(bed.there().enter(&hold.claim.again()).await)) };
    let undone = bed
        .while_held(&about(&hold.claim, "h/x/"), here.undo(&hold.claim), found)
        .await;
    assert_eq!(undone, Found::Adopted);
    bed.there().renewed(&hold, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_leaves_the_hold_of_a_reentry_that_came_meanwhile() {
    let Some(bed) = Bed::new().await else { return };
    let owner = || claim("owner").reentrant();
    let hold = bed.here().hold(owner()).await;
    let (here, mut other) = (bed.here(), None);
    let came = async { other = Some(bed.there().hold(owner()).await) };
    let released = bed
        .while_held(&about(&hold.claim, "h/x/"), here.release(&hold), came)
        .await;
    assert_eq!(released, Found::Ended(Cause::Released));
    let renewed = bed.there().renewed(&other.expect("it was granted"), None).await;
    assert_eq!(renewed.holds, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_one_hold_leaves_another_that_came_meanwhile() {
    let Some(bed) = Bed::new().await else { return };
    let owner = || claim("owner").reentrant();
    let first = bed.here().hold(owner()).await;
    let second = bed.here().hold(owner()).await;
    let (here, mut third) = (bed.here(), None);
    let came = async { third = Some(bed.there().hold(owner()).await) };
    let released = bed
        .while_held(&about(&first.claim, "h/x/"), here.release(&second), came)
        .await;
    assert_eq!(released, Found::Ended(Cause::Released));
    let renewed = bed.there().renewed(&third.expect("it was granted"), None).await;
    assert_eq!(renewed.holds, 2);
}
