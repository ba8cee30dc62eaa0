//! Nodes that die, hang and come back.

use std::time::{Duration, Instant};

use common::clients::spawn_acquire;
use fencepost::backend::{BackendError, Health};
use fencepost::error::Error;
use fencepost::locks::Locks;

use crate::forwarder::Forwarder;
use crate::harness::{
    NODE_TIMEOUT, acquire, counting, holding, nodes, of, quorum, replica, serves, take, take_everywhere, take_soon,
    token, unready, until,
};
use crate::servers::{RedisServer, available, eventually};

const TTL: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(20);

/// Pairs of Acquire and Release on locks of their own, each within the node timeout and 100 ms.
async fn pairs_in_time(locks: &Locks, what: &str) {
    let mut last = 0;
    for round in 0..20 {
        let began = Instant::now();
        let lease = take(locks, what, TTL).await;
        assert!(
            began.elapsed() < NODE_TIMEOUT + Duration::from_millis(100),
            "{what}, {round}: {:?}",
            began.elapsed()
        );
        assert!(token(&lease) > last);
        last = token(&lease);
        locks.release(&lease.key).await.unwrap();
    }
}

async fn is_without_quorum(locks: &Locks) {
    let began = Instant::now();
    says_no_quorum(acquire(locks, "none", TTL, Duration::ZERO).await);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[track_caller]
fn says_no_quorum<T: std::fmt::Debug>(answer: Result<T, Error>) {
    let refused = answer.unwrap_err();
    assert!(
        matches!(refused, Error::Backend(BackendError::NoQuorum { .. })),
        "{refused:?}"
    );
}

// G103
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_node_delays_nobody_and_without_a_majority_there_is_no_quorum() {
    common::skip_unless!(available());
    for dead in 0..3 {
        let mut servers = nodes::<3>();
        let locks = replica(&of(&servers, TTL)).await;
        let held = take_everywhere(&locks, &servers, "held", TTL).await;
        servers[dead].kill9();
        pairs_in_time(&locks, "dead").await;
        locks.renew(&held.key, None).await.unwrap();
        let refused = acquire(&locks, "held", TTL, Duration::ZERO).await.unwrap_err();
        assert!(matches!(refused, Error::LockHeld { .. }), "{refused:?}");
        let second = (dead + 1) % 3;
        servers[second].kill9();
        is_without_quorum(&locks).await;
        servers[dead].restart();
        servers[second].restart();
        let back = Instant::now();
        let next = take_soon(&locks, "dead", TTL).await;
        // The nodes were empty: a TTL has to pass first, and a hundredth.
        let quarantine = TTL + TTL / 100;
        assert!(
            back.elapsed() < quarantine + Duration::from_secs(1),
            "{:?}",
            back.elapsed()
        );
        assert!(token(&next) > token(&held));
    }
}

// G103
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_hangs_delays_nobody_and_without_a_majority_there_is_no_quorum() {
    common::skip_unless!(available());
    let servers = nodes::<3>();
    let locks = replica(&of(&servers, LONG)).await;
    for hung in 0..3 {
        servers[hung].pause();
        pairs_in_time(&locks, &format!("hung {hung}")).await;
        let second = (hung + 1) % 3;
        servers[second].pause();
        is_without_quorum(&locks).await;
        servers[hung].resume();
        servers[second].resume();
        serves(&locks, Duration::from_secs(5)).await;
        // Nothing was forgotten, so nothing has to be waited for: the other nodes are back at once.
        let began = Instant::now();
        take_soon(&locks, &format!("back {hung}"), TTL).await;
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        all_vote(&locks, &servers).await;
    }
}

/// Waits until every node votes.
async fn all_vote(locks: &Locks, servers: &[RedisServer]) {
    let end = Instant::now() + Duration::from_secs(10);
    for round in 0.. {
        let name = format!("all{round}");
        let lease = take_soon(locks, &name, TTL).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let held = holding(servers, &name);
        locks.release(&lease.key).await.unwrap();
        if held == servers.len() {
            return;
        }
        assert!(Instant::now() < end, "only {held} nodes vote");
    }
}

// G103
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_has_the_lock_though_a_minority_of_five_is_gone() {
    common::skip_unless!(available());
    let mut servers = nodes::<5>();
    let quorum = of(&servers, LONG);
    let (one, two) = (replica(&quorum).await, replica(&quorum).await);
    let held = take(&one, "a", LONG).await;
    let waiting = spawn_acquire(&two, "a", LONG, LONG);
    let lock = &held.key.lock.name;
    let end = Instant::now() + Duration::from_secs(5);
    while two.inspect(lock, 1).await.unwrap().waiter_count == 0 {
        assert!(Instant::now() < end, "nobody waits");
    }
    servers[0].kill9();
    servers[1].pause();
    one.release(&held.key).await.unwrap();
    let released = Instant::now();
    let next = waiting.await.unwrap().unwrap();
    assert!(released.elapsed() < Duration::from_secs(2), "{:?}", released.elapsed());
    assert!(token(&next) > token(&held));
    two.release(&next.key).await.unwrap();
    servers[1].resume();
    assert_eq!(*two.health().borrow(), Health::Serving);
}

// G101
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_while_clocks_are_stepped() {
    common::skip_unless!(available());
    let mut servers: [RedisServer; 3] = std::array::from_fn(|_| RedisServer::with_clock(&[]));
    let quorum = of(&servers, LONG);
    let (one, two) = (replica(&quorum).await, replica(&quorum).await);
    let mut last = 0;
    for shift in [3_600, -3_600, 0, 7_200, 0] {
        for server in &mut servers {
            server.shift_clock(shift);
            for locks in [&one, &two] {
                let lease = take_soon(locks, "stepped", TTL).await;
                assert!(token(&lease) > last, "{} after {last}", token(&lease));
                last = token(&lease);
                locks.release(&lease.key).await.unwrap();
            }
        }
    }
}

/// How many scripts a node has run.
fn scripts_run(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let calls = |line: &str| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok();
    let evals = stats.lines().filter(|line| line.starts_with("cmdstat_eval"));
    evals.filter_map(calls).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_costs_one_round_also_its_first_time_and_with_clocks_forty_milliseconds_apart() {
    common::skip_unless!(available());
    let mut servers: [RedisServer; 3] = std::array::from_fn(|_| RedisServer::with_clock(&[]));
    for (at, server) in (0..).zip(&mut servers) {
        server.shift_clock_ms(20 * at);
    }
    let locks = replica(&of(&servers, LONG)).await;
    // The clocks are known from the first answers on.
    let first = take(&locks, "first", TTL).await;
    locks.release(&first.key).await.unwrap();
    // The handshake of each second runs a script too, so a run of pairs tells more than one. An Acquire whose
    // votes were held up on this machine may need a second round: one run of several has to have none.
    let rounds = 30;
    let mut runs = Vec::new();
    for run in 0..10 {
        let before: Vec<u64> = servers.iter().map(scripts_run).collect();
        let began = Instant::now();
        for round in 0..rounds {
            let lease = take(&locks, &format!("new{run}.{round}"), TTL).await;
            locks.release(&lease.key).await.unwrap();
        }
        let handshakes = began.elapsed().as_secs() + 2;
        let more = |(server, before): (&RedisServer, u64)| scripts_run(server) - before;
        let most = servers.iter().zip(before).map(more).max().unwrap();
        // One for each Acquire and one for each Release.
        if most <= 2 * rounds + handshakes {
            return;
        }
        runs.push(most);
    }
    panic!("{runs:?} scripts for {rounds} pairs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_outlive_a_node_though_another_is_farther_away() {
    common::skip_unless!(available());
    let servers = nodes::<3>();
    let forwarder = Forwarder::before(servers[2].port()).await;
    let urls = [servers[0].url(), servers[1].url(), forwarder.url()];
    let locks = replica(&quorum(urls, LONG)).await;
    forwarder.late(Duration::from_millis(10));
    // How far it is, is learned from its answers.
    let there = |name: &str| {
        let limit = Duration::from_secs(10);
        eventually("the far node has voted", limit, || {
            (holding(&servers, name) == 3).then_some(())
        });
    };
    let near = take(&locks, "near", LONG).await;
    there("near");
    locks.release(&near.key).await.unwrap();
    take(&locks, "known", LONG).await;
    there("known");
    let mut leases = Vec::new();
    for round in 0..20 {
        let name = format!("far{round}");
        let lease = take(&locks, &name, LONG).await;
        there(&name);
        if counting(&servers, &name, &lease) == 3 {
            leases.push(lease);
        }
    }
    // What is held up on this machine comes later than was learned.
    assert!(leases.len() > 10, "the far node counts for {} of 20", leases.len());
    servers[0].pause();
    for lease in &leases {
        locks.renew(&lease.key, None).await.unwrap();
    }
    servers[0].resume();
}

// G100
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_two_addresses_lead_to_votes_once() {
    common::skip_unless!(available());
    let mut servers = nodes::<3>();
    replica(&of(&servers, LONG)).await.close().await;
    // By its name and by its number: as after a mistake, or a switch of names.
    let port = servers[0].port();
    let twice = ["127.0.0.1", "localhost"].map(|host| format!("redis://{host}:{port}"));
    let locks = unready(&quorum(twice.into_iter().chain([servers[1].url()]), LONG));
    serves(&locks, Duration::from_secs(10)).await;
    until(&locks, |nodes| {
        let serving = nodes.iter().filter(|(_, health)| *health == Health::Serving);
        let told =
            |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains("the same server"));
        serving.count() == 2 && nodes.iter().any(|(_, health)| told(health))
    })
    .await;
    take_soon(&locks, "a", TTL).await;
    servers[1].kill9();
    is_without_quorum(&locks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_are_no_majority_tell_neither_the_holder_nor_an_end() {
    common::skip_unless!(available());
    let mut servers = nodes::<3>();
    let locks = replica(&of(&servers, LONG)).await;
    let lease = take_everywhere(&locks, &servers, "a", LONG).await;
    let lock = &lease.key.lock.name;
    // One node holds, one does not, and the third would decide.
    servers[2].cli(&["DEL", "fencepost:faults:l:a"]);
    servers[0].kill9();
    says_no_quorum(locks.inspect(lock, 1).await);
    servers[1].kill9();
    says_no_quorum(locks.inspect(lock, 1).await);
    says_no_quorum(locks.release(&lease.key).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_a_majority_has_lost_is_ended_at_the_other_nodes() {
    common::skip_unless!(available());
    let servers = nodes::<3>();
    let locks = replica(&of(&servers, LONG)).await;
    let lease = take_everywhere(&locks, &servers, "a", LONG).await;
    for server in &servers[..2] {
        server.cli(&["DEL", "fencepost:faults:l:a"]);
    }
    let end = Instant::now() + LONG / 4;
    // A node whose answer is held up on this machine is not told.
    while holding(&servers, "a") > 0 {
        assert!(Instant::now() < end, "a node still holds");
        let lost = locks.renew(&lease.key, None).await.unwrap_err();
        assert!(matches!(lost, Error::LeaseLost { .. }), "{lost:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_node_beside_nodes_that_have_voted_is_not_new_to_a_replica_that_starts() {
    common::skip_unless!(available());
    let servers = nodes::<3>();
    let quorum = of(&servers, LONG);
    let locks = replica(&quorum).await;
    take_everywhere(&locks, &servers, "a", LONG).await;
    locks.close().await;
    drop(locks);
    servers[2].cli(&["FLUSHALL"]);
    let locks = unready(&quorum);
    until(&locks, |nodes| matches!(nodes[2].1, Health::Quarantined { .. })).await;
}

// G200
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_another_number_of_nodes_is_refused_and_told_both() {
    common::skip_unless!(available());
    let servers = nodes::<5>();
    let three = replica(&of(&servers[..3], LONG)).await;
    let held = take(&three, "a", LONG).await;
    // A majority of five could be had without the one that granted.
    let five = unready(&of(&servers, LONG));
    let is_told = |health: &Health| match health {
        Health::Unavailable { reason } => {
            reason.contains("as one of 3 nodes")
                && reason.contains("this server has 5")
                && reason.contains("docs/redlock.md")
        }
        _ => false,
    };
    until(&five, |nodes| nodes[..3].iter().all(|(_, health)| is_told(health))).await;
    acquire(&five, "a", LONG, Duration::ZERO)
        .await
        .expect_err("it is refused");
    three.renew(&held.key, None).await.expect("it is held");
    // As docs/redlock.md says.
    drop(three);
    for server in &servers[..3] {
        server.cli(&["HDEL", "fencepost:voter", "nodes"]);
    }
    until(&five, |nodes| {
        nodes[..3].iter().all(|(_, health)| *health == Health::Serving)
    })
    .await;
    for server in &servers[..3] {
        assert_eq!(server.cli(&["HGET", "fencepost:voter", "nodes"]), "5");
    }
}
