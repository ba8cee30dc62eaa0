//! What callers are told while etcd hangs.

use std::time::{Duration, Instant};

use fencepost::backend::etcd::settings::Settings;
use fencepost::error::Error;
use fencepost::locks::Acquire;
use fencepost::name::Mode;
use futures::future::join_all;
use tokio::time::sleep;

use crate::harness::{acquire, ask, cluster, health, replica, rides_out, take, unready, waits_and_watches_end};

const TTL: Duration = Duration::from_secs(120);
/// How long a request may take.
const REQUEST: Duration = Duration::from_secs(1);
const RELEASES: usize = 24;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_at_a_store_that_hangs_are_told_so_together_and_succeed_when_it_is_back() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = unready(Settings {
        timeout: REQUEST,
        ..Settings::new(cluster.urls())
    });
    health(&locks, Duration::from_secs(20), |health| {
        *health == fencepost::backend::Health::Serving
    })
    .await;
    let mut held = Vec::new();
    for n in 0..RELEASES {
        held.push(take(&locks, &format!("l{n}"), TTL).await);
    }
    // What remembers their ends is asked for anew every second.
    sleep(Duration::from_millis(1_500)).await;
    cluster.servers[0].pause();
    let begun = Instant::now();
    let told = join_all(held.iter().map(|lease| locks.release(&lease.key))).await;
    let took = begun.elapsed();
    cluster.servers[0].resume();
    println!("{RELEASES} releases were answered within {took:?}");
    assert!(
        told.iter().all(|told| matches!(told, Err(Error::Backend(_)))),
        "{told:?}"
    );
    assert!(took < REQUEST * 4, "{took:?}");
    health(&locks, Duration::from_secs(20), |health| {
        *health == fencepost::backend::Health::Serving
    })
    .await;
    for lease in &held {
        locks.release(&lease.key).await.expect("it is held, or was released");
    }
}

/// Within which time each call is told that the store is away.
const TOLD: Duration = Duration::from_secs(10);
const CALLS: usize = 24;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_wait_behind_each_other_for_a_store_that_hangs_are_told_so_together() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = unready(Settings::new(cluster.urls()));
    let serves = |health: &fencepost::backend::Health| *health == fencepost::backend::Health::Serving;
    health(&locks, Duration::from_secs(20), serves).await;
    cluster.servers[0].pause();
    let begun = Instant::now();
    let permit = Mode::semaphore(1, 9).expect("good permits");
    let calls = (0..CALLS).map(|n| {
        let locks = locks.clone();
        async move {
            // Each kind has a lock of its own, and all calls of a kind are for that one.
            let told = match n % 4 {
                0 => acquire(&locks, "exclusive", TTL, TTL).await.map(drop),
                1 => locks.acquire(with(Mode::Shared, "shared", TTL)).await.map(drop),
                2 => locks.acquire(with(permit, "waited", TTL)).await.map(drop),
                _ => locks.acquire(with(permit, "tried", Duration::ZERO)).await.map(drop),
            };
            (told, begun.elapsed())
        }
    });
    let told = join_all(calls).await;
    cluster.servers[0].resume();
    // One that waits rides the outage out for a while, in which it undoes its first attempt.
    for (waits, apart) in [(false, REQUEST * 3 / 2), (true, REQUEST * 3)] {
        let those = told.iter().enumerate().filter(|(n, _)| (n % 4 != 3) == waits);
        let times = || those.clone().map(|(_, (_, took))| *took);
        let (first, last) = (times().min().unwrap_or_default(), times().max().unwrap_or_default());
        println!("that wait: {waits}: answered within {last:?}, the first after {first:?}");
        assert!(last - first < apart, "one after another: {first:?} to {last:?}");
    }
    for (told, took) in told {
        assert!(matches!(told, Err(Error::Backend(_))), "{told:?}");
        assert!(took < TOLD, "{took:?}");
    }
}

fn with(mode: Mode, lock: &str, wait: Duration) -> Acquire {
    Acquire {
        mode,
        ..ask(lock, TTL, wait)
    }
}

// G58
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_arrives_while_etcd_hangs_is_granted_afterwards_and_waits_and_watches_end() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = replica(&cluster).await;
    let member = &cluster.servers[0];
    rides_out(&locks, || member.pause(), || member.resume()).await;
    waits_and_watches_end(&locks, || member.pause()).await;
    member.resume();
}
