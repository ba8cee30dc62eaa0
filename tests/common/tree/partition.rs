//! A replica that the store cannot be reached from any more, while others go on.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use common::clients::spawn_acquire;
use fencepost::backend::{AcquireOutcome, Health, InspectLimit, Notification, ReleaseTarget};
use fencepost::error::Error;
use fencepost::locks::Locks;
use fencepost::name::LockKey;
use futures::future::{FutureExt, join_all};
use futures::stream::StreamExt;

use crate::claims::numbered;
use crate::clients::{acquire, take, token};
use crate::forwarder::Forwarder;
use crate::harness::{
    READY, Settings, addresses, backend, behind, creates, holds, name, namespace, nothing_is_left, patient, replica,
    replica_of, serves, settings, store, unready, waiters,
};

const TTL: Duration = Duration::from_secs(60);
/// How long a call may take that finds its store gone, and how long a waiter outlives its replica.
const LONGEST: Duration = Duration::from_secs(10);

// G112
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_cut_off_grants_nothing_keeps_its_leases_and_leaves_every_queue() {
    let Some(store) = store(1) else { return };
    let other = replica(&store).await;
    let network = Forwarder::before(store.servers[0].port()).await;
    let cut_off = replica_of(behind(&network)).await;
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
    nothing_is_left(&store).await;
}

// G112
/// A replica that one server after the other goes silent for keeps its session, its leases and its places.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_cut_off_from_its_server_goes_on_at_another() {
    let Some(store) = store(3) else { return };
    let other = replica(&store).await;
    let mut networks = Vec::new();
    for server in &store.servers {
        networks.push(Forwarder::before(server.port()).await);
    }
    let ways = networks.iter().flat_map(behind).collect();
    let cut_off = unready(patient(ways, 2 * LONGEST));
    serves(&cut_off).await;
    let kept = take(&cut_off, "kept", TTL).await;
    let mut held = take(&other, "a", TTL).await;
    for (number, network) in networks.iter().enumerate() {
        let waiting = spawn_acquire(&cut_off, "a", TTL, TTL);
        waiters(&other, "a", 1).await;
        let behind = spawn_acquire(&other, "a", TTL, TTL);
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
    nothing_is_left(&store).await;
}

/// The server that it left gets the step when the session is at another: it must not grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_comes_late_over_a_connection_that_was_left_has_no_effect() {
    let Some(store) = store(3) else { return };
    let network = Forwarder::before(store.servers[0].port()).await;
    // It cannot begin at the other one.
    let later = Forwarder::before(store.servers[1].port()).await;
    later.stall();
    let ways = [behind(&network), behind(&later)].concat();
    let moved = unready(patient(ways, 2 * LONGEST));
    serves(&moved).await;
    later.go_on();
    let other = replica_of(addresses(&store)[2..].to_vec()).await;
    let before = take(&moved, "a", TTL).await;
    moved.release(&before.key).await.expect("it is held");

    network.holds(|part| creates(part, "h-"));
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
    nothing_is_left(&store).await;
}

/// Calls of other clients are the first that list the locks over the new connection, or the replica is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_became_next_during_a_cut_are_notified_by_whatever_list_shows_it() {
    const LOCKS: u128 = 40;
    let Some(store) = store(1) else { return };
    let network = Forwarder::before(store.servers[0].port()).await;
    let here = backend(Settings {
        timeout: LONGEST,
        ..patient(behind(&network), 2 * LONGEST)
    });
    let here = here.await;
    let there = backend(settings(addresses(&store))).await;
    let mut notifications = here.notifications();
    let lock = |number: u128| name(&format!("l{number}"));
    let mut leases = Vec::new();
    for number in 1..=LOCKS {
        match there
            .acquire(&lock(number), &numbered(number))
            .await
            .expect("it answers")
        {
            AcquireOutcome::Held(grant) => leases.push(grant.lease(LockKey {
                namespace: namespace(),
                name: lock(number),
            })),
            other => panic!("{other:?}"),
        }
        let waits = here.acquire(&lock(number), &numbered(LOCKS + number)).await;
        assert!(!holds(&waits.expect("it answers")));
    }
    // No new connection is let in until it goes on.
    network.ends_after(|_| false);
    network.cut();
    let mut health = here.health();
    let away = health.wait_for(|health| *health != Health::Serving);
    let away = tokio::time::timeout(READY, away).await.expect("it notices");
    drop(away);
    let releases = leases.iter().map(|lease| {
        let target = ReleaseTarget::Hold(lease);
        there.release(&lease.lock.name, target, None)
    });
    for released in join_all(releases).await {
        released.expect("it answers");
    }
    let asked = (1..=LOCKS).map(|number| {
        let here = here.clone();
        tokio::spawn(async move { here.inspect(&lock(number), InspectLimit::of_each(0)).await })
    });
    let asked: Vec<_> = asked.collect();
    network.go_on();
    for shown in join_all(asked).await {
        let shown = shown.expect("no panic").expect("it answers");
        assert_eq!((shown.holder_count, shown.waiter_count), (0, 1));
    }
    let mut notified = HashSet::new();
    while let Some(Some(Notification::Next(lock, _))) = notifications.next().now_or_never() {
        notified.insert(lock);
    }
    let late: Vec<_> = (1..=LOCKS).map(lock).filter(|lock| !notified.contains(lock)).collect();
    assert!(
        late.is_empty(),
        "a list showed that it is their turn, and nobody told them: {late:?}"
    );
}
