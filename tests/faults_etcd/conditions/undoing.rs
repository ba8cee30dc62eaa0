//! What an undo, or a release, asks of the claim that it found: what came late, or another call, may have changed it.

use fencepost::backend::{NewClaim, Released};
use fencepost::claim::Cause;

use crate::claims::{Asking, claim};
use crate::fixture::Fixture;
use crate::replica::{held, waiting};

/// The parts of the step that leaves this call's mark.
fn marking(fixture: &Fixture, call: &NewClaim) -> [String; 2] {
    ["KV/Txn".to_owned(), fixture.key(&format!("mark/{}", call.call))]
}

/// The parts of a step about a key of the case's lock with this end.
fn about(end: &str) -> [String; 2] {
    ["KV/Txn".to_owned(), format!("\t{end}")]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_comes_after_the_undo_of_its_call_takes_no_effect() {
    let Some(fixture) = Fixture::new().await else { return };
    let new = claim("late");
    let late = fixture.acquire_late(&new, "h/x/").await;
    assert_eq!(fixture.here().undo(&new).await, Released::Nothing);
    late.let_go().await;
    assert!(fixture.there().is_free().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_comes_to_the_queue_after_the_undo_of_its_call_takes_no_effect() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.there().hold(claim("holder")).await;
    let new = claim("late");
    let late = fixture.acquire_late(&new, "q/").await;
    assert_eq!(fixture.here().undo(&new).await, Released::Nothing);
    late.let_go().await;
    assert!(fixture.there().waiters().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adoption_that_comes_after_the_undo_of_its_call_takes_no_effect() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.there().hold(claim("holder")).await;
    let waiter = fixture.there().queue(claim("waiter")).await;
    let retry = waiter.again();
    let late = fixture.acquire_late(&retry, "q/").await;
    assert_eq!(fixture.here().undo(&retry).await, Released::Adopted);
    late.let_go().await;
    waiting(fixture.there().promote(&waiter).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reentry_that_comes_after_the_undo_of_its_call_takes_no_effect() {
    let Some(fixture) = Fixture::new().await else { return };
    let hold = fixture.there().hold(claim("owner").reentrant()).await;
    let again = claim("owner").reentrant();
    let late = fixture.reenter_late(&hold, &again).await;
    assert_eq!(fixture.here().undo(&again).await, Released::Nothing);
    late.let_go().await;
    fixture.there().release(&hold).await;
    assert!(fixture.there().is_free().await, "nobody knows of the second hold");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_comes_after_the_undo_of_its_call_and_the_end_of_another_takes_no_effect() {
    let Some(fixture) = Fixture::new().await else { return };
    let new = claim("late");
    let late = fixture.acquire_late(&new, "h/x/").await;
    let retry = fixture.there().hold(new.again()).await;
    assert_eq!(fixture.here().undo(&new).await, Released::Adopted);
    assert_eq!(fixture.there().undo(&retry.claim).await, Released::Ended(Cause::Undone));
    late.let_go().await;
    assert!(fixture.there().is_free().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_takes_back_a_grant_that_came_while_it_found_nothing() {
    let Some(fixture) = Fixture::new().await else { return };
    let (here, new) = (fixture.here(), claim("late"));
    let late = fixture.acquire_late(&new, "h/x/").await;
    let undone = fixture
        .while_held(&marking(&fixture, &new), here.undo(&new), late.let_go())
        .await;
    assert_eq!(undone, Released::Ended(Cause::Undone));
    assert!(fixture.there().is_free().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_takes_out_a_claim_that_was_queued_while_it_found_nothing() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.there().hold(claim("holder")).await;
    let (here, new) = (fixture.here(), claim("late"));
    let late = fixture.acquire_late(&new, "q/").await;
    let undone = fixture
        .while_held(&marking(&fixture, &new), here.undo(&new), late.let_go())
        .await;
    assert_eq!(undone, Released::Ended(Cause::Cancelled));
    assert!(fixture.there().waiters().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_takes_out_a_claim_that_its_call_adopted_while_it_found_anothers() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.there().hold(claim("holder")).await;
    let waiter = fixture.there().queue(claim("waiter")).await;
    let (here, new) = (fixture.here(), waiter.again());
    let late = fixture.acquire_late(&new, "q/").await;
    let undone = fixture
        .while_held(&marking(&fixture, &new), here.undo(&new), late.let_go())
        .await;
    assert_eq!(undone, Released::Ended(Cause::Cancelled));
    assert!(fixture.there().waiters().await.is_empty(), "nobody would serve it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_takes_back_a_grant_that_came_while_it_found_anothers() {
    let Some(fixture) = Fixture::new().await else { return };
    let (here, new) = (fixture.here(), claim("late"));
    let late = fixture.acquire_late(&new, "h/x/").await;
    let retry = fixture.there().hold(new.again()).await;
    let replaced = async {
        fixture.there().undo(&retry.claim).await;
        late.let_go().await;
    };
    let undone = fixture
        .while_held(&marking(&fixture, &new), here.undo(&new), replaced)
        .await;
    assert_eq!(undone, Released::Ended(Cause::Undone));
    assert!(fixture.there().is_free().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_leaves_a_waiter_that_a_retry_adopted_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.there().hold(claim("holder")).await;
    let waiter = fixture.here().queue(claim("waiter")).await;
    let (here, retry) = (fixture.here(), waiter.again());
    let adopted = async { drop(fixture.there().queue(retry.clone()).await) };
    let undone = fixture.while_held(&about("q/"), here.undo(&waiter), adopted).await;
    assert_eq!(undone, Released::Adopted);
    waiting(fixture.there().promote(&retry).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_leaves_a_hold_that_a_retry_found_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    let hold = fixture.here().hold(claim("holder")).await;
    let here = fixture.here();
    let found = async { drop(held(fixture.there().acquire(&hold.claim.again()).await)) };
    let undone = fixture.while_held(&about("h/x/"), here.undo(&hold.claim), found).await;
    assert_eq!(undone, Released::Adopted);
    fixture.there().renewed(&hold, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_leaves_the_hold_of_a_reentry_that_came_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    let owner = || claim("owner").reentrant();
    let hold = fixture.here().hold(owner()).await;
    let (here, mut other) = (fixture.here(), None);
    let came = async { other = Some(fixture.there().hold(owner()).await) };
    let released = fixture.while_held(&about("h/x/"), here.release(&hold), came).await;
    assert_eq!(released, Released::Ended(Cause::Released));
    let renewed = fixture.there().renewed(&other.expect("it was granted"), None).await;
    assert_eq!(renewed.holds, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_one_hold_leaves_another_that_came_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    let owner = || claim("owner").reentrant();
    let _first = fixture.here().hold(owner()).await;
    let second = fixture.here().hold(owner()).await;
    let (here, mut third) = (fixture.here(), None);
    let came = async { third = Some(fixture.there().hold(owner()).await) };
    let released = fixture.while_held(&about("h/x/"), here.release(&second), came).await;
    assert_eq!(released, Released::Ended(Cause::Released));
    let renewed = fixture.there().renewed(&third.expect("it was granted"), None).await;
    assert_eq!(renewed.holds, 2);
}
