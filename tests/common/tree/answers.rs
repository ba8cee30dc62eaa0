//! Answers of the store that come late, or never.

use std::time::Duration;

use common::clients::spawn_acquire;
use fencepost::error::Error;

use crate::clients::{acquire, acquire_as, take, token};
use crate::forwarder::{Answers, Forwarder};
use crate::harness::{READY, behind, grants_or_enqueues, nothing_is_left, replica, replica_of, store, waiters};

const TTL: Duration = Duration::from_secs(60);
const LONG: bool = cfg!(feature = "soak");

/// A waiter is promoted, and no answer comes: its retry at another replica finds the hold, and keeps it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_promotion_was_not_answered_leaves_the_lease_of_its_retry_as_it_is() {
    let Some(store) = store(1) else { return };
    let network = Forwarder::before(store.servers[0].port()).await;
    let locks = replica_of(behind(&network)).await;
    let other = replica(&store).await;
    for round in 0..if LONG { 20 } else { 2 } {
        let lock = format!("l{round}");
        let held = take(&locks, &lock, TTL).await;
        let call = tokio::spawn({
            let (locks, lock) = (locks.clone(), lock.clone());
            async move { acquire_as(&locks, &lock, &lock, TTL, TTL).await }
        });
        waiters(&other, &lock, 1).await;
        network.answers(Answers::Lost);
        let released = tokio::spawn({
            let locks = locks.clone();
            async move { locks.release(&held.key).await }
        });
        waiters(&other, &lock, 0).await;
        let retried = acquire_as(&other, &lock, &lock, TTL, Duration::ZERO).await;
        let retried = retried.expect("it is its own request");
        network.cut();
        released.await.expect("no panic").ok();
        let called = tokio::time::timeout(READY, call).await;
        println!("the earlier call got {called:?}");
        other.renew(&retried.key, None).await.expect("it is held");
        if let Ok(Ok(Ok(called))) = called {
            assert_eq!(token(&called), token(&retried), "one request has two tokens");
        }
        other.release(&retried.key).await.expect("it is held");
    }
    nothing_is_left(&store).await;
}

// G15
/// The waiter stands in the queue, and its call learns no more than that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_fails_after_its_waiter_was_created_leaves_no_waiter() {
    let Some(store) = store(1) else { return };
    let network = Forwarder::before(store.servers[0].port()).await;
    let locks = replica_of(behind(&network)).await;
    let other = replica(&store).await;
    let held = take(&other, "a", TTL).await;
    // It makes the lock known to this replica, so the next call enqueues with its first request.
    let first = spawn_acquire(&locks, "a", TTL, TTL);
    waiters(&other, "a", 1).await;
    network.ends_after(grants_or_enqueues);
    let failed = acquire(&locks, "a", TTL, TTL).await;
    assert!(matches!(failed, Err(Error::Backend(_))), "{failed:?}");
    network.go_on();
    other.release(&held.key).await.expect("it is held");
    // The outage may have been too long for this one too.
    match first.await.expect("no panic") {
        Ok(next) => locks.release(&next.key).await.expect("it is held"),
        Err(error) => assert!(matches!(error, Error::Backend(_)), "{error:?}"),
    }
    nothing_is_left(&store).await;
}
