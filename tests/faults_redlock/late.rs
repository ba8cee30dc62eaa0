//! Commands that a node gets late: held back on their way until others have gone on.

use std::time::{Duration, Instant};

use fencepost::backend::Health;
use fencepost::backend::redis_server::script::{Ask, Script};
use fencepost::backend::redlock::scripts;
use fencepost::locks::{Lease, Locks};

use crate::bench::{acquire, holding, nodes, quorum, replica, take, take_everywhere, take_soon, token, until};
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

/// The name by which a node knows a script.
fn name_of(script: &Script) -> String {
    let called = script.by_name(&Ask {
        key: b"",
        beside: &[],
        args: &[],
        asking: false,
    });
    let Some(redis::Arg::Simple(name)) = called.args_iter().nth(1) else {
        panic!("no name: {called:?}");
    };
    String::from_utf8(name.to_vec()).unwrap()
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
async fn a_renewal_that_comes_late_lengthens_nothing_of_others() {
    if !available() {
        return;
    }
    let bed = bed().await;
    let first = take(&bed.held_up, "a", TTL).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    bed.forwarder.hold();
    // Two of three renew it; the third's renewal is on its way.
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
    bed.forwarder.hold_from(&name_of(&scripts::RAISE));
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

/// Renews until the last node has what was sent to repair it, or that is on its way.
async fn renew_until(locks: &Locks, lease: &Lease, what: &str, repaired: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    // A node whose answer is held up on this machine is not repaired.
    while !repaired() {
        assert!(Instant::now() < end, "{what}");
        locks.renew(&lease.key, None).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_that_comes_late_places_nothing_beside_others() {
    if !available() {
        return;
    }
    let bed = bed().await;
    let first = take_everywhere(&bed.held_up, &bed.servers, "a", LONG).await;
    let other = take_everywhere(&bed.held_up, &bed.servers, "b", LONG).await;
    // The last node has forgotten both, and votes again.
    bed.servers[2].cli(&["FLUSHALL"]);
    for locks in [&bed.held_up, &bed.direct] {
        until(locks, |nodes| matches!(nodes[2].1, Health::Quarantined { .. })).await;
    }
    let named = bed.direct.nodes()[2].0.clone();
    bed.direct.admit(Some(&named)).await.unwrap();
    for locks in [&bed.held_up, &bed.direct] {
        until(locks, |nodes| nodes[2].1 == Health::Serving).await;
    }
    let used = || bed.servers[2].cli(&["HGET", "fencepost:voter", "used"]);
    assert_eq!(used(), "");
    renew_until(&bed.held_up, &other, "no repair", || holding(&bed.servers, "b") == 3).await;
    assert_eq!(used(), "1", "a node with a lease counts as one that never had any");
    bed.forwarder.hold_from(&name_of(&scripts::REPAIR));
    renew_until(&bed.held_up, &first, "no repair", || bed.forwarder.holds_something()).await;
    bed.direct.release(&first.key).await.unwrap();
    let second = take_everywhere(&bed.direct, &bed.servers, "a", LONG).await;
    assert!(token(&second) > token(&first));
    let there = || bed.servers[2].cli(&["HMGET", "fencepost:faults:l:a", "c", "val", "secret", "exp"]);
    let before = there();
    deliver(&bed).await;
    assert_eq!(there(), before);
    assert!(bed.held_up.renew(&first.key, None).await.is_err());
    bed.direct.renew(&second.key, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_ends_a_lease_also_where_its_number_lags_behind() {
    if !available() {
        return;
    }
    let bed = bed().await;
    let lease = take_everywhere(&bed.direct, &bed.servers, "a", LONG).await;
    // As where the raise was lost on its way.
    let lower = (token(&lease) - 1).to_string();
    bed.servers[2].cli(&["HSET", "fencepost:faults:l:a", "val", &lower, "c", &lower]);
    let (lock, token) = (&lease.key.lock.name, lease.key.token);
    bed.direct.force_release(lock, token).await.unwrap();
    eventually("no node holds it", LONG / 6, || {
        (holding(&bed.servers, "a") == 0).then_some(())
    });
}
