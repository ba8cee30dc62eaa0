//! The leader of three servers, killed and stopped under load; a follower that is behind.

use std::time::Duration;

use crate::crowd::{Crowd, FEW};
use crate::harness::{READY, SESSION, SYNC_LIMIT, addresses, nothing_is_left, replica, replica_of, store};

const LONG: bool = cfg!(feature = "soak");
/// How long a lock may go without a grant: a leader that stands still is found out after the limit, then there is an
/// election; the holder's TTL is shorter.
const GAP: Duration = Duration::from_secs(20);

// G106
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

// G106
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

// G106
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
