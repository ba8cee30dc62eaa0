//! A replica that ZooKeeper cannot be reached from any more, while others go on.

use std::time::{Duration, Instant};

use fencepost::backend::Health;
use fencepost::backend::zookeeper::settings::{Credentials, Settings};
use fencepost::error::Error;
use fencepost::locks::Locks;

use crate::clients::{acquire, take, token};
use crate::forwarder::Forwarder;
use crate::harness::{READY, ensemble, name, nothing_is_left, replica, replica_of, serves, settings, unready, waiters};
use crate::requests::{Kind, has};

const TTL: Duration = Duration::from_secs(60);
/// How long a call may take that finds its store gone, and how long a waiter outlives its replica.
const LONGEST: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_cut_off_grants_nothing_keeps_its_leases_and_leaves_every_queue() {
    let Some(ensemble) = ensemble(1) else { return };
    let other = replica(&ensemble).await;
    let network = Forwarder::before(ensemble.servers[0].port()).await;
    let cut_off = replica_of(vec![network.address()]).await;
    let kept = take(&cut_off, "kept", TTL).await;
    let held = take(&other, "a", TTL).await;
    let wait = |locks: &Locks| {
        let locks = locks.clone();
        tokio::spawn(async move { acquire(&locks, "a", TTL, Duration::from_secs(50)).await })
    };
    let first = wait(&cut_off);
    waiters(&other, "a", 1).await;
    let second = wait(&other);
    waiters(&other, "a", 2).await;

    network.stall();
    let cut = Instant::now();
    other.release(&held.key).await.expect("it was held");
    let next = second.await.expect("no panic").expect("it comes to be first");
    println!("the waiter of the other replica was gone after {:?}", cut.elapsed());
    assert!(cut.elapsed() < LONGEST, "{:?}", cut.elapsed());
    assert!(token(&next) > token(&held));
    let asked = Instant::now();
    let refused = acquire(&cut_off, "free", TTL, Duration::ZERO).await;
    assert!(matches!(refused, Err(Error::Backend(_))), "{refused:?}");
    let renewed = cut_off.renew(&kept.key, None).await;
    assert!(matches!(renewed, Err(Error::Backend(_))), "{renewed:?}");
    assert!(asked.elapsed() < 2 * LONGEST, "{:?}", asked.elapsed());
    let away = first.await.expect("no panic");
    assert!(matches!(away, Err(Error::Backend(_))), "{away:?}");
    // What it held lives for its TTL, and is any replica's.
    other.renew(&kept.key, None).await.expect("it is held");

    network.go_on();
    serves(&cut_off).await;
    cut_off.renew(&kept.key, None).await.expect("it is held");
    cut_off.release(&kept.key).await.expect("it is held");
    let again = take(&cut_off, "kept", TTL).await;
    assert!(token(&again) > token(&kept));
    // Nothing of what it gave up came late.
    let still = other
        .check(&name("a"), next.key.token)
        .await
        .expect("the store answers");
    assert!(still.is_some());
    waiters(&other, "a", 0).await;
    let free = take(&other, "free", TTL).await;
    for lease in [&next, &again, &free] {
        other.release(&lease.key).await.expect("it is held");
    }
    nothing_is_left(&ensemble.servers[0].address()).await;
}

/// A replica that one server after the other goes silent for keeps its session, its leases and its places.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_cut_off_from_its_server_goes_on_at_another() {
    let Some(ensemble) = ensemble(3) else { return };
    let other = replica(&ensemble).await;
    let mut networks = Vec::new();
    for server in &ensemble.servers {
        networks.push(Forwarder::before(server.port()).await);
    }
    let patient = Settings {
        session_timeout: 2 * LONGEST,
        ..settings(networks.iter().map(Forwarder::address).collect())
    };
    let cut_off = unready(patient, Credentials::default());
    serves(&cut_off).await;
    let kept = take(&cut_off, "kept", TTL).await;
    let mut held = take(&other, "a", TTL).await;
    for (number, network) in networks.iter().enumerate() {
        let waiting = tokio::spawn({
            let cut_off = cut_off.clone();
            async move { acquire(&cut_off, "a", TTL, TTL).await }
        });
        waiters(&other, "a", 1).await;
        let behind = tokio::spawn({
            let other = other.clone();
            async move { acquire(&other, "a", TTL, TTL).await }
        });
        waiters(&other, "a", 2).await;
        // It has come to this server from the one before.
        network.stall();
        let mut health = cut_off.health();
        let away = health.wait_for(|health| *health != Health::Serving);
        tokio::time::timeout(READY, away)
            .await
            .expect("it notices")
            .expect("it says how it is");
        serves(&cut_off).await;
        network.go_on();
        other.release(&held.key).await.expect("it is held");
        let next = waiting.await.expect("no panic").expect("it keeps its place");
        assert!(!behind.is_finished(), "server {number}: it was overtaken");
        cut_off.renew(&kept.key, None).await.expect("it is held");
        cut_off.release(&next.key).await.expect("it is held");
        held = behind.await.expect("no panic").expect("it is next");
    }
    for lease in [&held, &kept] {
        other.release(&lease.key).await.expect("it is held");
    }
    nothing_is_left(&ensemble.servers[0].address()).await;
}

/// The server that it left gets the step when the session is at another: it must not grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_comes_late_over_a_connection_that_was_left_has_no_effect() {
    let Some(ensemble) = ensemble(3) else { return };
    let network = Forwarder::before(ensemble.servers[0].port()).await;
    let patient = Settings {
        session_timeout: 2 * LONGEST,
        ..settings(vec![network.address(), ensemble.servers[1].address()])
    };
    let moved = unready(patient, Credentials::default());
    serves(&moved).await;
    let other = replica_of(vec![ensemble.servers[2].address()]).await;
    let before = take(&moved, "a", TTL).await;
    moved.release(&before.key).await.expect("it is held");

    network.holds(|part| has(part, Kind::Create, |path| path.contains("/h-")));
    let granted = acquire(&moved, "a", TTL, Duration::ZERO).await;
    assert!(matches!(granted, Err(Error::Backend(_))), "{granted:?}");
    serves(&moved).await;
    let next = take(&other, "a", TTL).await;
    network.go_on();
    // It arrives before what follows, and finds the lock free.
    other.release(&next.key).await.expect("it is held");
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let shown = moved.inspect(&name("a"), 1).await.expect("it answers");
        assert_eq!(shown.holders.len(), 0, "a late step granted: {shown:?}");
    }
    let last = take(&moved, "a", TTL).await;
    assert!(token(&before) < token(&next) && token(&next) < token(&last));
    moved.release(&last.key).await.expect("it is held");
    nothing_is_left(&ensemble.servers[0].address()).await;
}
