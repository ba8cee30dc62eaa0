//! Nodes that lose their memory: emptied, flushed, swapped, or back with an older one.

use std::time::{Duration, Instant};

use fencepost::backend::{BackendError, Health};
use fencepost::error::Error;
use fencepost::locks::{Lease, Locks};

use crate::answers::Forwarder;
use crate::harness::{
    acquire, admission, admitted_anew, health, holding, nodes, of, quorum, replica, serves, take, take_soon, token,
    unready, until,
};
use crate::servers::{RedisServer, available, eventually};

const TTL: Duration = Duration::from_secs(2);
/// What nodes are asked for with that TTL, and so how long they are not trusted.
const QUARANTINE: Duration = Duration::from_millis(2_022);

/// Loses the memory of a running node, or of its process.
fn forget(server: &mut RedisServer, how: &str) {
    match how {
        "flushed" => drop(server.cli(&["FLUSHALL"])),
        "swapped" => {
            server.kill9();
            server.wipe();
            server.restart();
        }
        _ => {
            server.kill9();
            server.restart();
        }
    }
}

// G104
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_forgot_does_not_vote_until_the_longest_ttl_has_passed() {
    common::skip_unless!(available());
    for how in ["restarted", "flushed", "swapped"] {
        let mut servers = nodes::<3>();
        let locks = replica(&of(&servers, TTL)).await;
        let before = admission(&servers[0]);
        // Before the loss: the node may be seen to have forgotten before the restart is known here.
        let forgot = Instant::now();
        forget(&mut servers[0], how);
        let short = |until: &tokio::time::Instant| *until <= tokio::time::Instant::now() + QUARANTINE;
        until(
            &locks,
            |nodes| matches!(&nodes[0].1, Health::Quarantined { until, .. } if short(until)),
        )
        .await;
        assert_eq!(*locks.health().borrow(), Health::Serving);
        // The others go on, and the one is not among those that hold.
        while forgot.elapsed() < QUARANTINE - Duration::from_millis(300) {
            let name = format!("{how}{}", forgot.elapsed().as_millis());
            let lease = take_soon(&locks, &name, TTL).await;
            assert_eq!(holding(&servers[..1], &name), 0, "{how}: it voted");
            locks.release(&lease.key).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        admitted_anew(&servers[0], &before, QUARANTINE + Duration::from_secs(3));
        assert!(forgot.elapsed() >= QUARANTINE, "{how}: after {:?}", forgot.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_ttl_in_the_markers_is_rounded_up() {
    common::skip_unless!(available());
    let servers = nodes::<3>();
    // With the drift allowance 1,013.01 ms.
    let _locks = replica(&of(&servers, Duration::from_millis(1_001))).await;
    for server in &servers {
        assert_eq!(server.cli(&["HGET", "fencepost:voter", "longest"]), "1014");
    }
}

// G104
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_that_forgot_is_a_quarantine_that_says_how_long_and_ends_in_time() {
    common::skip_unless!(available());
    let mut servers = nodes::<3>();
    let quorum = of(&servers, TTL);
    let one = replica(&quorum).await;
    let held = take(&one, "a", TTL).await;
    let forgot = Instant::now();
    for server in &mut servers[..2] {
        forget(server, "restarted");
    }
    health(&one, TTL, |health| matches!(health, Health::Quarantined { .. })).await;
    // Also for a replica that starts in between, though its own first start is admitted.
    let two = unready(&quorum);
    health(&two, TTL, |health| matches!(health, Health::Quarantined { .. })).await;
    for locks in [&one, &two] {
        let refused = acquire(locks, "a", TTL, Duration::ZERO).await.unwrap_err();
        let left = match &refused {
            Error::Backend(BackendError::Quarantined { left, .. }) => *left,
            other => panic!("{other:?}"),
        };
        assert!(!left.is_zero() && left <= QUARANTINE, "{left:?}");
    }
    serves(&one, QUARANTINE + Duration::from_secs(1)).await;
    assert!(forgot.elapsed() >= QUARANTINE, "{:?}", forgot.elapsed());
    serves(&two, Duration::from_secs(2)).await;
    assert!(token(&take_soon(&two, "a", TTL).await) > token(&held));
}

// G104
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_flushed_in_its_quarantine_begins_it_anew_for_every_replica() {
    common::skip_unless!(available());
    let servers = nodes::<3>();
    let quorum = of(&servers, TTL);
    let replicas = [replica(&quorum).await, replica(&quorum).await];
    let before = admission(&servers[0]);
    servers[0].cli(&["FLUSHALL"]);
    eventually("the node is in quarantine", TTL, || {
        (servers[0].cli(&["HEXISTS", "fencepost:voter", "pending"]) == "1").then_some(())
    });
    // Both count the time, and both have it nearly over.
    tokio::time::sleep(QUARANTINE - Duration::from_millis(400)).await;
    let flushed = Instant::now();
    servers[0].cli(&["FLUSHALL"]);
    admitted_anew(&servers[0], &before, 2 * QUARANTINE + Duration::from_secs(3));
    assert!(flushed.elapsed() >= QUARANTINE, "{:?}", flushed.elapsed());
    for locks in &replicas {
        take_soon(locks, "a", TTL).await;
        locks.close().await;
    }
}

// G104
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_snapshot_brings_no_old_holder_back() {
    common::skip_unless!(available());
    let mut servers: [RedisServer; 3] = std::array::from_fn(|_| RedisServer::start(&["--dbfilename", "old.rdb"]));
    let locks = replica(&of(&servers, TTL)).await;
    let old = take(&locks, "a", TTL).await;
    for server in &servers {
        eventually("a snapshot is written", Duration::from_secs(20), || {
            (server.cli(&["SAVE"]).trim() == "OK").then_some(())
        });
    }
    locks.release(&old.key).await.unwrap();
    let held = take(&locks, "a", TTL).await;
    let granted = Instant::now();
    let before: Vec<String> = servers.iter().map(admission).collect();
    for server in &mut servers[..2] {
        server.kill9();
        server.restart();
        assert_eq!(
            server.cli(&["EXISTS", "fencepost:faults:l:a"]),
            "1",
            "the snapshot is there"
        );
    }
    let next = take_soon(&locks, "a", TTL).await;
    assert!(
        granted.elapsed() >= TTL,
        "a second holder after {:?}",
        granted.elapsed()
    );
    assert!(token(&next) > token(&held) && token(&held) > token(&old));
    assert!(locks.renew(&old.key, None).await.is_err());
    assert!(locks.renew(&held.key, None).await.is_err());
    for (server, before) in servers[..2].iter().zip(&before) {
        admitted_anew(server, before, QUARANTINE + Duration::from_secs(3));
    }
}

// G73
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_keeps_the_lock_is_refused_and_changes_nothing() {
    common::skip_unless!(available());
    let servers = nodes::<3>();
    let locks = replica(&of(&servers, TTL)).await;
    let held = acquire(&locks, "a", TTL, Duration::ZERO).await.expect("it is free");
    let refused = locks.release_keeping(&held.key, Duration::from_secs(1)).await;
    assert!(
        matches!(refused, Err(Error::Backend(BackendError::Unsupported { .. }))),
        "{refused:?}"
    );
    locks.renew(&held.key, None).await.expect("it is held");
}

// G104
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admit_ends_the_quarantine_of_the_named_node_alone() {
    common::skip_unless!(available());
    let long = Duration::from_secs(600);
    let mut servers = nodes::<3>();
    let locks = replica(&of(&servers, long)).await;
    for server in &mut servers[..2] {
        forget(server, "restarted");
    }
    health(&locks, TTL, |health| matches!(health, Health::Quarantined { .. })).await;
    let elsewhere = locks.admit(Some("127.0.0.1:1")).await;
    assert!(
        matches!(elsewhere, Err(Error::Backend(BackendError::Unsupported { .. }))),
        "{elsewhere:?}"
    );
    let named = format!("127.0.0.1:{}", servers[1].port());
    // As soon as the node is reached again.
    let end = Instant::now() + Duration::from_secs(5);
    while let Err(error) = locks.admit(Some(&named)).await {
        assert!(Instant::now() < end, "{error:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    serves(&locks, Duration::from_secs(3)).await;
    take_soon(&locks, "a", TTL).await;
    assert_eq!(admission(&servers[0]), "", "the other one still waits");
    assert_ne!(admission(&servers[1]), "");
}

// G102
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_through_cycles_of_rotating_data_loss() {
    common::skip_unless!(available());
    let cycles = if cfg!(feature = "soak") { 300 } else { 24 };
    let ttl = Duration::from_millis(500);
    let mut servers = nodes::<3>();
    let quorum = of(&servers, ttl);
    let replicas = [replica(&quorum).await, replica(&quorum).await];
    let (mut last, mut granted, mut refused) = (0, 0, 0);
    for cycle in 0..cycles {
        let before = admission(&servers[cycle % 3]);
        forget(
            &mut servers[cycle % 3],
            ["restarted", "flushed", "swapped"][cycle / 3 % 3],
        );
        let forgot = Instant::now();
        let mut turn = 0;
        while forgot.elapsed() < ttl || granted == 0 {
            let locks = &replicas[turn % 2];
            turn += 1;
            match acquire(locks, "rotating", ttl, Duration::from_millis(200)).await {
                Ok(lease) => {
                    assert!(token(&lease) > last, "cycle {cycle}: {} after {last}", token(&lease));
                    last = token(&lease);
                    granted += 1;
                    // Some are given back, some are left to expire.
                    if turn % 3 > 0 {
                        locks.release(&lease.key).await.ok();
                    }
                }
                Err(_) => refused += 1,
            }
        }
        admitted_anew(&servers[cycle % 3], &before, Duration::from_secs(10));
    }
    println!("{cycles} cycles, {granted} grants, {refused} calls refused");
    assert!(granted >= cycles, "{granted} grants in {cycles} cycles");
}

// G1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_cannot_be_renewed_beside_a_node_that_forgot_keeps_others_out() {
    common::skip_unless!(available());
    let long = Duration::from_secs(60);
    let mut servers = nodes::<3>();
    let quorum = of(&servers, long);
    let (one, two) = (replica(&quorum).await, replica(&quorum).await);
    let quarantined = |at: usize| move |nodes: &[(String, Health)]| matches!(nodes[at].1, Health::Quarantined { .. });
    // Two of three nodes have the lease.
    forget(&mut servers[2], "restarted");
    for locks in [&one, &two] {
        until(locks, quarantined(2)).await;
    }
    let held = take(&one, "a", long).await;
    // The third votes again, and one of the two forgets.
    let named = format!("127.0.0.1:{}", servers[2].port());
    one.admit(Some(&named)).await.unwrap();
    for locks in [&one, &two] {
        until(locks, |nodes| nodes[2].1 == Health::Serving).await;
    }
    forget(&mut servers[1], "restarted");
    for locks in [&one, &two] {
        until(locks, quarantined(1)).await;
    }
    // Its client may not get the answer, and counts on the time that it was granted.
    let renewed = one.renew(&held.key, None).await;
    assert!(
        matches!(renewed, Err(Error::Backend(BackendError::NoQuorum { .. }))),
        "{renewed:?}"
    );
    let other = acquire(&two, "a", long, Duration::ZERO).await;
    assert!(matches!(other, Err(Error::LockHeld { .. })), "{other:?}");
}

// G102
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_on_a_lock_that_was_forgotten_after_a_clock_had_been_ahead() {
    common::skip_unless!(available());
    let mut servers: [RedisServer; 3] = std::array::from_fn(|_| RedisServer::with_clock(&[]));
    servers[2].shift_clock(3_600);
    let locks = replica(&of(&servers, TTL)).await;
    let ahead = |token: u64| token / 1_000_000 > u64::try_from(servers[0].time()).unwrap() + 1_800;
    let last = loop {
        let lease = take_soon(&locks, "idle", TTL).await;
        locks.release(&lease.key).await.unwrap();
        // Not where the other two agreed before the third had answered.
        if ahead(token(&lease)) {
            break token(&lease);
        }
    };
    // An unused lock is forgotten some day, by the clock of each node.
    servers[2].kill9();
    for server in &servers[..2] {
        assert_eq!(server.cli(&["DEL", "fencepost:faults:l:idle"]), "1");
    }
    let next = take_soon(&locks, "idle", TTL).await;
    assert!(token(&next) > last, "{} after {last}", token(&next));
}

// G102
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_though_all_nodes_forget_in_turn_and_clocks_have_gone_back() {
    common::skip_unless!(available());
    let ttl = Duration::from_millis(500);
    let mut servers: [RedisServer; 3] = std::array::from_fn(|_| RedisServer::with_clock(&[]));
    servers.iter_mut().for_each(|server| server.shift_clock(3_600));
    let locks = replica(&of(&servers, ttl)).await;
    let last = take(&locks, "a", ttl).await;
    locks.release(&last.key).await.unwrap();
    servers.iter_mut().for_each(|server| server.shift_clock(0));
    for server in &servers {
        // Every node is heard to be back in time.
        let other = take_soon(&locks, &format!("other{}", server.port()), ttl).await;
        locks.release(&other.key).await.unwrap();
        let before = admission(server);
        server.cli(&["FLUSHALL"]);
        admitted_anew(server, &before, Duration::from_secs(10));
    }
    let next = take_soon(&locks, "a", ttl).await;
    assert!(token(&next) > token(&last), "{} after {}", token(&next), token(&last));
}

// G102
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_though_all_nodes_are_admitted_by_a_server_that_never_saw_the_last_one() {
    common::skip_unless!(available());
    let ttl = Duration::from_millis(500);
    let mut servers: [RedisServer; 3] = std::array::from_fn(|_| RedisServer::with_clock(&[]));
    servers.iter_mut().for_each(|server| server.shift_clock(3_600));
    let mut ways = Vec::new();
    for server in &servers {
        ways.push(Forwarder::before(server.port()).await);
    }
    let one = replica(&quorum(ways.iter().map(Forwarder::url), ttl)).await;
    let last = take(&one, "a", ttl).await;
    one.release(&last.key).await.unwrap();
    servers.iter_mut().for_each(|server| server.shift_clock(0));
    let two = replica(&of(&servers, ttl)).await;
    for (server, way) in servers.iter().zip(&ways) {
        // The one that saw it cannot reach the node while that is admitted.
        way.stall();
        let before = admission(server);
        server.cli(&["FLUSHALL"]);
        admitted_anew(server, &before, Duration::from_secs(10));
        way.go_on();
        eventually("the node counts on from there", Duration::from_secs(10), || {
            let floor = server.cli(&["HGET", "fencepost:voter", "floor"]);
            (floor.parse::<u64>().unwrap() > token(&last)).then_some(())
        });
    }
    let next = take_soon(&two, "a", ttl).await;
    assert!(token(&next) > token(&last), "{} after {}", token(&next), token(&last));
}

// G88b
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_by_the_fastest_clock_though_all_nodes_and_servers_forget() {
    common::skip_unless!(available());
    let mut servers: [RedisServer; 3] = std::array::from_fn(|_| RedisServer::with_clock(&[]));
    servers[2].shift_clock(60);
    let mut last = 0;
    for round in 0..6 {
        let locks = replica(&of(&servers, TTL)).await;
        for _ in 0..4 {
            let lease = take_soon(&locks, "a", TTL).await;
            assert!(token(&lease) > last, "round {round}: {} after {last}", token(&lease));
            last = token(&lease);
            locks.release(&lease.key).await.unwrap();
        }
        locks.close().await;
        servers.iter().for_each(|server| drop(server.cli(&["FLUSHALL"])));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_in_quarantine_has_no_admission() {
    common::skip_unless!(available());
    let mut servers: [RedisServer; 3] = std::array::from_fn(|_| RedisServer::start(&["--appendonly", "yes"]));
    let locks = replica(&of(&servers, 20 * TTL)).await;
    // Its marker is back, with the admission of its last run.
    servers[0].kill9();
    servers[0].restart();
    until(&locks, |nodes| matches!(nodes[0].1, Health::Quarantined { .. })).await;
    assert_eq!(servers[0].cli(&["HEXISTS", "fencepost:voter", "pending"]), "1");
    assert_eq!(admission(&servers[0]), "");
}

/// What a replica says of a lock: whether it is held, or nothing where it cannot tell.
async fn says_held(locks: &Locks, held: &Lease) -> Option<bool> {
    let name = &held.key.lock.name;
    let looked = locks.inspect(name, 10).await.map(|queue| queue.holder_count > 0);
    let checked = locks.check(name, held.key.token).await.map(|holder| holder.is_some());
    let mut said = Vec::new();
    for one in [looked, checked] {
        match one {
            Ok(held) => said.push(held),
            Err(Error::Backend(BackendError::NoQuorum { .. })) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    (!said.is_empty()).then(|| said.iter().all(|held| *held))
}

// G104
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_on_nodes_that_another_replica_has_admitted_is_never_said_to_be_free() {
    common::skip_unless!(available());
    let long = Duration::from_secs(60);
    let mut servers = nodes::<3>();
    let quorum = of(&servers, long);
    let (one, two) = (replica(&quorum).await, replica(&quorum).await);
    let before = take(&one, "a", long).await;
    for server in &mut servers[..2] {
        forget(server, "restarted");
    }
    for locks in [&one, &two] {
        until(locks, |nodes| {
            nodes[..2]
                .iter()
                .all(|(_, health)| matches!(health, Health::Quarantined { .. }))
        })
        .await;
        // Who may have forgotten a lease cannot say that there is none.
        assert_eq!(says_held(locks, &before).await, None);
    }
    for server in &servers[..2] {
        one.admit(Some(&format!("127.0.0.1:{}", server.port()))).await.unwrap();
    }
    until(&one, |nodes| {
        nodes[..2].iter().all(|(_, health)| *health == Health::Serving)
    })
    .await;
    let held = take_soon(&one, "b", long).await;
    // Longer than the other one needs to hear of it.
    let end = Instant::now() + Duration::from_millis(1_500);
    while Instant::now() < end {
        assert_ne!(says_held(&two, &held).await, Some(false));
    }
    assert_eq!(says_held(&two, &held).await, Some(true));
}
