//! What a step that grants asks of its own claim, its request and its token.

use fencepost::backend::{AcquireOutcome, Released};
use fencepost::claim::Cause;

use crate::claims::{Asking, claim};
use crate::fixture::{BASE, Fixture, step};
use crate::proxy::Fate;
use crate::replica::held;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_a_retry_was_granted_meanwhile_is_not_granted_again() {
    let Some(fixture) = Fixture::new().await else { return };
    let holder = fixture.there().hold(claim("holder")).await;
    let older = fixture.here().queue(claim("waiter")).await;
    fixture.there().release(&holder).await;
    let (here, mut granted) = (fixture.here(), None);
    let retried = async { granted = Some(fixture.there().hold(older.again()).await) };
    let place = fixture
        .while_held(&step(&older, "h/x/"), here.promote(&older), retried)
        .await;
    assert!(matches!(place, AcquireOutcome::Superseded), "{place:?}");
    fixture.there().renewed(&granted.expect("it was granted"), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_left_and_came_again_meanwhile_is_not_promoted_from_its_old_place() {
    let Some(fixture) = Fixture::new().await else { return };
    let holder = fixture.there().hold(claim("holder")).await;
    let older = fixture.here().queue(claim("waiter")).await;
    fixture.there().release(&holder).await;
    let (here, next) = (fixture.here(), claim("next"));
    let came_again = async {
        fixture.here().undo(&older).await;
        let holder = fixture.there().hold(claim("holder")).await;
        fixture.there().queue(next.clone()).await;
        fixture.there().queue(older.again()).await;
        fixture.there().release(&holder).await;
    };
    let place = fixture
        .while_held(&step(&older, "h/x/"), here.promote(&older), came_again)
        .await;
    assert!(matches!(place, AcquireOutcome::Superseded), "{place:?}");
    fixture.there().take(&next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_left_meanwhile_is_not_promoted() {
    let Some(fixture) = Fixture::new().await else { return };
    let holder = fixture.there().hold(claim("holder")).await;
    let waiter = fixture.here().queue(claim("waiter")).await;
    fixture.there().release(&holder).await;
    let here = fixture.here();
    let left = async { assert_eq!(fixture.here().undo(&waiter).await, Released::Ended(Cause::Cancelled)) };
    let place = fixture
        .while_held(&step(&waiter, "h/x/"), here.promote(&waiter), left)
        .await;
    assert!(matches!(place, AcquireOutcome::Gone), "{place:?}");
    assert!(fixture.there().is_free().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_a_retry_adopted_is_not_promoted_for_the_older_call_from_the_view() {
    let Some(fixture) = Fixture::new().await else { return };
    let holder = fixture.here().hold(claim("holder")).await;
    let older = fixture.here().queue(claim("waiter")).await;
    // The view is kept up as long as somebody here waits.
    fixture.here().queue(claim("behind")).await;
    let retry = fixture.there().queue(older.again()).await;
    fixture.woken(&older).await;
    fixture.here().release(&holder).await;
    let place = fixture.here().promote(&older).await;
    assert!(matches!(place, AcquireOutcome::Superseded), "{place:?}");
    fixture.there().take(&retry).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_was_answered_meanwhile_is_not_granted_again() {
    let Some(fixture) = Fixture::new().await else { return };
    let late = claim("late");
    let answered = async {
        let retry = fixture.there().hold(late.again()).await;
        fixture.there().release(&retry).await;
    };
    let place = fixture.acquire_while(&late, "h/x/", answered).await;
    assert!(matches!(place, AcquireOutcome::Finished(Cause::Released)), "{place:?}");
    assert!(fixture.there().is_free().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_a_base_that_was_raised_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    let (late, mut before) = (claim("late"), None);
    let raised = async {
        fixture.raise_base(1_000_000).await;
        let other = fixture.there().hold(claim("other")).await;
        fixture.there().release(&other).await;
        before = Some(other.token());
    };
    let place = fixture.acquire_while(&late, "h/x/", raised).await;
    let (token, before) = (held(place).token, before.expect("it was granted"));
    assert!(token > before, "{token:?} after {before:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_that_another_raised_meanwhile_is_not_lowered() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut raise = fixture
        .proxy
        .catch(Fate::Held, &["KV/Txn".to_owned(), fixture.key(BASE)]);
    // A new connection proves the base anew, and raises it to the time of day.
    fixture.proxy.break_signs_of_life();
    raise.is_here().await;
    fixture.raise_base(3_600_000_000).await;
    let other = fixture.there().hold(claim("other")).await;
    fixture.there().release(&other).await;
    raise.let_go().await;
    let next = fixture.here().hold(claim("next")).await;
    assert!(next.token() > other.token(), "{next:?} after {other:?}");
}
