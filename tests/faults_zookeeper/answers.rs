//! Answers of ZooKeeper that come late, or never.

use std::time::Duration;

use crate::clients::{acquire_as, take, token};
use crate::crowd::Crowd;
use crate::forwarder::{Answers, Forwarder};
use crate::harness::{READY, ensemble, nothing_is_left, replica, replica_of, serves, waiters};

const TTL: Duration = Duration::from_secs(60);
const LONG: bool = cfg!(feature = "soak");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_answers_are_lost_and_connections_break() {
    let Some(ensemble) = ensemble(1) else { return };
    let network = Forwarder::before(ensemble.servers[0].port()).await;
    let replicas = [replica_of(vec![network.address()]).await, replica(&ensemble).await];
    let (times, between) = (if LONG { 200 } else { 10 }, Duration::from_millis(400));
    let crowd = Crowd::begin(&replicas, 8, between * (times + 4));
    for _ in 0..times {
        tokio::time::sleep(between / 2).await;
        network.answers(Answers::Lost);
        tokio::time::sleep(between / 2).await;
        network.cut();
    }
    let (grants, gap) = crowd.judge().await;
    assert!(grants > 50, "only {grants} grants");
    assert!(gap < Duration::from_secs(8), "no grant for {gap:?}");
    nothing_is_left(&ensemble.servers[0].address()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_answers_come_late() {
    let Some(ensemble) = ensemble(1) else { return };
    let network = Forwarder::before(ensemble.servers[0].port()).await;
    let replicas = [replica_of(vec![network.address()]).await, replica(&ensemble).await];
    let (times, between) = (if LONG { 100 } else { 4 }, Duration::from_millis(1000));
    let crowd = Crowd::begin(&replicas, 8, between * (times + 2));
    for _ in 0..times {
        network.answers(Answers::Late(Duration::from_millis(300)));
        tokio::time::sleep(between / 2).await;
        network.answers(Answers::Pass);
        tokio::time::sleep(between / 2).await;
    }
    let (grants, _) = crowd.judge().await;
    assert!(grants > 50, "only {grants} grants");
    nothing_is_left(&ensemble.servers[0].address()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_answer_is_lost_leaves_nothing_or_what_its_retry_finds() {
    let Some(ensemble) = ensemble(1) else { return };
    let network = Forwarder::before(ensemble.servers[0].port()).await;
    let locks = replica_of(vec![network.address()]).await;
    let other = replica(&ensemble).await;
    for round in 0..if LONG { 50 } else { 3 } {
        let lock = format!("l{round}");
        network.answers(Answers::Lost);
        let call = tokio::spawn({
            let (locks, lock) = (locks.clone(), lock.clone());
            async move { acquire_as(&locks, &lock, &lock, TTL, Duration::ZERO).await }
        });
        tokio::time::sleep(Duration::from_millis(200)).await;
        // Its retry at another replica has the lock, whatever became of the call.
        let retried = acquire_as(&other, &lock, &lock, TTL, Duration::ZERO).await;
        network.cut();
        let called = call.await.expect("no panic");
        serves(&locks).await;
        let retried = retried.expect("it is its own request");
        if let Ok(called) = called {
            assert_eq!(token(&called), token(&retried), "one request has two leases");
        }
        // An undo of the call takes nothing from its retry.
        tokio::time::sleep(Duration::from_millis(300)).await;
        other.renew(&retried.key, None).await.expect("it is held");
        other.release(&retried.key).await.expect("it is held");
        let next = take(&other, &lock, TTL).await;
        assert!(token(&next) > token(&retried));
        other.release(&next.key).await.expect("it is held");
    }
    nothing_is_left(&ensemble.servers[0].address()).await;
}

/// A waiter is promoted, and no answer comes: its retry at another replica finds the hold, and keeps it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_promotion_was_not_answered_leaves_the_lease_of_its_retry_as_it_is() {
    let Some(ensemble) = ensemble(1) else { return };
    let network = Forwarder::before(ensemble.servers[0].port()).await;
    let locks = replica_of(vec![network.address()]).await;
    let other = replica(&ensemble).await;
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
    nothing_is_left(&ensemble.servers[0].address()).await;
}
