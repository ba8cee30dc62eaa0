//! Tests of one queue without a store.

use common::claims::numbered;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};

use super::*;
use crate::name::{FencingToken, Ttl};

const LONG: Duration = Duration::from_secs(60);

fn lock() -> LockName {
    LockName::new("a").unwrap()
}

fn claim(number: u8) -> NewClaim {
    NewClaim {
        ttl: Ttl::new(LONG).unwrap(),
        ..numbered(number.into())
    }
}

fn waiting() -> (Waiting, BoxStream<'static, Notification>) {
    let notifications = Arc::new(NotificationSender::default());
    (Waiting::new(Arc::clone(&notifications)), notifications.open())
}

/// The notifications since the last call.
fn received(receiver: &mut BoxStream<'static, Notification>) -> Vec<Notification> {
    std::iter::from_fn(|| receiver.next().now_or_never().flatten()).collect()
}

fn permit(action: NextAction<'_>) -> AttemptPermit<'_> {
    match action {
        NextAction::Contend(permit) => permit,
        NextAction::Wait(ahead) => panic!("it waits: {ahead:?}"),
        NextAction::Refused(refusal) => panic!("it is refused: {refusal:?}"),
        NextAction::Unknown => panic!("it is not in the queue"),
    }
}

/// Enqueues these calls in this order behind a holder.
fn enqueue_all(waiting: &Waiting, calls: &[NewClaim]) {
    for (at, call) in calls.iter().enumerate() {
        match waiting.acquire(&lock(), call) {
            NextAction::Contend(permit) if at == 0 => drop(permit.enqueue(call, Some(LONG))),
            NextAction::Wait(_) if at > 0 => {}
            _ => panic!("{at} has another action"),
        }
    }
}

fn ahead(outcome: AcquireOutcome) -> QueuePosition {
    match outcome {
        AcquireOutcome::Waiting(ahead) => ahead,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_cancelled_during_its_attempt_is_not_enqueued_again() {
    let (waiting, mut receiver) = waiting();
    let calls = [claim(1), claim(2)];
    enqueue_all(&waiting, &calls);
    let attempt = permit(waiting.retry(&lock(), calls[0].call));
    assert!(waiting.release(&lock(), calls[0].call).is_some());
    received(&mut receiver);
    assert!(matches!(
        attempt.enqueue(&calls[0], Some(LONG)),
        AcquireOutcome::Cancelled
    ));
    // The other call could not attempt meanwhile.
    assert_eq!(received(&mut receiver), [Notification::Next(lock(), calls[1].id)]);
    let attempt = permit(waiting.retry(&lock(), calls[1].call));
    attempt.finish(None);
    assert!(waiting.state.lock().by_lock.is_empty());
    assert_eq!(waiting.state.lock().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_finds_its_queue_full_after_its_attempt_lets_the_first_waiter_attempt() {
    let (waiting, mut receiver) = waiting();
    let mut calls = [claim(1), claim(2), claim(3)];
    for call in &mut calls {
        call.limits.queue = 2;
    }
    let attempt = permit(waiting.acquire(&lock(), &calls[0]));
    assert!(matches!(waiting.acquire(&lock(), &calls[1]), NextAction::Wait(_)));
    assert!(matches!(waiting.acquire(&lock(), &calls[2]), NextAction::Refused(_)));
    assert_eq!(received(&mut receiver), []);
    assert!(matches!(
        attempt.enqueue(&calls[0], Some(LONG)),
        AcquireOutcome::Refused(Refusal::Full { limit: 2 })
    ));
    assert_eq!(received(&mut receiver), [Notification::Next(lock(), calls[1].id)]);
    permit(waiting.retry(&lock(), calls[1].call)).finish(None);
    assert!(waiting.state.lock().by_lock.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lock_released_during_an_attempt_is_retried_soon() {
    let (waiting, _heard) = waiting();
    let calls = [claim(1), claim(2)];
    // The call is in the queue, or not yet.
    let new_call = permit(waiting.acquire(&lock(), &calls[0]));
    waiting.freed(&lock(), None);
    assert_eq!(ahead(new_call.enqueue(&calls[0], Some(LONG))).frees_in, Some(MIN_WAIT));
    let retry = permit(waiting.retry(&lock(), calls[0].call));
    waiting.gap();
    assert_eq!(ahead(retry.enqueue(&calls[0], Some(LONG))).frees_in, Some(MIN_WAIT));
    // Only once: the next attempt makes up for what was missed.
    let retry = permit(waiting.retry(&lock(), calls[0].call));
    assert!(ahead(retry.enqueue(&calls[0], Some(LONG))).frees_in > Some(LONG / 2));
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_does_not_notify_its_own_call() {
    let (waiting, mut receiver) = waiting();
    let calls = [claim(1), claim(2)];
    enqueue_all(&waiting, &calls);
    received(&mut receiver);
    for _ in 0..10 {
        drop(permit(waiting.retry(&lock(), calls[0].call)));
        assert_eq!(received(&mut receiver), []);
    }
    // A permit of a call that is not, or no longer, in the queue lets the first waiter attempt.
    drop(permit(waiting.retry(&lock(), calls[0].call)));
    let attempt = permit(waiting.retry(&lock(), calls[0].call));
    waiting.release(&lock(), calls[0].call);
    received(&mut receiver);
    drop(attempt);
    assert_eq!(received(&mut receiver), [Notification::Next(lock(), calls[1].id)]);
}

#[tokio::test(start_paused = true)]
async fn only_a_call_without_attempts_is_unknown_to_the_nodes() {
    let (waiting, _heard) = waiting();
    let calls = [claim(1), claim(2)];
    enqueue_all(&waiting, &calls);
    assert_eq!(waiting.release(&lock(), calls[0].call), Some(true));
    assert_eq!(waiting.release(&lock(), calls[1].call), Some(false));
    assert_eq!(waiting.release(&lock(), calls[1].call), None);
}

fn grant(claim: &NewClaim, token: u64) -> Grant {
    Grant {
        claim: claim.id,
        kind: claim.mode.into(),
        secret: claim.secret,
        token: FencingToken::new(token).unwrap(),
        owner: claim.owner.clone(),
        ttl: LONG,
        waited: Duration::ZERO,
        holds: 1,
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_arrives_during_an_attempt_is_notified_when_it_holds() {
    let (waiting, mut receiver) = waiting();
    let calls = [claim(1), claim(2), claim(3)];
    let mut first = permit(waiting.acquire(&lock(), &calls[0]));
    assert!(!first.is_awaited());
    assert!(matches!(waiting.acquire(&lock(), &calls[1]), NextAction::Wait(_)));
    first.finish(Some(&grant(&calls[0], 7)));
    // No node knows that it waits.
    assert_eq!(received(&mut receiver), [Notification::Next(lock(), calls[1].id)]);
    assert!(matches!(waiting.acquire(&lock(), &calls[2]), NextAction::Wait(_)));
    let mut second = permit(waiting.retry(&lock(), calls[1].call));
    assert!(second.is_awaited());
    second.finish(Some(&grant(&calls[1], 8)));
    assert_eq!(received(&mut receiver), []);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_earlier_lease_notifies_no_waiter() {
    let (waiting, mut receiver) = waiting();
    let calls = [claim(1), claim(2)];
    enqueue_all(&waiting, &calls);
    let mut first = permit(waiting.retry(&lock(), calls[0].call));
    assert!(first.is_awaited());
    first.finish(Some(&grant(&calls[0], 8)));
    received(&mut receiver);
    waiting.freed(&lock(), Some(7));
    assert_eq!(received(&mut receiver), []);
    for number in [Some(8), Some(9), None] {
        waiting.freed(&lock(), number);
        assert_eq!(received(&mut receiver), [Notification::Next(lock(), calls[1].id)]);
    }
}
