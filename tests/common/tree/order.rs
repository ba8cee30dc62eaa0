//! The order of calls that arrive together.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fencepost::backend::{AcquireOutcome, InspectLimit, NewClaim, Refusal, ReleaseTarget};
use fencepost::name::Mode;
use futures::future::join_all;

use crate::claims::numbered;
use crate::forwarder::{Answers, Forwarder};
use crate::harness::{addresses, backend, behind, hold, holds, lease_of, name, settings, store};

/// Locks, most of which are the first of their bucket, and calls on each.
const LOCKS: u128 = 60;
const CALLS: u128 = 24;

// G11, G43a
#[tokio::test]
async fn calls_on_the_first_lock_of_a_bucket_keep_their_order() {
    let Some(store) = store(1) else { return };
    let backend = backend(settings(addresses(&store))).await;
    for lock in 0..LOCKS {
        let mut calls = Vec::new();
        for call in 0..CALLS {
            let backend = backend.clone();
            calls.push(tokio::spawn(async move {
                let claim = numbered(lock * CALLS + call + 1);
                backend.acquire(&name(&format!("l{lock}")), &claim).await
            }));
            // It is polled before the next one is made; the store's tasks run, too.
            for _ in 0..lock % 7 + 1 {
                tokio::task::yield_now().await;
            }
        }
        let mut last = None;
        for (call, outcome) in calls.into_iter().enumerate() {
            let outcome = outcome.await.expect("no panic").expect("it answers");
            assert_eq!(holds(&outcome), call == 0, "lock {lock}, call {call}: {outcome:?}");
            if let AcquireOutcome::Waiting(queued) = outcome {
                assert!(last < Some(queued.position), "lock {lock}: call {call} has overtaken");
                last = Some(queued.position);
            }
        }
    }
}

/// Calls that are under way at the same time, while the lock is handed over.
#[tokio::test]
async fn calls_that_join_the_queue_of_a_hot_lock_keep_their_order() {
    const ROUNDS: u128 = 12;
    let Some(store) = store(1) else { return };
    let backend = backend(settings(addresses(&store))).await;
    let acquire = |number: u128| {
        let backend = backend.clone();
        async move {
            backend
                .acquire(&name("a"), &numbered(number))
                .await
                .expect("it answers")
        }
    };
    let AcquireOutcome::Held(mut held) = acquire(1).await else {
        panic!("it is free");
    };
    let mut last = None;
    let mut is_behind = |outcome: AcquireOutcome| match outcome {
        AcquireOutcome::Waiting(queued) => last.replace(queued.position) < Some(queued.position),
        other => panic!("{other:?}"),
    };
    for number in 2..=CALLS {
        assert!(is_behind(acquire(number).await));
    }
    let mut number = CALLS;
    for round in 1..=ROUNDS {
        let lease = lease_of(&held, "a");
        let next = numbered(round + 1);
        let mut calls = Vec::new();
        let mut join = || {
            number += 1;
            calls.push(tokio::spawn(acquire(number)));
        };
        join();
        let released = backend.release(&lease.lock.name, ReleaseTarget::Hold(&lease), Some(&next));
        held = released.await.expect("it answers").next.expect("it is next");
        for _ in 0..4 {
            join();
            // It is polled before the next one is made.
            tokio::task::yield_now().await;
        }
        for (call, outcome) in join_all(calls).await.into_iter().enumerate() {
            assert!(
                is_behind(outcome.expect("no panic")),
                "round {round}: call {call} has overtaken"
            );
        }
    }
}

/// Two of them are refused, for another call of their request has its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_behind_some_that_are_refused_keep_their_order() {
    const LATE: Duration = Duration::from_millis(20);
    const WAITERS: u128 = 16;
    const ROUNDS: u128 = 2;
    let Some(store) = store(1) else { return };
    let network = Forwarder::before(store.servers[0].port()).await;
    let backend = backend(settings(behind(&network))).await;
    for round in 0..ROUNDS {
        let (lock, first) = (name(&format!("l{round}")), 100 * round + 1);
        network.answers(Answers::Pass);
        // The second one makes the lock known to the replica.
        for number in first..first + 2 {
            let claim = numbered(number);
            backend.acquire(&lock, &claim).await.expect("it answers");
        }
        network.answers(Answers::Late(LATE));
        let calls = (2..WAITERS).map(|call| {
            let request = match call {
                6 | 9 => call - 1,
                call => call,
            };
            let claim = NewClaim {
                id: numbered(first + request).id,
                retryable: [5, 6, 8, 9].contains(&call),
                ..numbered(first + call)
            };
            let (backend, lock) = (backend.clone(), lock.clone());
            async move { backend.acquire(&lock, &claim).await }
        });
        let mut places = Vec::new();
        for outcome in join_all(calls).await {
            match outcome.expect("it answers") {
                AcquireOutcome::Waiting(queued) => places.push(queued.position),
                other => panic!("round {round}: {other:?}"),
            }
        }
        // The second call of a request has the place of the first.
        assert_eq!((places[3], places[6]), (places[4], places[7]), "round {round}");
        places.dedup();
        assert!(places.is_sorted(), "round {round}: {places:?}");
        assert_eq!(
            places.len(),
            usize::try_from(WAITERS).expect("a few") - 4,
            "round {round}"
        );
    }
}

/// Each is enqueued before the other is seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_claims_of_kinds_that_do_not_mix_waits() {
    let Some(store) = store(1) else { return };
    let direct = backend(settings(addresses(&store))).await;
    hold(&*direct, "a", &numbered(1)).await;
    let (mut networks, mut calls) = (Vec::new(), Vec::new());
    let modes = [Mode::Shared, Mode::semaphore(1, 2).expect("a semaphore")];
    for (number, mode) in (2..).zip(modes) {
        let network = Forwarder::before(store.servers[0].port()).await;
        let backend = backend(settings(behind(&network))).await;
        networks.push(network);
        calls.push((
            backend,
            NewClaim {
                mode,
                ..numbered(number)
            },
        ));
    }
    for network in &networks {
        network.answers(Answers::Late(Duration::from_millis(40)));
    }
    let calls = calls
        .into_iter()
        .map(|(backend, claim)| tokio::spawn(async move { backend.acquire(&name("a"), &claim).await }));
    let (mut waiting, mut refused) = (0, 0);
    for call in calls.collect::<Vec<_>>() {
        match call.await.expect("no panic").expect("it answers") {
            AcquireOutcome::Waiting(_) => waiting += 1,
            AcquireOutcome::Refused(Refusal::LimitMismatch { .. }) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((waiting, refused), (1, 1));
    let queue = direct.inspect(&name("a"), InspectLimit::of_each(9)).await;
    assert_eq!(
        queue.expect("it answers").waiter_count,
        1,
        "the one that was refused waits"
    );
}

/// Each takes its place with one answer, and lists the lock while the next takes its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_take_their_places_without_waiting_for_the_lists_of_those_before() {
    const LATE: Duration = Duration::from_millis(250);
    const WAITERS: u32 = 10;
    let Some(store) = store(1) else { return };
    let network = Forwarder::before(store.servers[0].port()).await;
    let backend = backend(settings(behind(&network))).await;
    // The first waiter makes the lock known to the replica.
    for number in 1..=2 {
        backend
            .acquire(&name("a"), &numbered(number))
            .await
            .expect("it answers");
    }
    network.answers(Answers::Late(LATE));
    let alone = Instant::now();
    backend.acquire(&name("a"), &numbered(3)).await.expect("it answers");
    let alone = alone.elapsed();
    let together = Instant::now();
    let calls = (0..WAITERS).map(|call| {
        let backend = backend.clone();
        async move { backend.acquire(&name("a"), &numbered(u128::from(call) + 4)).await }
    });
    for outcome in join_all(calls).await {
        assert!(!holds(&outcome.expect("it answers")));
    }
    let together = together.elapsed();
    println!("{alone:?} alone, {together:?} for {WAITERS}");
    assert!(
        together < alone * WAITERS * 3 / 4,
        "{together:?} for {WAITERS}, and {alone:?} for one"
    );
}

/// The first one finds the lock in use, and its list says so to the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_of_two_calls_on_a_newly_crowded_lock_sends_no_grant() {
    const LATE: Duration = Duration::from_millis(40);
    let Some(store) = store(1) else { return };
    let network = Forwarder::before(store.servers[0].port()).await;
    let here = backend(settings(behind(&network))).await;
    let there = backend(settings(addresses(&store))).await;
    let sent = Arc::<Mutex<Vec<u8>>>::default();
    let log = Arc::clone(&sent);
    // It looks at the commands, and holds none.
    network.holds(move |commands| {
        log.lock().expect("no panic").extend(commands);
        false
    });
    network.answers(Answers::Late(LATE));
    for lock in 0..4 {
        let name = name(&format!("l{lock}"));
        let claims = [1, 2, 3].map(|number| numbered(10 * lock + number));
        let held = there.acquire(&name, &claims[0]).await.expect("it answers");
        assert!(holds(&held));
        let calls = claims.iter().skip(1).map(|claim| {
            let (here, name, claim) = (here.clone(), name.clone(), claim.clone());
            tokio::spawn(async move { here.acquire(&name, &claim).await })
        });
        for outcome in join_all(calls.collect::<Vec<_>>()).await {
            assert!(!holds(&outcome.expect("no panic").expect("it answers")));
        }
        let sent = std::mem::take(&mut *sent.lock().expect("no panic"));
        let is_granting = |claim: &&NewClaim| {
            let holder = format!("h-x-{}-", claim.id);
            sent.windows(holder.len()).any(|part| part == holder.as_bytes())
        };
        assert_eq!(claims[1..].iter().filter(is_granting).count(), 1, "lock {lock}");
    }
}
