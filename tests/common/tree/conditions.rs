//! Conditions of a step that matter only when another replica comes between a read and the step that it decides.

use std::sync::Arc;
use std::time::Duration;

use fencepost::backend::{AcquireOutcome, InspectLimit, NewClaim, RenewOutcome, WaitPolicy};
use fencepost::name::{Mode, Ttl};

use crate::claims::numbered;
use crate::forwarder::{Answers, Forwarder};
use crate::harness::{Operator, addresses, backend, behind, creates, hold, holds, name, queue, settings, store};

/// How much later one replica reads answers.
const LATE: Duration = Duration::from_millis(100);
/// Locks, each of which the other replica acquires at another moment.
const LOCKS: u32 = 8;

fn trying(number: u128) -> NewClaim {
    NewClaim {
        wait_policy: WaitPolicy::NoWait,
        ..numbered(number)
    }
}

/// It is seen empty, and acquired by another replica before the step arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_seen_empty_is_granted_once() {
    let Some(store) = store(1) else { return };
    let network = Forwarder::before(store.servers[0].port()).await;
    let late = backend(settings(behind(&network))).await;
    let other = backend(settings(addresses(&store))).await;
    // A lock's node stays without children when its holder is deleted by hand.
    let mut operator = Operator::open(&store).await;
    for lock in 0..LOCKS {
        let lock = format!("l{lock}");
        hold(&*late, &lock, &trying(1)).await;
        for claim in operator.claims().await.iter().filter(|claim| claim.lock == lock) {
            operator.delete(&claim.path).await;
        }
    }
    network.answers(Answers::Late(LATE));
    for round in 0..LOCKS {
        let name = name(&format!("l{round}"));
        let number = 2 * u128::from(round) + 2;
        let (claim, meanwhile) = (trying(number), trying(number + 1));
        let afterwards = async {
            // Its first step is refused, then it lists, then it acquires.
            tokio::time::sleep(LATE + LATE * round / 4).await;
            other.acquire(&name, &meanwhile).await
        };
        let (first, second) = tokio::join!(late.acquire(&name, &claim), afterwards);
        let is_held = |outcome| matches!(outcome, AcquireOutcome::Held(_));
        let both = [first, second].map(|outcome| is_held(outcome.expect("it answers")));
        assert_eq!(both.iter().filter(|held| **held).count(), 1, "lock {round}: {both:?}");
    }
}

/// Each reads the claim, and writes it with one hold more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_that_two_replicas_add_at_once_are_all_kept() {
    const ROUNDS: u128 = 20;
    let Some(store) = store(1) else { return };
    let (one, other) = (
        backend(settings(addresses(&store))).await,
        backend(settings(addresses(&store))).await,
    );
    let hold = |number| NewClaim {
        reentrant: true,
        ..numbered(number)
    };
    let lock = name("a");
    let held = one.acquire(&lock, &hold(1)).await.expect("it answers");
    assert!(holds(&held));
    for round in 1..=ROUNDS {
        let (first, second) = (hold(2 * round), hold(2 * round + 1));
        let (first, second) = tokio::join!(one.acquire(&lock, &first), other.acquire(&lock, &second));
        let added = [first, second].map(|outcome| match outcome.expect("it answers") {
            AcquireOutcome::Held(grant) => u128::from(grant.holds),
            other => panic!("{other:?}"),
        });
        // The first hold, and two of each round.
        assert_eq!(added.into_iter().max(), Some(2 * round + 1), "a hold was lost");
    }
}

/// The replica that granted the lease knows only the version that it wrote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_does_not_shorten_what_another_replica_has_promised() {
    let Some(store) = store(1) else { return };
    let granting = backend(settings(addresses(&store))).await;
    let other = backend(settings(addresses(&store))).await;
    let ttl = |seconds| Ttl::new(Duration::from_secs(seconds)).expect("a positive TTL");
    let claim = NewClaim {
        ttl: ttl(20),
        ..numbered(1)
    };
    let lease = hold(&*granting, "a", &claim).await;
    let longer = other.renew(&lease, Some(ttl(600))).await.expect("it answers");
    assert!(matches!(longer, RenewOutcome::Renewed(_)), "{longer:?}");
    match granting.renew(&lease, Some(ttl(20))).await.expect("it answers") {
        RenewOutcome::Renewed(grant) => assert!(grant.ttl > Duration::from_secs(300), "{:?}", grant.ttl),
        gone => panic!("{gone:?}"),
    }
}

/// Another replica enqueues a writer between the view of the try and its own place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_that_does_not_fit_after_all_leaves_the_queue() {
    let Some(store) = store(1) else { return };
    let network = Forwarder::before(store.servers[0].port()).await;
    let late = backend(settings(behind(&network))).await;
    let other = backend(settings(addresses(&store))).await;
    let shared = |number| NewClaim {
        mode: Mode::semaphore(1, 3).expect("a semaphore"),
        ..trying(number)
    };
    hold(&*other, "a", &shared(1)).await;
    network.holds(|part| creates(part, "q-"));
    let tries = tokio::spawn({
        let late = Arc::clone(&late);
        async move { late.acquire(&name("a"), &shared(2)).await }
    });
    network.is_holding().await;
    queue(&*other, "a", &numbered(3)).await;
    network.go_on();
    let busy = tries.await.expect("no panic").expect("it answers");
    assert!(matches!(busy, AcquireOutcome::Busy(_)), "{busy:?}");
    let queue = other.inspect(&name("a"), InspectLimit::of_each(9)).await;
    assert_eq!(queue.expect("it answers").waiter_count, 1, "the try waits");
}
