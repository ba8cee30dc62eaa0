//! Nodes that an operator deletes.

use std::time::Duration;

use common::clients::spawn_acquire;
use fencepost::backend::{AcquireOutcome, InspectLimit, NewClaim, ReleaseTarget, Released, WaitPolicy};
use fencepost::error::Error;

use crate::claims::numbered;
use crate::clients::{acquire, take, token};
use crate::harness::{
    Operator, READY, ROOT, addresses, backend, hold, name, nothing_is_left, queue, replica, serves, settings, store,
    waiters,
};

const TTL: Duration = Duration::from_secs(60);

// G115
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_deleted_by_hand_is_lost_and_the_next_waiter_holds() {
    let Some(store) = store(1) else { return };
    let locks = replica(&store).await;
    let held = take(&locks, "a", TTL).await;
    let waiting = spawn_acquire(&locks, "a", TTL, READY);
    waiters(&locks, "a", 1).await;
    let mut operator = Operator::open(&store).await;
    let holder = operator.claim("a", "h-").await;
    operator.delete(&holder).await;
    let next = waiting.await.expect("no panic").expect("it is next");
    assert!(token(&next) > token(&held));
    let renewed = locks.renew(&held.key, None).await;
    assert!(matches!(renewed, Err(Error::LeaseLost { .. })), "{renewed:?}");
    locks.release(&next.key).await.expect("it is held");
    nothing_is_left(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_deleted_by_hand_waits_again_or_is_told() {
    let Some(store) = store(1) else { return };
    let locks = replica(&store).await;
    let held = take(&locks, "a", TTL).await;
    let waiting = spawn_acquire(&locks, "a", TTL, READY);
    waiters(&locks, "a", 1).await;
    let mut operator = Operator::open(&store).await;
    let waiter = operator.claim("a", "q-").await;
    operator.delete(&waiter).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    locks.release(&held.key).await.expect("it is held");
    let waited = tokio::time::timeout(READY, waiting).await;
    match waited.expect("it is not forgotten").expect("no panic") {
        Ok(next) => locks.release(&next.key).await.expect("it is held"),
        Err(told) => assert!(matches!(told, Error::Superseded | Error::Backend(_)), "{told:?}"),
    }
    let next = take(&locks, "a", TTL).await;
    assert!(token(&next) > token(&held));
    locks.release(&next.key).await.expect("it is held");
    nothing_is_left(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_that_is_deleted_by_hand_is_served_again_and_tokens_rise() {
    let Some(store) = store(1) else { return };
    let locks = replica(&store).await;
    let held = take(&locks, "a", TTL).await;
    Operator::open(&store).await.delete_all().await;
    let again = async {
        loop {
            match acquire(&locks, "a", TTL, Duration::ZERO).await {
                Err(Error::Backend(_)) => tokio::time::sleep(Duration::from_millis(50)).await,
                other => return other,
            }
        }
    };
    let again = tokio::time::timeout(READY, again).await;
    let again = again.expect("it is served again").expect("it is free");
    serves(&locks).await;
    assert!(token(&again) > token(&held), "{} {}", token(&again), token(&held));
    let renewed = locks.renew(&held.key, None).await;
    assert!(matches!(renewed, Err(Error::LeaseLost { .. })), "{renewed:?}");
    locks.release(&again.key).await.expect("it is held");
    nothing_is_left(&store).await;
}

/// A late deletion of the first holder, at its version, must not meet the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_acquires_again_makes_another_path() {
    let Some(store) = store(1) else { return };
    let backend = backend(settings(addresses(&store))).await;
    let (claim, mut operator) = (numbered(1), Operator::open(&store).await);
    let mut paths = Vec::new();
    for _ in 0..2 {
        let acquired = backend.acquire(&name("a"), &claim).await.expect("the store answers");
        assert!(matches!(acquired, AcquireOutcome::Held(_)), "{acquired:?}");
        let claims = operator.claims().await;
        assert_eq!(claims.len(), 1, "{claims:?}");
        operator.delete(&claims[0].path).await;
        paths.extend(claims.into_iter().map(|claim| claim.child));
    }
    assert_ne!(paths[0], paths[1], "a path was made twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_a_base_that_was_lowered_by_hand() {
    let Some(store) = store(1) else { return };
    let locks = replica(&store).await;
    let before = take(&locks, "a", TTL).await;
    locks.release(&before.key).await.expect("it is held");
    let mut operator = Operator::open(&store).await;
    operator.write(&format!("{ROOT}/base"), &0_u64.to_be_bytes()).await;
    let after = take(&locks, "a", TTL).await;
    assert!(token(&after) > token(&before), "{} {}", token(&after), token(&before));
}

/// As another replica raises it: nothing is granted by the base from before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_count_from_a_base_that_was_raised_meanwhile() {
    let Some(store) = store(1) else { return };
    let locks = replica(&store).await;
    let before = take(&locks, "a", TTL).await;
    locks.release(&before.key).await.expect("it is held");
    let mut operator = Operator::open(&store).await;
    let raised = token(&before) + 1_000_000_000;
    operator.write(&format!("{ROOT}/base"), &raised.to_be_bytes()).await;
    let after = take(&locks, "a", TTL).await;
    assert!(token(&after) > raised, "{} {raised}", token(&after));
    locks.release(&after.key).await.expect("it is held");
}

/// A step that was judged by the record of an earlier call must not meet a new record of the same version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_record_of_a_request_that_is_forgotten_stays_for_a_while() {
    let Some(store) = store(1) else { return };
    let backend = backend(settings(addresses(&store))).await;
    hold(&*backend, "a", &numbered(1)).await;
    let mut operator = Operator::open(&store).await;
    // It is undone while it waits, and once more after its retry.
    for call in 2..4 {
        let waiter = NewClaim {
            id: numbered(2).id,
            retryable: true,
            ..numbered(call)
        };
        queue(&*backend, "a", &waiter).await;
        let target = ReleaseTarget::Call(&waiter.id, waiter.call);
        let undone = backend.release(&name("a"), target, None).await.expect("it answers");
        assert!(matches!(undone.released, Released::Ended(_)), "{undone:?}");
        assert_eq!(operator.records().await.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_finds_its_place_although_the_record_of_its_request_was_deleted() {
    let Some(store) = store(1) else { return };
    let backend = backend(settings(addresses(&store))).await;
    hold(&*backend, "a", &numbered(1)).await;
    let mut operator = Operator::open(&store).await;
    for call in 2..4 {
        let waiter = NewClaim {
            id: numbered(2).id,
            retryable: true,
            ..numbered(call)
        };
        queue(&*backend, "a", &waiter).await;
        for record in operator.records().await {
            operator.delete(&record).await;
        }
    }
    let queue = backend.inspect(&name("a"), InspectLimit::of_each(9)).await;
    assert_eq!(queue.expect("it answers").waiter_count, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_takes_its_waiting_claim_out_although_the_record_of_its_request_was_deleted() {
    let Some(store) = store(1) else { return };
    let backend = backend(settings(addresses(&store))).await;
    hold(&*backend, "a", &numbered(1)).await;
    let waiter = NewClaim {
        retryable: true,
        ..numbered(2)
    };
    let waits = backend.acquire(&name("a"), &waiter).await.expect("it answers");
    assert!(matches!(waits, AcquireOutcome::Waiting(_)), "{waits:?}");
    let mut operator = Operator::open(&store).await;
    for record in operator.records().await {
        operator.delete(&record).await;
    }
    let retry = NewClaim {
        wait_policy: WaitPolicy::NoWait,
        call: numbered(3).call,
        ..waiter
    };
    let tried = backend.acquire(&name("a"), &retry).await.expect("it answers");
    assert!(matches!(tried, AcquireOutcome::Busy(Some(_))), "{tried:?}");
    let queue = backend.inspect(&name("a"), InspectLimit::of_each(9)).await;
    assert_eq!(queue.expect("it answers").waiter_count, 0);
}
