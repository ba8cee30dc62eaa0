//! Sessions that an operator ends, or that end by themselves.

use std::time::{Duration, Instant};

use fencepost::locks::Locks;

use crate::clients::{acquire, take, token};
use crate::crowd::{Crowd, FEW};
use crate::harness::{
    Operator, READY, addresses, end_sessions, nothing_is_left, patient, replica, serves, store, unready, waiters,
};

const TTL: Duration = Duration::from_secs(60);

// G121
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_and_queues_outlive_a_session_that_is_ended_from_outside() {
    let Some(store) = store(1) else { return };
    let locks = replica(&store).await;
    let held = take(&locks, "a", TTL).await;
    let wait = |locks: &Locks| {
        let locks = locks.clone();
        tokio::spawn(async move { acquire(&locks, "a", TTL, Duration::from_secs(50)).await })
    };
    let waiting = wait(&locks);
    waiters(&locks, "a", 1).await;
    let mut operator = Operator::open(&store).await;
    let before = operator.claims().await;
    assert_eq!(before.len(), 2, "{before:?}");
    // Its session is not one to end.
    operator.close().await;

    // A session that has just moved to another connection cannot be taken over, and its replica takes it back at once.
    let begun = Instant::now();
    while end_sessions(&store).await == 0 {
        assert!(begun.elapsed() < READY, "its session cannot be taken over");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let ended = Instant::now();
    // The waiter comes again under the new session.
    waiters(&locks, "a", 1).await;
    println!("it waits again after {:?}", ended.elapsed());
    locks.renew(&held.key, None).await.expect("it is held");
    locks.release(&held.key).await.expect("it is held");
    let next = waiting.await.expect("no panic").expect("it is next");
    assert!(token(&next) > token(&held));
    locks.release(&next.key).await.expect("it is held");
    nothing_is_left(&store).await;
}

// G121
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_sessions_are_ended_from_outside() {
    let Some(store) = store(1) else { return };
    let replicas = [replica(&store).await, replica(&store).await];
    let times = if cfg!(feature = "soak") { 200 } else { 8 };
    let between = Duration::from_millis(500);
    let crowd = Crowd::begin(&replicas, 8, between * (times + 4));
    let (mut ended, mut turns) = (0, 0);
    // A replica that is connecting has none to end, which on a busy machine may be so for several turns.
    while turns < times || ended <= times / 2 {
        tokio::time::sleep(between).await;
        ended += u32::try_from(end_sessions(&store).await).expect("few");
        turns += 1;
        assert!(turns < 10 * times, "only {ended} sessions were ended");
    }
    let (grants, gap) = crowd.judge().await;
    assert!(grants > FEW, "only {grants} grants");
    assert!(gap < READY, "no grant for {gap:?}");
    nothing_is_left(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_that_is_closed_ends_its_session() {
    let Some(store) = store(1) else { return };
    let locks = unready(patient(addresses(&store), 2 * READY));
    serves(&locks).await;
    let mut operator = Operator::open(&store).await;
    assert_eq!(operator.sessions().await, 1);
    locks.close().await;
    let closed = Instant::now();
    while operator.sessions().await > 0 {
        assert!(closed.elapsed() < READY, "its session lives on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
