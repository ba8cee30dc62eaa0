//! Commands that a node gets late: held back on their way until others have gone on.

use std::time::{Duration, Instant};

use fencepost::locks::Locks;

use crate::bench::{acquire, holding, nodes, quorum, replica, take, take_soon, token};
use crate::forwarder::Forwarder;
use crate::servers::{RedisServer, available};

const TTL: Duration = Duration::from_millis(1_500);

/// Three nodes, the last of them behind a forwarder for one replica; another replica reaches all.
struct Bed {
    servers: [RedisServer; 3],
    forwarder: Forwarder,
    held_up: Locks,
    direct: Locks,
}

async fn bed() -> Bed {
    let servers = nodes::<3>();
    let forwarder = Forwarder::before(servers[2].port()).await;
    let urls = |last: String| [servers[0].url(), servers[1].url(), last];
    let held_up = replica(&quorum(urls(forwarder.url()), TTL)).await;
    let direct = replica(&quorum(urls(servers[2].url()), TTL)).await;
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
    bed.forwarder.deliver();
    tokio::time::sleep(Duration::from_millis(300)).await;
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
