//! The leader of three servers, killed and stopped under load; a follower that is behind.

use std::time::{Duration, Instant};

use fencepost::error::Error;
use fencepost::locks::Locks;
use futures::future::join_all;

use crate::clients::take;
use crate::crowd::{Crowd, FEW};
use crate::harness::{
    FAILOVER, READY, SESSION, SYNC_LIMIT, Servers, Settings, addresses, nothing_is_left, replica, replica_of, serves,
    store, unready,
};

const LONG: bool = cfg!(feature = "soak");
/// How long a lock may go without a grant: a leader that stands still is found out after the limit, then there is an
/// election; the holder's TTL is shorter.
const GAP: Duration = Duration::from_secs(20);

// G106a
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_leaders_are_killed() {
    let Some(mut store) = store(3) else { return };
    let replicas = [replica(&store).await, replica(&store).await];
    let (times, between) = if LONG {
        (30, Duration::from_secs(10))
    } else {
        (2, Duration::from_secs(4))
    };
    let crowd = Crowd::begin(&replicas, 8, between * (times + 1));
    for _ in 0..times {
        tokio::time::sleep(between / 2).await;
        let leader = store.leader();
        store.servers[leader].kill9();
        tokio::time::sleep(between / 2).await;
        store.servers[leader].start();
    }
    let (grants, gap) = crowd.judge().await;
    assert!(grants > FEW, "only {grants} grants");
    assert!(gap < GAP, "no grant for {gap:?}");
    store.wait_ready();
    nothing_is_left(&store).await;
}

// G106a
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_leaders_stand_still_for_longer_than_a_ttl_and_a_session() {
    let Some(store) = store(3) else { return };
    let replicas = [replica(&store).await, replica(&store).await];
    let (pause, times) = (SESSION + SYNC_LIMIT, if LONG { 20 } else { 1 });
    let crowd = Crowd::begin(&replicas, 8, (pause + SESSION) * times + SESSION);
    for _ in 0..times {
        tokio::time::sleep(SESSION / 2).await;
        let leader = store.leader();
        store.servers[leader].pause();
        tokio::time::sleep(pause).await;
        store.servers[leader].resume();
        tokio::time::sleep(SESSION / 2).await;
    }
    let (grants, gap) = crowd.judge().await;
    assert!(grants > FEW, "only {grants} grants");
    assert!(gap < GAP, "no grant for {gap:?}");
    nothing_is_left(&store).await;
}

/// Clients renew after a third of it: two thirds are left when the leader fails.
const TTL: Duration = FAILOVER.saturating_mul(3).checked_div(2).expect("not by zero");

/// Renews a lease as clients do: after a third of its TTL, and again 100 ms after a failure. Returns the longest time between
/// the sending of a confirmed renewal and the answer to the next one.
async fn keep(locks: Locks, lock: &str, until: Instant) -> Duration {
    let mut sent = Instant::now();
    let lease = take(&locks, lock, TTL).await;
    let mut longest = Duration::ZERO;
    while Instant::now() < until {
        tokio::time::sleep_until((sent + TTL / 3).into()).await;
        let renewed = loop {
            let now = Instant::now();
            match locks.renew(&lease.key, None).await {
                Ok(_) => break now,
                Err(Error::Backend(_)) => tokio::time::sleep(Duration::from_millis(100)).await,
                Err(lost) => panic!("{lock} is lost {:?} after its last renewal: {lost:?}", sent.elapsed()),
            }
        };
        let answered = sent.elapsed();
        assert!(answered < TTL, "{lock} may be lost: it was renewed after {answered:?}");
        (sent, longest) = (renewed, longest.max(answered));
    }
    longest
}

/// Keeps a lease at a server for each order of the store's servers, which then are connected to the leader and to others,
/// while `fault` happens to the leader. Each has the default settings.
async fn kept_while(fault: impl AsyncFnOnce(&mut Servers)) {
    let Some(mut store) = store(3) else { return };
    let all = addresses(&store);
    let mut replicas = Vec::new();
    for first in 0..all.len() {
        let mut order = all.clone();
        order.rotate_left(first);
        let locks = unready(Settings::new(order));
        serves(&locks).await;
        replicas.push(locks);
    }
    let until = Instant::now() + 2 * TTL;
    let kept = replicas
        .into_iter()
        .enumerate()
        .map(|(number, locks)| tokio::spawn(async move { keep(locks, &format!("kept {number}"), until).await }));
    let kept = join_all(kept);
    let fault = async {
        // Just before the second renewal.
        tokio::time::sleep(TTL * 2 / 3 - Duration::from_millis(300)).await;
        fault(&mut store).await;
    };
    let (kept, ()) = tokio::join!(kept, fault);
    let longest: Vec<_> = kept.into_iter().map(|longest| longest.expect("it is kept")).collect();
    println!("renewals came after {longest:?}");
}

// G106b
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_of_enough_time_is_kept_while_a_leader_stands_still_for_longer() {
    kept_while(async |store| {
        let leader = store.leader();
        store.servers[leader].pause();
        tokio::time::sleep(TTL + Duration::from_secs(1)).await;
        store.servers[leader].resume();
    })
    .await;
}

// G106b
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_of_enough_time_is_kept_while_a_leader_is_killed() {
    kept_while(async |store| {
        let leader = store.leader();
        store.servers[leader].kill9();
    })
    .await;
}

// G106a
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_behind_a_follower_that_lags() {
    let Some(store) = store(3) else { return };
    let (leader, follower) = (store.leader(), store.followers()[0]);
    let of = |server: usize| vec![addresses(&store)[server].clone()];
    let replicas = [replica_of(of(leader)).await, replica_of(of(follower)).await];
    let times = if LONG { 300 } else { 8 };
    let time = Duration::from_millis(500);
    let crowd = Crowd::begin(&replicas, 8, time * times);
    for _ in 0..times {
        // Too short to be noticed: it answers from what it had, and then from what it is sent.
        store.servers[follower].pause();
        tokio::time::sleep(time / 2).await;
        store.servers[follower].resume();
        tokio::time::sleep(time / 2).await;
    }
    let (grants, gap) = crowd.judge().await;
    assert!(grants > FEW, "only {grants} grants");
    assert!(gap < READY, "no grant for {gap:?}");
}
