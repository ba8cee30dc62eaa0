//! Answers of a store that come late, or never.

use std::time::Duration;

use super::cases::READY;
use super::stores::OneServer;
use crate::clients::{acquire_as, serves, spawn_acquire_as, take, token, until_empty};
use crate::crowd::{Crowd, FEW};
use crate::forwarder::{Answers, Forwarder};

const TTL: Duration = Duration::from_secs(60);
const LONG: bool = cfg!(feature = "soak");

/// Of two servers, one whose answers come over a forwarder.
pub async fn are_lost_under_load<S: OneServer>() {
    let store = S::start();
    let network = Forwarder::before(store.port()).await;
    let servers = [S::locks_at(network.address()).await, store.locks().await];
    let (times, between) = (if LONG { 200 } else { 10 }, Duration::from_millis(400));
    let crowd = Crowd::begin(&servers, 8, between * (times + 4));
    for _ in 0..times {
        tokio::time::sleep(between / 2).await;
        network.answers(Answers::Lost);
        tokio::time::sleep(between / 2).await;
        network.cut();
    }
    let (grants, gap) = crowd.judge().await;
    assert!(grants > FEW, "only {grants} grants");
    assert!(gap < READY, "no grant for {gap:?}");
    until_empty(&servers[1]).await;
    store.assert_empty();
}

pub async fn are_late_under_load<S: OneServer>() {
    let store = S::start();
    let network = Forwarder::before(store.port()).await;
    let servers = [S::locks_at(network.address()).await, store.locks().await];
    let (times, between) = (if LONG { 100 } else { 4 }, Duration::from_millis(1000));
    let crowd = Crowd::begin(&servers, 8, between * (times + 2));
    for _ in 0..times {
        network.answers(Answers::Late(Duration::from_millis(300)));
        tokio::time::sleep(between / 2).await;
        network.answers(Answers::Pass);
        tokio::time::sleep(between / 2).await;
    }
    let (grants, _) = crowd.judge().await;
    assert!(grants > FEW, "only {grants} grants");
    until_empty(&servers[1]).await;
    store.assert_empty();
}

/// A call is not answered, and its retry at another server has the lock, whatever became of the call.
pub async fn are_lost_before_a_retry<S: OneServer>() {
    let store = S::start();
    let network = Forwarder::before(store.port()).await;
    let (locks, other) = (S::locks_at(network.address()).await, store.locks().await);
    for round in 0..if LONG { 50 } else { 3 } {
        let lock = format!("l{round}");
        network.answers(Answers::Lost);
        let call = spawn_acquire_as(&locks, &lock, &lock, TTL);
        tokio::time::sleep(Duration::from_millis(200)).await;
        let retried = acquire_as(&other, &lock, &lock, TTL, Duration::ZERO).await;
        network.cut();
        let called = call.await.expect("no panic");
        serves(&locks, READY).await;
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
    until_empty(&other).await;
    store.assert_empty();
}
