//! Commands that a node gets late: held back on their way until others have gone on.

use std::time::{Duration, Instant};

use fencepost::backend::redis_server::script::Ask;
use fencepost::backend::redlock::scripts;
use fencepost::locks::Locks;

use crate::bench::{acquire, holding, nodes, quorum, replica, take, take_soon, token};
use crate::forwarder::Forwarder;
use crate::servers::{RedisServer, available, eventually};

const TTL: Duration = Duration::from_millis(1_500);
/// Longer than any of these tests.
const LONG: Duration = Duration::from_secs(60);

/// Three nodes, the last of them behind a forwarder for one replica; another replica reaches all.
struct Bed {
    servers: [RedisServer; 3],
    forwarder: Forwarder,
    held_up: Locks,
    direct: Locks,
}

async fn bed() -> Bed {
    bed_over(nodes()).await
}

async fn bed_over(servers: [RedisServer; 3]) -> Bed {
    let forwarder = Forwarder::before(servers[2].port()).await;
    let urls = |last: String| [servers[0].url(), servers[1].url(), last];
    let held_up = replica(&quorum(urls(forwarder.url()), LONG)).await;
    let direct = replica(&quorum(urls(servers[2].url()), LONG)).await;
    // The scripts are known from here on, so that one command is one step.
    for locks in [&held_up, &direct] {
        let lease = take(locks, "warm", TTL).await;
        locks.renew(&lease.key, None).await.unwrap();
        locks.release(&lease.key).await.unwrap();
    }
    Bed {
        servers,
        forwarder,
        held_up,
        direct,
    }
}

/// Lets what was held back arrive, and be done.
async fn deliver(bed: &Bed) {
    assert!(bed.forwarder.holds_something(), "nothing comes late");
    bed.forwarder.deliver().await;
    // A node answers one connection after another: this comes behind what was delivered just now.
    tokio::time::sleep(Duration::from_millis(100)).await;
    bed.servers[2].cli(&["PING"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_whose_vote_came_late_is_not_renewed_after_a_larger_token() {
    if !available() {
        return;
    }
    let bed = bed().await;
    bed.forwarder.hold();
    // Two votes of three: the third is on its way.
    let first = take(&bed.held_up, "a", TTL).await;
    tokio::time::sleep(TTL + TTL / 50).await;
    let second = take_soon(&bed.direct, "a", TTL).await;
    assert!(token(&second) > token(&first));
    bed.direct.release(&second.key).await.unwrap();
    deliver(&bed).await;
    // The late vote may be there now. It counts for nothing.
    for locks in [&bed.held_up, &bed.direct] {
        assert!(locks.renew(&first.key, None).await.is_err());
    }
    let third = take_soon(&bed.direct, "a", TTL).await;
    assert!(token(&third) > token(&second));
    assert!(bed.held_up.renew(&first.key, None).await.is_err());
    bed.direct.renew(&third.key, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vote_that_comes_after_its_release_finds_its_tombstone() {
    if !available() {
        return;
    }
    let bed = bed().await;
    bed.forwarder.hold();
    let lease = take(&bed.held_up, "a", TTL).await;
    // By the replica that reaches every node: the release overtakes the vote.
    bed.direct.release(&lease.key).await.unwrap();
    deliver(&bed).await;
    assert_eq!(holding(&bed.servers, "a"), 0, "the late vote was given");
    let next = take(&bed.direct, "a", TTL).await;
    assert!(token(&next) > token(&lease));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_and_a_repair_that_come_late_lengthen_nothing_of_others() {
    if !available() {
        return;
    }
    let bed = bed().await;
    let first = take(&bed.held_up, "a", TTL).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    bed.forwarder.hold();
    // Two of three renew it; the third's renewal, and what would repair it, are on their way.
    bed.held_up.renew(&first.key, None).await.unwrap();
    bed.direct.release(&first.key).await.unwrap();
    let second = take_soon(&bed.direct, "a", TTL).await;
    let until = Instant::now() + TTL;
    deliver(&bed).await;
    assert!(bed.held_up.renew(&first.key, None).await.is_err());
    let refused = acquire(&bed.held_up, "a", TTL, Duration::ZERO).await;
    assert!(refused.is_err() || Instant::now() >= until, "{refused:?}");
    bed.direct.renew(&second.key, None).await.unwrap();
    bed.direct.release(&second.key).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(holding(&bed.servers, "a"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vote_that_comes_after_a_force_finds_a_tombstone_also_where_one_node_alone_had_the_lease() {
    if !available() {
        return;
    }
    let bed = bed().await;
    bed.forwarder.hold();
    let lease = take(&bed.held_up, "a", LONG).await;
    // Of the two nodes that have it one hangs: the others do not know whose token it is.
    bed.servers[1].pause();
    bed.direct
        .force_release(&lease.key.lock.name, lease.key.token)
        .await
        .unwrap();
    bed.servers[1].resume();
    deliver(&bed).await;
    assert_eq!(holding(&bed.servers[2..], "a"), 0, "the late vote was given");
    for locks in [&bed.held_up, &bed.direct] {
        assert!(locks.renew(&lease.key, None).await.is_err());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_raise_that_comes_late_lifts_and_lowers_nothing_of_others() {
    if !available() {
        return;
    }
    // Clocks so far apart that no two votes agree; the node behind the forwarder is the slowest.
    let mut bed = bed_over(std::array::from_fn(|_| RedisServer::with_clock(&[]))).await;
    bed.servers[0].shift_clock_ms(800);
    bed.servers[1].shift_clock_ms(400);
    let warm = take_soon(&bed.held_up, "warm", TTL).await;
    bed.held_up.release(&warm.key).await.unwrap();
    let raise = scripts::RAISE.by_name(&Ask {
        key: b"",
        beside: &[],
        args: &[],
        asking: false,
    });
    let Some(redis::Arg::Simple(name)) = raise.args_iter().nth(1) else {
        panic!("no name: {raise:?}");
    };
    bed.forwarder.hold_from(std::str::from_utf8(name).unwrap());
    let first = take_soon(&bed.held_up, "a", LONG).await;
    bed.direct.release(&first.key).await.unwrap();
    eventually("the first is nowhere", Duration::from_secs(10), || {
        (holding(&bed.servers, "a") == 0).then_some(())
    });
    let second = take_soon(&bed.direct, "a", LONG).await;
    assert!(token(&second) > token(&first));
    let there = || bed.servers[2].cli(&["HMGET", "fencepost:faults:l:a", "c", "val", "secret"]);
    eventually("the second is everywhere", Duration::from_secs(10), || {
        there().contains(&format!("{0}\n{0}\n", token(&second))).then_some(())
    });
    let before = there();
    deliver(&bed).await;
    assert_eq!(there(), before);
    bed.direct.renew(&second.key, None).await.unwrap();
    assert!(bed.held_up.renew(&first.key, None).await.is_err());
}
