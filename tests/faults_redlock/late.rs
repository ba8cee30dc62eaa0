//! Commands that a node gets late: held back on their way until others have gone on.

use std::time::{Duration, Instant};

use fencepost::backend::Health;
use fencepost::backend::redis_server::script::{Script, ScriptCall, ScriptRef};
use fencepost::backend::redlock::scripts;
use fencepost::limits::Limits;
use fencepost::locks::{Lease, Locks};

use crate::forwarder::Forwarder;
use crate::harness::{acquire, holding, nodes, quorum, replica, take, take_everywhere, take_soon, token, until};
use crate::servers::{RedisServer, available, eventually};

const TTL: Duration = Duration::from_secs(3);
/// Longer than any of these tests.
const LONG: Duration = Duration::from_secs(60);

/// Three nodes, the last of them behind a forwarder for one replica; another replica reaches all.
struct Fixture {
    servers: [RedisServer; 3],
    forwarder: Forwarder,
    held_up: Locks,
    direct: Locks,
}

async fn fixture() -> Fixture {
    bed_over(nodes()).await
}

async fn bed_over(servers: [RedisServer; 3]) -> Fixture {
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
    Fixture {
        servers,
        forwarder,
        held_up,
        direct,
    }
}

/// The name by which a node knows a script.
fn name_of(script: &Script) -> String {
    let called = script.command(&ScriptCall::of(b"", &[]), ScriptRef::Hash);
    let Some(redis::Arg::Simple(name)) = called.args_iter().nth(1) else {
        panic!("no name: {called:?}");
    };
    String::from_utf8(name.to_vec()).unwrap()
}

/// Lets what was held back arrive, and be done.
async fn deliver(fixture: &Fixture) {
    assert!(fixture.forwarder.holds_something(), "nothing comes late");
    fixture.forwarder.deliver().await;
    // A node answers one connection after another: this comes behind what was delivered just now.
    tokio::time::sleep(Duration::from_millis(100)).await;
    fixture.servers[2].cli(&["PING"]);
}

// G101
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_whose_vote_came_late_is_not_renewed_after_a_larger_token() {
    common::skip_unless!(available());
    let fixture = fixture().await;
    fixture.forwarder.hold();
    // Two votes of three: the third is on its way.
    let first = take(&fixture.held_up, "a", TTL).await;
    tokio::time::sleep(TTL + TTL / 50).await;
    let second = take_soon(&fixture.direct, "a", TTL).await;
    assert!(token(&second) > token(&first));
    fixture.direct.release(&second.key).await.unwrap();
    deliver(&fixture).await;
    // The late vote may be there now. It counts for nothing.
    for locks in [&fixture.held_up, &fixture.direct] {
        assert!(locks.renew(&first.key, None).await.is_err());
    }
    let third = take_soon(&fixture.direct, "a", TTL).await;
    assert!(token(&third) > token(&second));
    assert!(fixture.held_up.renew(&first.key, None).await.is_err());
    fixture.direct.renew(&third.key, None).await.unwrap();
}

// G17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vote_that_comes_after_its_release_finds_its_tombstone() {
    common::skip_unless!(available());
    let fixture = fixture().await;
    fixture.forwarder.hold();
    let lease = take(&fixture.held_up, "a", TTL).await;
    // By the replica that reaches every node: the release overtakes the vote.
    fixture.direct.release(&lease.key).await.unwrap();
    deliver(&fixture).await;
    assert_eq!(holding(&fixture.servers, "a"), 0, "the late vote was given");
    let next = take(&fixture.direct, "a", TTL).await;
    assert!(token(&next) > token(&lease));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_comes_late_lengthens_nothing_of_others() {
    common::skip_unless!(available());
    let fixture = fixture().await;
    let first = take(&fixture.held_up, "a", TTL).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    fixture.forwarder.hold();
    // Two of three renew it; the third's renewal is on its way.
    fixture.held_up.renew(&first.key, None).await.unwrap();
    fixture.direct.release(&first.key).await.unwrap();
    let second = take_soon(&fixture.direct, "a", TTL).await;
    let until = Instant::now() + TTL;
    deliver(&fixture).await;
    assert!(fixture.held_up.renew(&first.key, None).await.is_err());
    let refused = acquire(&fixture.held_up, "a", TTL, Duration::ZERO).await;
    assert!(refused.is_err() || Instant::now() >= until, "{refused:?}");
    fixture.direct.renew(&second.key, None).await.unwrap();
    fixture.direct.release(&second.key).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(holding(&fixture.servers, "a"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vote_that_comes_after_a_force_finds_a_tombstone_also_where_one_node_alone_had_the_lease() {
    common::skip_unless!(available());
    let fixture = fixture().await;
    fixture.forwarder.hold();
    let lease = take(&fixture.held_up, "a", LONG).await;
    // Of the two nodes that have it one hangs: the others do not know whose token it is.
    fixture.servers[1].pause();
    fixture
        .direct
        .force_release(&lease.key.lock.name, lease.key.token)
        .await
        .unwrap();
    fixture.servers[1].resume();
    deliver(&fixture).await;
    assert_eq!(holding(&fixture.servers[2..], "a"), 0, "the late vote was given");
    for locks in [&fixture.held_up, &fixture.direct] {
        assert!(locks.renew(&lease.key, None).await.is_err());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_raise_that_comes_late_lifts_and_lowers_nothing_of_others() {
    common::skip_unless!(available());
    // Clocks so far apart that no two votes agree; the node behind the forwarder is the slowest.
    let mut fixture = bed_over(std::array::from_fn(|_| RedisServer::with_clock(&[]))).await;
    fixture.servers[0].shift_clock_ms(800);
    fixture.servers[1].shift_clock_ms(400);
    let warm = take_soon(&fixture.held_up, "warm", TTL).await;
    fixture.held_up.release(&warm.key).await.unwrap();
    fixture.forwarder.hold_from(&name_of(&scripts::RAISE));
    let first = take_soon(&fixture.held_up, "a", LONG).await;
    fixture.direct.release(&first.key).await.unwrap();
    eventually("the first is nowhere", Duration::from_secs(10), || {
        (holding(&fixture.servers, "a") == 0).then_some(())
    });
    let second = take_soon(&fixture.direct, "a", LONG).await;
    assert!(token(&second) > token(&first));
    let there = || fixture.servers[2].cli(&["HMGET", "fencepost:faults:l:a", "c", "val", "secret"]);
    eventually("the second is everywhere", Duration::from_secs(10), || {
        there().contains(&format!("{0}\n{0}\n", token(&second))).then_some(())
    });
    let before = there();
    deliver(&fixture).await;
    assert_eq!(there(), before);
    fixture.direct.renew(&second.key, None).await.unwrap();
    assert!(fixture.held_up.renew(&first.key, None).await.is_err());
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
    common::skip_unless!(available());
    let fixture = fixture().await;
    let first = take_everywhere(&fixture.held_up, &fixture.servers, "a", LONG).await;
    let other = take_everywhere(&fixture.held_up, &fixture.servers, "b", LONG).await;
    // The last node has forgotten both, and votes again.
    fixture.servers[2].cli(&["FLUSHALL"]);
    for locks in [&fixture.held_up, &fixture.direct] {
        until(locks, |nodes| matches!(nodes[2].1, Health::Quarantined { .. })).await;
    }
    let named = fixture.direct.nodes()[2].0.clone();
    fixture.direct.admit(Some(&named)).await.unwrap();
    for locks in [&fixture.held_up, &fixture.direct] {
        until(locks, |nodes| nodes[2].1 == Health::Serving).await;
    }
    let used = || fixture.servers[2].cli(&["HGET", "fencepost:voter", "used"]);
    assert_eq!(used(), "");
    renew_until(&fixture.held_up, &other, "no repair", || {
        holding(&fixture.servers, "b") == 3
    })
    .await;
    assert_eq!(used(), "1", "a node with a lease counts as one that never had any");
    fixture.forwarder.hold_from(&name_of(&scripts::REPAIR));
    renew_until(&fixture.held_up, &first, "no repair", || {
        fixture.forwarder.holds_something()
    })
    .await;
    fixture.direct.release(&first.key).await.unwrap();
    let second = take_everywhere(&fixture.direct, &fixture.servers, "a", LONG).await;
    assert!(token(&second) > token(&first));
    let there = || fixture.servers[2].cli(&["HMGET", "fencepost:faults:l:a", "c", "val", "secret", "exp"]);
    let before = there();
    deliver(&fixture).await;
    assert_eq!(there(), before);
    assert!(fixture.held_up.renew(&first.key, None).await.is_err());
    fixture.direct.renew(&second.key, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_ends_a_lease_also_where_its_number_lags_behind() {
    common::skip_unless!(available());
    let fixture = fixture().await;
    let lease = take_everywhere(&fixture.direct, &fixture.servers, "a", LONG).await;
    // As where the raise was lost on its way.
    let lower = (token(&lease) - 1).to_string();
    fixture.servers[2].cli(&["HSET", "fencepost:faults:l:a", "val", &lower, "c", &lower]);
    let (lock, token) = (&lease.key.lock.name, lease.key.token);
    fixture.direct.force_release(lock, token).await.unwrap();
    eventually("no node holds it", LONG / 6, || {
        (holding(&fixture.servers, "a") == 0).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_counts_only_under_the_admission_that_its_renewal_was_sent_under() {
    common::skip_unless!(available());
    let fixture = fixture().await;
    let node = &fixture.servers[0];
    let mut completed = 0;
    for round in 0..3 {
        let name = format!("a{round}");
        let key = format!("fencepost:faults:l:{name}");
        let lease = take_everywhere(&fixture.held_up, &fixture.servers, &name, LONG).await;
        // The first node has lost the lease, and the last one's renewal is on its way.
        node.cli(&["DEL", &key]);
        let exp = || fixture.servers[1].cli(&["HGET", &key, "exp"]);
        let before = exp();
        fixture.forwarder.hold();
        let renewed = tokio::spawn({
            let locks = fixture.held_up.clone();
            async move { locks.renew(&lease.key, None).await }
        });
        eventually("the second node renews", LONG / 6, || (exp() != before).then_some(()));
        // Meanwhile the first node is admitted anew, and the replica learns of it by a vote.
        node.cli(&["HSET", "fencepost:voter", "epoch", &format!("another{round}")]);
        let voted = tokio::spawn({
            let (locks, name) = (fixture.held_up.clone(), format!("b{round}"));
            async move { acquire(&locks, &name, TTL, Duration::ZERO).await.is_ok() }
        });
        tokio::time::sleep(Duration::from_millis(150)).await;
        fixture.forwarder.deliver().await;
        // This machine may have held the renewal up for too long.
        completed += u32::from(renewed.await.unwrap().is_ok());
        voted.await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(holding(&fixture.servers[..1], &name), 0, "the repair counted");
    }
    assert!(completed > 0, "no lease was renewed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn votes_that_come_after_the_ttl_grant_nothing() {
    common::skip_unless!(available());
    let servers = nodes::<3>();
    let forwarders = [
        Forwarder::before(servers[1].port()).await,
        Forwarder::before(servers[2].port()).await,
    ];
    let locks = replica(&quorum(
        [servers[0].url(), forwarders[0].url(), forwarders[1].url()],
        LONG,
    ))
    .await;
    let ttl = Duration::from_millis(50);
    locks.set_limits(Limits {
        ttl_min: ttl,
        ..Limits::default()
    });
    for forwarder in &forwarders {
        forwarder.late(2 * ttl);
    }
    take_soon(&locks, "a", TTL).await;
    for _ in 0..3 {
        let granted = acquire(&locks, "b", ttl, Duration::ZERO).await;
        assert!(granted.is_err(), "{granted:?}");
    }
}
