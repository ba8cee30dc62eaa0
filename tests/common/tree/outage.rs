//! Many calls while the store is away.

use std::time::{Duration, Instant};

use common::clients::spawn_acquire;
use fencepost::backend::Health;
use fencepost::error::Error;
use fencepost::locks::Acquire;
use fencepost::name::Mode;
use futures::future::join_all;

use crate::claims::numbered;
use crate::clients::{acquire, ask, take, token};
use crate::harness::{
    Settings, addresses, backend, hold, nothing_is_left, replica, serves, settings, store, unready, waiters,
};

/// How long a request may take.
const REQUEST: Duration = Duration::from_secs(1);
const RELEASES: usize = 24;
const TTL: Duration = Duration::from_secs(120);
/// Calls on one lock are sent one after the other.
const CALLS: usize = 40;
/// All wait for a connection together, for 2 s. One after the other they would take more than a minute.
const LONGEST: Duration = Duration::from_secs(30);

// G57
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_renewals_fail_together_while_the_store_is_away() {
    let Some(mut store) = store(1) else { return };
    let backend = backend(settings(addresses(&store))).await;
    let lease = hold(&*backend, "a", &numbered(1)).await;
    store.kill_all();
    let mut health = backend.health();
    health
        .wait_for(|health| *health != Health::Serving)
        .await
        .expect("it says how it is");
    let began = Instant::now();
    let renewals = (0..CALLS).map(|_| backend.renew(&lease, None));
    for renewed in join_all(renewals).await {
        assert!(renewed.is_err(), "{renewed:?}");
    }
    assert!(began.elapsed() < LONGEST, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_at_a_store_that_hangs_are_told_so_together_and_succeed_when_it_is_back() {
    let Some(store) = store(1) else { return };
    let locks = unready(Settings {
        timeout: REQUEST,
        ..settings(addresses(&store))
    });
    serves(&locks).await;
    let mut held = Vec::new();
    for n in 0..RELEASES {
        held.push(take(&locks, &format!("l{n}"), TTL).await);
    }
    store.servers[0].pause();
    let begun = Instant::now();
    let told = join_all(held.iter().map(|lease| locks.release(&lease.key))).await;
    let took = begun.elapsed();
    store.servers[0].resume();
    println!("{RELEASES} releases were answered within {took:?}");
    assert!(
        told.iter().all(|told| matches!(told, Err(Error::Backend(_)))),
        "{told:?}"
    );
    assert!(took < REQUEST * 4, "{took:?}");
    serves(&locks).await;
    for lease in &held {
        locks.release(&lease.key).await.expect("it is held, or was released");
    }
}

/// Within which time each call is told that the store is away.
const TOLD: Duration = Duration::from_secs(10);
const OF_KINDS: usize = 24;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_wait_behind_each_other_for_a_store_that_hangs_are_told_so_together() {
    let Some(store) = store(1) else { return };
    let locks = replica(&store).await;
    store.servers[0].pause();
    let begun = Instant::now();
    let permit = Mode::semaphore(1, 9).expect("good permits");
    let calls = (0..OF_KINDS).map(|n| {
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
    store.servers[0].resume();
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

// G121, G140
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_and_waiters_outlive_a_restart_of_all_servers() {
    /// A call may fail that finds its store gone for so long.
    const OUTAGE: Duration = Duration::from_secs(5);
    let Some(mut store) = store(1) else { return };
    let locks = replica(&store).await;
    let held = take(&locks, "a", TTL).await;
    let mut waiting = spawn_acquire(&locks, "a", TTL, TTL);
    waiters(&locks, "a", 1).await;
    let down = Instant::now();
    store.kill_all();
    store.start_all();
    store.wait_ready();
    serves(&locks).await;
    let ended = tokio::select! {
        biased;
        ended = &mut waiting => Some(ended),
        () = waiters(&locks, "a", 1) => None,
    };
    if let Some(ended) = ended {
        let (ended, down) = (ended.expect("no panic"), down.elapsed());
        assert!(
            matches!(ended, Err(Error::Backend(_))) && down > OUTAGE,
            "{down:?}: {ended:?}"
        );
        println!("shows nothing: the machine took {down:?} to start the server");
        return;
    }
    locks.renew(&held.key, None).await.expect("it is held");
    locks.release(&held.key).await.expect("it is held");
    let next = waiting.await.expect("no panic").expect("it is next");
    assert!(token(&next) > token(&held));
    locks.release(&next.key).await.expect("it is held");
    nothing_is_left(&store).await;
}
