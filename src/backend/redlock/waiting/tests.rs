//! A line by itself, as its calls come and go.

use tokio::sync::mpsc;

use super::*;
use crate::backend::{ClaimLimits, WaitPolicy};
use crate::name::{FencingToken, Identity, Metadata, Owner, Secret, Ttl};

const LONG: Duration = Duration::from_secs(60);

fn lock() -> LockName {
    LockName::new("a").unwrap()
}

fn claim(number: u8) -> NewClaim {
    NewClaim {
        id: ClaimId::from_bytes([number; 16]),
        call: CallId::from_bytes([number; 16]),
        secret: Secret::from_bytes([number; 16]),
        retryable: false,
        owner: Owner::new("tester").unwrap(),
        identity: Identity::anonymous(),
        mode: Mode::Exclusive,
        reentrant: false,
        ttl: Ttl::new(LONG).unwrap(),
        metadata: Metadata::default(),
        wait_policy: WaitPolicy::Wait,
        limits: ClaimLimits {
            queue: 100,
            finished: 100,
            holds: 100,
        },
        arrived: Instant::now(),
    }
}

fn waiting() -> (Waiting, mpsc::Receiver<Notification>) {
    let (notifications, heard) = NotificationSender::new();
    (Waiting::new(Arc::new(notifications)), heard)
}

/// Who was told since the last time.
fn told(heard: &mut mpsc::Receiver<Notification>) -> Vec<Notification> {
    std::iter::from_fn(|| heard.try_recv().ok()).collect()
}

fn contends(turn: NextAction<'_>) -> AttemptPermit<'_> {
    match turn {
        NextAction::Contend(contending) => contending,
        NextAction::Wait(ahead) => panic!("it waits: {ahead:?}"),
        NextAction::Refused(refusal) => panic!("it is refused: {refusal:?}"),
        NextAction::Unknown => panic!("it is not in the line"),
    }
}

/// Somebody else holds, and these wait in this order.
fn line(waiting: &Waiting, calls: &[NewClaim]) {
    for (at, call) in calls.iter().enumerate() {
        match waiting.acquire(&lock(), call) {
            NextAction::Contend(contending) if at == 0 => drop(contending.waits(call, Some(LONG))),
            NextAction::Wait(_) if at > 0 => {}
            _ => panic!("{at} has another turn"),
        }
    }
}

fn ahead(place: AcquireOutcome) -> QueuePosition {
    match place {
        AcquireOutcome::Waiting(ahead) => ahead,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_left_while_it_contended_stays_out_of_the_line() {
    let (waiting, mut heard) = waiting();
    let calls = [claim(1), claim(2)];
    line(&waiting, &calls);
    let contending = contends(waiting.again(&lock(), calls[0].call));
    assert!(waiting.release(&lock(), calls[0].call).is_some());
    told(&mut heard);
    assert!(matches!(contending.waits(&calls[0], Some(LONG)), AcquireOutcome::Cancelled));
    // Nobody could contend while the other one did.
    assert_eq!(told(&mut heard), [Notification::Next(lock(), calls[1].id)]);
    let contending = contends(waiting.again(&lock(), calls[1].call));
    contending.is_over(None);
    assert!(waiting.lines().by_lock.is_empty());
    assert_eq!(waiting.lines().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_freed_while_somebody_contends_is_asked_for_again_soon() {
    let (waiting, _heard) = waiting();
    let calls = [claim(1), claim(2)];
    // In the line or not yet.
    let newcomer = contends(waiting.acquire(&lock(), &calls[0]));
    waiting.freed(&lock(), None);
    assert_eq!(ahead(newcomer.waits(&calls[0], Some(LONG))).frees_in, Some(SOON));
    let again = contends(waiting.again(&lock(), calls[0].call));
    waiting.gap();
    assert_eq!(ahead(again.waits(&calls[0], Some(LONG))).frees_in, Some(SOON));
    // Once: what was missed is made good by the next attempt.
    let again = contends(waiting.again(&lock(), calls[0].call));
    assert!(ahead(again.waits(&calls[0], Some(LONG))).frees_in > Some(LONG / 2));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_fails_does_not_wake_its_own_call() {
    let (waiting, mut heard) = waiting();
    let calls = [claim(1), claim(2)];
    line(&waiting, &calls);
    told(&mut heard);
    for _ in 0..10 {
        drop(contends(waiting.again(&lock(), calls[0].call)));
        assert_eq!(told(&mut heard), []);
    }
    // One that is not in the line, or not any more, lets the first of it contend.
    drop(contends(waiting.again(&lock(), calls[0].call)));
    let contending = contends(waiting.again(&lock(), calls[0].call));
    waiting.release(&lock(), calls[0].call);
    told(&mut heard);
    drop(contending);
    assert_eq!(told(&mut heard), [Notification::Next(lock(), calls[1].id)]);
}

#[tokio::test(start_paused = true)]
async fn only_who_never_contended_is_unknown_to_all_nodes() {
    let (waiting, _heard) = waiting();
    let calls = [claim(1), claim(2)];
    line(&waiting, &calls);
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
async fn whoever_comes_behind_an_attempt_under_way_asks_once_it_holds() {
    let (waiting, mut heard) = waiting();
    let calls = [claim(1), claim(2), claim(3)];
    let mut first = contends(waiting.acquire(&lock(), &calls[0]));
    assert!(!first.is_awaited());
    assert!(matches!(waiting.acquire(&lock(), &calls[1]), NextAction::Wait(_)));
    first.is_over(Some(&grant(&calls[0], 7)));
    // No node knows that it waits.
    assert_eq!(told(&mut heard), [Notification::Next(lock(), calls[1].id)]);
    assert!(matches!(waiting.acquire(&lock(), &calls[2]), NextAction::Wait(_)));
    let mut second = contends(waiting.again(&lock(), calls[1].call));
    assert!(second.is_awaited());
    second.is_over(Some(&grant(&calls[1], 8)));
    assert_eq!(told(&mut heard), []);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_earlier_lease_wakes_nobody() {
    let (waiting, mut heard) = waiting();
    let calls = [claim(1), claim(2)];
    line(&waiting, &calls);
    let mut first = contends(waiting.again(&lock(), calls[0].call));
    assert!(first.is_awaited());
    first.is_over(Some(&grant(&calls[0], 8)));
    told(&mut heard);
    waiting.freed(&lock(), Some(7));
    assert_eq!(told(&mut heard), []);
    for number in [Some(8), Some(9), None] {
        waiting.freed(&lock(), number);
        assert_eq!(told(&mut heard), [Notification::Next(lock(), calls[1].id)]);
    }
}
