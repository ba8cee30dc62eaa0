//! What a step that queues, adopts or joins asks of the claims that it found.

use std::pin::pin;
use std::time::Duration;

use etcd_client::{EventType, WatchOptions};
use fencepost::backend::{AcquireOutcome, NewClaim, Refusal, Released};
use fencepost::claim::Cause;
use futures::{join, poll};
use tokio::time::{sleep, timeout};

use crate::claims::{Asking, claim};
use crate::fixture::{Fixture, rewriting, step};
use crate::proxy::Fate;
use crate::replica::{Held, busy, held, refused, waiting};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_whose_request_was_answered_meanwhile_does_not_wait() {
    let Some(fixture) = Fixture::new().await else { return };
    let holder = fixture.there().hold(claim("holder")).await;
    let late = claim("late");
    let answered = async {
        fixture.there().release(&holder).await;
        let other_call = fixture.there().hold(late.again()).await;
        fixture.there().release(&other_call).await;
        fixture.there().hold(claim("next")).await;
    };
    let place = fixture.acquire_while(&late, "q/", answered).await;
    assert!(matches!(place, AcquireOutcome::Finished(Cause::Released)), "{place:?}");
    assert!(fixture.there().waiters().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_whose_claim_was_granted_meanwhile_does_not_wait_behind_itself() {
    let Some(fixture) = Fixture::new().await else { return };
    let holder = fixture.there().hold(claim("holder")).await;
    let late = claim("late");
    let other_call = late.again();
    let granted = async {
        fixture.there().release(&holder).await;
        fixture.there().hold(other_call.clone()).await;
    };
    let place = fixture.acquire_while(&late, "q/", granted).await;
    assert_eq!(held(place).secret, other_call.secret);
    assert!(fixture.there().waiters().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_with_other_parameters_does_not_replace_the_claim_that_was_queued_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.there().hold(claim("holder")).await;
    let late = claim("late");
    let other_call = late.again().shared();
    let queued = async { drop(fixture.there().queue(other_call.clone()).await) };
    let place = fixture.acquire_while(&late, "q/", queued).await;
    assert_eq!(refused(place), Refusal::OtherParameters { field: "mode" });
    waiting(fixture.there().promote(&other_call).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reentry_joins_a_holder_that_came_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    let holder = fixture.there().hold(claim("holder")).await;
    let late = claim("owner").reentrant();
    let came = async {
        fixture.there().release(&holder).await;
        fixture.there().hold(claim("owner").reentrant()).await;
    };
    let place = fixture.acquire_while(&late, "q/", came).await;
    assert_eq!(held(place).holds, 2);
    assert!(fixture.there().waiters().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_is_granted_where_all_that_were_known_ahead_have_left_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    let holder = fixture.there().hold(claim("holder")).await;
    // This one gives its replica a view of the lock, so that newcomers are queued without a read.
    let waiter = fixture.here().queue(claim("waiter")).await;
    let late = claim("late").unrepeated();
    let left = async {
        fixture.here().undo(&waiter).await;
        fixture.there().release(&holder).await;
    };
    held(fixture.acquire_while(&late, "q/", left).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_behind_two_waiters_keeps_its_place_although_they_have_left_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    let holder = fixture.there().hold(claim("holder")).await;
    let first = fixture.here().queue(claim("first")).await;
    let second = fixture.here().queue(claim("second")).await;
    // This one reads the lock, so its replica's view has both from now on.
    waiting(fixture.here().promote(&second).await);
    let late = claim("late").unrepeated();
    let left = async {
        fixture.here().undo(&first).await;
        fixture.here().undo(&second).await;
        fixture.there().release(&holder).await;
    };
    // A step that failed would be sent again behind calls that came after it.
    waiting(fixture.acquire_while(&late, "q/", left).await);
    fixture.here().take(&late).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adoption_does_not_queue_a_claim_that_was_granted_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    let holder = fixture.there().hold(claim("holder")).await;
    let waiter = fixture.there().queue(claim("waiter")).await;
    let late = waiter.again();
    let granted = async {
        fixture.there().release(&holder).await;
        fixture.there().take(&waiter).await;
    };
    let place = fixture.acquire_while(&late, "q/", granted).await;
    assert_eq!(held(place).secret, waiter.secret);
    assert!(fixture.there().waiters().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_that_takes_its_claim_out_ends_the_call_that_adopted_it_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.there().hold(claim("holder")).await;
    let waiter = fixture.there().queue(claim("waiter")).await;
    let (late, adopter) = (waiter.again().trying(), waiter.again());
    // The step marks the older call.
    let parts = [
        "KV/Txn".to_owned(),
        fixture.key(&format!("mark/{}", waiter.call)),
        "\tq/".to_owned(),
    ];
    let here = fixture.here();
    let adopted = async { drop(fixture.there().queue(adopter.clone()).await) };
    let place = fixture.while_held(&parts, here.acquire(&late), adopted).await;
    busy(place);
    let place = fixture.there().promote(&adopter).await;
    assert!(matches!(place, AcquireOutcome::Cancelled), "{place:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_was_released_meanwhile_is_not_brought_back_by_its_adoption() {
    let Some(fixture) = Fixture::new().await else { return };
    let hold = fixture.there().hold(claim("holder")).await;
    let (here, late) = (fixture.here(), hold.claim.again());
    let released = async { assert_eq!(fixture.there().release(&hold).await, Released::Ended(Cause::Released)) };
    let place = fixture
        .while_held(&rewriting(&hold), here.acquire(&late), released)
        .await;
    assert!(matches!(place, AcquireOutcome::Finished(Cause::Released)), "{place:?}");
    assert!(fixture.there().is_free().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reentry_does_not_undo_another_that_came_meanwhile() {
    let Some(fixture) = Fixture::new().await else { return };
    let owner = || claim("owner").reentrant();
    let first = fixture.there().hold(owner()).await;
    let (here, mut second) = (fixture.here(), None);
    let came = async { second = Some(fixture.there().hold(owner()).await) };
    let place = fixture
        .while_held(&rewriting(&first), here.acquire(&owner()), came)
        .await;
    assert_eq!(held(place).holds, 3);
    fixture.there().renewed(&second.expect("it was granted"), None).await;
}

/// The transactions that a call sent, of all that its replica sent since this was asked last.
fn sent(fixture: &Fixture, call: &NewClaim) -> Vec<Vec<u8>> {
    let is_of = |sent: &Vec<u8>| sent.windows(16).any(|part| part == call.secret.as_bytes());
    fixture.proxy.transactions().0.into_iter().filter(is_of).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_behind_a_grant_of_its_replica_is_appended_without_a_refused_grant_or_a_read() {
    let Some(fixture) = Fixture::new().await else { return };
    let (here, first, second, third) = (fixture.here(), claim("first"), claim("second"), claim("third"));
    let mut granted = fixture.proxy.catch(Fate::Held, &step(&first, "h/x/"));
    let watch = ["Watch/Watch".to_owned(), fixture.lock_key("")];
    let mut watch = fixture.proxy.catch(Fate::Held, &watch);
    let come = async {
        let (held, waits) = tokio::join!(here.acquire(&first), here.acquire(&second));
        waiting(waits);
        here.known(first.clone(), crate::replica::held(held))
    };
    let lets_go = async {
        granted.is_here().await;
        granted.let_go().await;
    };
    let (holder, ()) = tokio::join!(come, lets_go);
    assert_eq!(sent(&fixture, &second).len(), 1);
    // Nobody has seen the lock yet.
    watch.is_here().await;
    waiting(here.acquire(&third).await);
    assert_eq!(sent(&fixture, &third).len(), 1);
    watch.let_go().await;
    let second = here.release_to(&holder, &second).await.next.expect("it is next");
    let second = here.known(claim("second"), second);
    assert!(here.release_to(&second, &third).await.next.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_behind_a_grant_of_its_replica_that_has_ended_meanwhile_is_granted() {
    let Some(fixture) = Fixture::new().await else { return };
    let (here, first, second) = (fixture.here(), claim("first"), claim("second"));
    let mut granted = fixture.proxy.catch(Fate::Held, &step(&first, "h/x/"));
    let mut appended = fixture.proxy.catch(Fate::Held, &step(&second, "q/"));
    let ends = async {
        granted.is_here().await;
        granted.let_go().await;
        appended.is_here().await;
        fixture.revoke(fixture.lease().await).await;
        appended.let_go().await;
    };
    let (first, second, ()) = tokio::join!(here.acquire(&first), here.acquire(&second), ends);
    assert!(held(second).token > held(first).token);
}

/// A lock of the first replica with a holder and with two waiters that the replica has heard of, so that it appends a
/// newcomer in the order of arrival.
async fn crowded(fixture: &Fixture) -> Held {
    let holder = fixture.here().hold(claim("holder")).await;
    for waiter in ["first", "second"] {
        fixture.here().queue(claim(waiter)).await;
    }
    sleep(Duration::from_millis(200)).await;
    holder
}

/// A session sends both at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_is_not_sent_before_the_append_in_flight_is_answered() {
    let Some(fixture) = Fixture::new().await else { return };
    let holder = crowded(&fixture).await;
    let here = fixture.here();
    let new = claim("new");
    let mut append = fixture.proxy.catch(Fate::Held, &step(&new, "q/"));
    let released = async {
        append.is_here().await;
        assert!(fixture.first.orders_acquires(here.name()));
        let mut release = pin!(here.release(&holder));
        let early = timeout(Duration::from_millis(300), &mut release).await;
        assert!(early.is_err(), "it has overtaken the append");
        assert_eq!(fixture.there().tokens().await, [holder.token()]);
        append.let_go().await;
        release.await
    };
    let (place, released) = join!(here.acquire(&new), released);
    waiting(place);
    assert_eq!(released, Released::Ended(Cause::Released));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_that_is_sent_with_a_release_takes_effect_before_it() {
    let Some(fixture) = Fixture::new().await else { return };
    let holder = crowded(&fixture).await;
    let here = fixture.here();
    let all = WatchOptions::new().with_prefix();
    let mut watch = fixture.etcd.clone().watch(fixture.lock_key(""), Some(all)).await;
    let events = watch.as_mut().expect("etcd answers");
    let new = claim("new");
    let mut acquire = pin!(here.acquire(&new));
    assert!(poll!(&mut acquire).is_pending());
    assert!(fixture.first.orders_acquires(here.name()));
    let (released, place) = join!(here.release(&holder), acquire);
    assert_eq!(released, Released::Ended(Cause::Released));
    waiting(place);
    let mut queued = None;
    loop {
        let message = events.message().await.expect("etcd answers").expect("it watches");
        for event in message.events() {
            let kv = event.kv().expect("a key");
            match event.event_type() {
                EventType::Put => queued = Some(kv.mod_revision()),
                EventType::Delete => {
                    println!("appended at {queued:?}, released at {}", kv.mod_revision());
                    assert!(queued.is_some(), "the release took effect first");
                    return;
                }
            }
        }
    }
}
