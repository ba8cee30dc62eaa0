//! Waiters whose locks are given back elsewhere, and whose answers are lost.

use std::time::{Duration, Instant};

use fencepost::error::Error;
use fencepost::locks::{Lease, Locks};
use tokio::task::JoinHandle;

use crate::answers::{Answers, Forwarder};
use crate::bench::{acquire, holding, nodes, of, quorum, replica, take_everywhere, token};
use crate::servers::{available, eventually};

const LONG: Duration = Duration::from_secs(40);

fn waiter(locks: &Locks, lock: &'static str) -> JoinHandle<Result<Lease, Error>> {
    let locks = locks.clone();
    tokio::spawn(async move { acquire(&locks, lock, LONG, LONG).await })
}

/// Waits until so many wait.
async fn waiting(locks: &Locks, lease: &Lease, count: usize) {
    let end = Instant::now() + Duration::from_secs(10);
    while locks.look(&lease.key.lock.name, 0).await.unwrap().waiter_count != count {
        assert!(Instant::now() < end, "not so many wait: {count}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_given_back_at_another_replica_goes_on_to_all_waiters_without_a_poll() {
    if !available() {
        return;
    }
    let servers = nodes::<3>();
    let quorum = of(&servers, LONG);
    let (here, there) = (replica(&quorum).await, replica(&quorum).await);
    let mut held = take_everywhere(&there, &servers, "a", LONG).await;
    let mut waiters = Vec::new();
    for count in 1..=5 {
        waiters.push(waiter(&here, "a"));
        waiting(&here, &held, count).await;
    }
    for next in waiters {
        let released = Instant::now();
        there.release(&held.key).await.unwrap();
        let next = next.await.unwrap().unwrap();
        let took = released.elapsed();
        // A poll is one second away.
        assert!(took < Duration::from_millis(500), "{took:?}");
        assert!(token(&next) > token(&held));
        held = next;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_votes_were_given_unheard_is_not_in_its_own_way() {
    if !available() {
        return;
    }
    let servers = nodes::<3>();
    let mut ways = Vec::new();
    for server in &servers {
        ways.push(Forwarder::before(server.port()).await);
    }
    let there = replica(&of(&servers, LONG)).await;
    let here = replica(&quorum(ways.iter().map(Forwarder::url), LONG)).await;
    let held = take_everywhere(&there, &servers, "a", LONG).await;
    let next = waiter(&here, "a");
    waiting(&here, &held, 1).await;
    let votes = |ways: &[Forwarder]| {
        ways.iter().for_each(|way| way.answers(Answers::Lost));
    };
    votes(&ways);
    there.release(&held.key).await.unwrap();
    loop {
        eventually("it has all votes", Duration::from_secs(20), || {
            (holding(&servers, "a") == 3).then_some(())
        });
        // Nothing more reaches a node, and what was sent is not answered.
        ways.iter().for_each(Forwarder::stall);
        ways.iter().for_each(Forwarder::cut);
        if holding(&servers, "a") == 3 {
            break;
        }
        votes(&ways);
        ways.iter().for_each(Forwarder::go_on);
    }
    let back = Instant::now();
    ways.iter().for_each(Forwarder::go_on);
    let next = next.await.unwrap().unwrap();
    assert!(back.elapsed() < LONG / 4, "{:?}", back.elapsed());
    assert!(token(&next) > token(&held));
}
