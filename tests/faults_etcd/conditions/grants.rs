//! What a step that grants asks of its own claim, its request and its token.

use fencepost::backend::{Found, Place};
use fencepost::claim::Cause;

use crate::bed::{Bed, step};
use crate::claims::{Asking, claim};
use crate::proxy::Fate;
use crate::replica::held;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_a_retry_was_granted_meanwhile_is_not_granted_again() {
    let Some(bed) = Bed::new().await else { return };
    let holder = bed.there().hold(claim("holder")).await;
    let older = bed.here().queue(claim("waiter")).await;
    bed.there().release(&holder).await;
    let (here, mut granted) = (bed.here(), None);
    let retried = async { granted = Some(bed.there().hold(older.again()).await) };
    let place = bed
        .while_held(&step(&older, "h/x/"), here.take_up(&older), retried)
        .await;
    assert!(matches!(place, Place::Superseded), "{place:?}");
    bed.there().renewed(&granted.expect("it was granted"), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_left_and_came_again_meanwhile_is_not_taken_up_from_its_old_place() {
    let Some(bed) = Bed::new().await else { return };
    let holder = bed.there().hold(claim("holder")).await;
    let older = bed.here().queue(claim("waiter")).await;
    bed.there().release(&holder).await;
    let (here, next) = (bed.here(), claim("next"));
    let came_again = async {
        bed.here().undo(&older).await;
        let holder = bed.there().hold(claim("holder")).await;
        bed.there().queue(next.clone()).await;
        bed.there().queue(older.again()).await;
        bed.there().release(&holder).await;
    };
    let place = bed
        .while_held(&step(&older, "h/x/"), here.take_up(&older), came_again)
        .await;
    assert!(matches!(place, Place::Superseded), "{place:?}");
    bed.there().take(&next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_left_meanwhile_is_not_taken_up() {
    let Some(bed) = Bed::new().await else { return };
    let holder = bed.there().hold(claim("holder")).await;
    let waiter = bed.here().queue(claim("waiter")).await;
    bed.there().release(&holder).await;
    let here = bed.here();
    let left = async { assert_eq!(bed.here().undo(&waiter).await, Found::Ended(Cause::Left)) };
    let place = bed
        .while_held(&step(&waiter, "h/x/"), here.take_up(&waiter), left)
        .await;
    assert!(matches!(place, Place::Gone), "{place:?}");
    assert!(bed.there().is_free().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_a_retry_adopted_is_not_taken_up_for_the_older_call_from_the_view() {
    let Some(bed) = Bed::new().await else { return };
    let holder = bed.here().hold(claim("holder")).await;
    let older = bed.here().queue(claim("waiter")).await;
    // The view is kept up as long as somebody here waits.
    bed.here().queue(claim("behind")).await;
    let retry = bed.there().queue(older.again()).await;
    bed.woken(&older).await;
    bed.here().release(&holder).await;
    let place = bed.here().take_up(&older).await;
    assert!(matches!(place, Place::Superseded), "{place:?}");
    bed.there().take(&retry).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_was_answered_meanwhile_is_not_granted_again() {
    let Some(bed) = Bed::new().await else { return };
    let late = claim("late");
    let answered = async {
        let retry = bed.there().hold(late.again()).await;
        bed.there().release(&retry).await;
    };
    let place = bed.enter_while(&late, "h/x/", answered).await;
    assert!(matches!(place, Place::Finished(Cause::Released)), "{place:?}");
    assert!(bed.there().is_free().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_a_base_that_was_raised_meanwhile() {
    let Some(bed) = Bed::new().await else { return };
    let (late, mut before) = (claim("late"), None);
    let raised = async {
        bed.raise_base(1_000_000).await;
        let other = bed.there().hold(claim("other")).await;
        bed.there().release(&other).await;
        before = Some(other.token());
    };
    let place = bed.enter_while(&late, "h/x/", raised).await;
    let (token, before) = (held(place).token, before.expect("it was granted"));
    assert!(token > before, "{token:?} after {before:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_that_another_raised_meanwhile_is_not_lowered() {
    let Some(bed) = Bed::new().await else { return };
    let mut raise = bed
        .proxy
        .catch(Fate::Held, &["KV/Txn".to_owned(), bed.key("token_base")]);
    // A new connection proves the base anew, and raises it to the time of day.
    bed.proxy.break_signs_of_life();
    raise.is_here().await;
    bed.raise_base(3_600_000_000).await;
    let other = bed.there().hold(claim("other")).await;
    bed.there().release(&other).await;
    raise.let_go().await;
    let next = bed.here().hold(claim("next")).await;
    assert!(next.token() > other.token(), "{next:?} after {other:?}");
}
