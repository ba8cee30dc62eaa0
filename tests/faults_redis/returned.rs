//! Data that goes back a little, as after a failover or from a snapshot, brings back waiters whose
//! calls have ended. Their replica lives, so nobody else may call them dead.

use std::time::{Duration, Instant};

use common::clients::spawn_acquire;
use fencepost::backend::Health;
use fencepost::locks::{Lease, Locks};
use tokio::task::JoinHandle;

use crate::faults_redis::forwarder::{Answers, Forwarder};
use crate::faults_redis::harness::{
    acquire, best_of_three, health, replica, serves, standalone, take, token, until_waiting,
};
use crate::faults_redis::servers::{RedisServer, available};

const TTL: Duration = Duration::from_secs(240);
/// How long anything may take that nothing promises.
const READY: Duration = Duration::from_secs(30);
/// Far less than it takes to bury a waiter that does not take its turn up.
const SOON: Duration = Duration::from_secs(3);

type Waiting = JoinHandle<Result<Lease, fencepost::error::Error>>;

/// Begins to wait for "a", and returns when so many do.
async fn wait_for(locks: &Locks, waiters: usize) -> Waiting {
    let call = spawn_acquire(locks, "a", TTL, TTL);
    until_waiting(locks, "a", waiters).await;
    call
}

/// Takes the server back to its last snapshot, and lets both replicas trust it.
async fn back(server: &mut RedisServer, replicas: [&Locks; 2]) {
    server.kill9();
    server.restart();
    for locks in replicas {
        health(locks, READY, |health| matches!(health, Health::Quarantined { .. })).await;
    }
    replicas[0].admit(None).await.unwrap();
    for locks in replicas {
        serves(locks, READY).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_come_back_from_a_snapshot_hold_nobody_up() {
    common::skip_unless!(available());
    best_of_three(SOON, take_past_the_returned).await;
}

/// How long it takes to get a lock whose queue came back with three waiters that nobody waits for.
async fn take_past_the_returned() -> Duration {
    let mut server = RedisServer::start(&[]);
    let settings = standalone(&server.url());
    let (one, two) = (replica(&settings).await, replica(&settings).await);
    let held = take(&one, "a", TTL).await;
    let ended = [
        wait_for(&one, 1).await,
        wait_for(&two, 2).await,
        wait_for(&one, 3).await,
    ];
    assert_eq!(server.cli(&["SAVE"]), "OK");
    for call in &ended {
        call.abort();
    }
    until_waiting(&one, "a", 0).await;
    back(&mut server, [&one, &two]).await;
    assert_eq!(one.inspect(&held.key.lock.name, 1).await.unwrap().waiter_count, 3);
    one.release(&held.key).await.unwrap();
    let asked = Instant::now();
    let lease = acquire(&two, "a", TTL, TTL).await.unwrap();
    let took = asked.elapsed();
    assert!(token(&lease) > token(&held));
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_comes_back_after_its_turn_was_told_holds_nobody_up() {
    common::skip_unless!(available());
    best_of_three(SOON, take_past_one_that_was_told).await;
}

/// The same, where the one that came back had been told its turn before.
async fn take_past_one_that_was_told() -> Duration {
    let mut server = RedisServer::start(&[]);
    let forwarder = Forwarder::before(server.port()).await;
    let one = replica(&standalone(&forwarder.url())).await;
    let two = replica(&standalone(&server.url())).await;
    let held = take(&two, "a", TTL).await;
    let ended = wait_for(&one, 1).await;
    // Its turn has come, and it does not hear so before the snapshot.
    forwarder.answers(Answers::Lost);
    two.release(&held.key).await.unwrap();
    assert_eq!(server.cli(&["SAVE"]), "OK");
    forwarder.cut();
    let lease = ended.await.unwrap().unwrap();
    one.release(&lease.key).await.unwrap();
    back(&mut server, [&one, &two]).await;
    // On a slow machine it has been evicted meanwhile, and this round shows nothing.
    if two.inspect(&held.key.lock.name, 1).await.unwrap().waiter_count != 1 {
        return Duration::MAX;
    }
    let asked = Instant::now();
    let next = acquire(&one, "a", TTL, TTL).await.unwrap();
    let took = asked.elapsed();
    assert!(token(&next) > token(&lease));
    took
}
