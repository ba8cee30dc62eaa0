//! Nodes whose clocks are wrong.

use std::time::Duration;

use fencepost::backend::{BackendError, Health};
use fencepost::error::Error;
use fencepost::name::FencingToken;

use crate::harness::{acquire, admission, admitted_anew, of, replica, take_soon, token, until};
use crate::servers::{RedisServer, available};

const TTL: Duration = Duration::from_secs(2);
/// How far past the clock a number follows a hint, as in `lock.lua`.
const HINT: Duration = Duration::from_millis(100);
/// To the year 2300.
const CENTURIES: i64 = 8_640_000_000;
/// Past all that a clock within a day of ours says, in microseconds.
fn too_far(server: &RedisServer) -> u64 {
    (u64::try_from(server.time()).unwrap() + 2 * 86_400) * 1_000_000
}

// G6, G101
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_in_the_year_2300_gives_no_lock_a_number_from_there() {
    common::skip_unless!(available());
    let mut servers: [RedisServer; 3] = std::array::from_fn(|_| RedisServer::with_clock(&[]));
    servers[2].shift_clock(CENTURIES);
    let quorum = of(&servers, TTL);
    let locks = replica(&quorum).await;
    let mut last = 0;
    for round in 0..10 {
        for name in ["hot", &format!("new{round}")] {
            let lease = take_soon(&locks, name, TTL).await;
            assert!(token(&lease) < too_far(&servers[0]), "{name}: {}", token(&lease));
            if name == "hot" {
                assert!(token(&lease) > last);
                last = token(&lease);
            }
            locks.renew(&lease.key, None).await.unwrap();
            locks.release(&lease.key).await.unwrap();
        }
    }
    // A node that is admitted anew does not count on from there either.
    let before = admission(&servers[0]);
    servers[0].cli(&["FLUSHALL"]);
    admitted_anew(&servers[0], &before, Duration::from_secs(10));
    let floor = servers[0].cli(&["HGET", "fencepost:voter", "floor"]);
    assert!(floor.parse::<u64>().unwrap() < too_far(&servers[0]), "{floor}");
    let lease = take_soon(&locks, "hot", TTL).await;
    assert!(token(&lease) > last && token(&lease) < too_far(&servers[0]));
    locks.release(&lease.key).await.unwrap();
    // It is no help where one of the others is gone, and is named.
    servers[1].kill9();
    until(&locks, |nodes| matches!(nodes[1].1, Health::Unavailable { .. })).await;
    let refused = acquire(&locks, "alone", TTL, Duration::ZERO).await.unwrap_err();
    let named = format!("127.0.0.1:{}", servers[2].port());
    match &refused {
        Error::Backend(BackendError::NoQuorum { reason, .. }) => {
            assert!(reason.contains(&format!("the token numbers of {named}")), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    // Back in time and emptied, it counts again.
    servers[2].shift_clock(0);
    let before = admission(&servers[2]);
    servers[2].cli(&["FLUSHALL"]);
    admitted_anew(&servers[2], &before, Duration::from_secs(10));
    let lease = take_soon(&locks, "alone", TTL).await;
    assert!(token(&lease) < too_far(&servers[0]), "{}", token(&lease));
}

// G6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_all_were_in_the_year_2300_ruin_no_lock() {
    common::skip_unless!(available());
    let mut servers: [RedisServer; 3] = std::array::from_fn(|_| RedisServer::with_clock(&[]));
    for server in &mut servers {
        server.shift_clock(CENTURIES);
    }
    let floor = |server: &RedisServer| {
        server
            .cli(&["HGET", "fencepost:voter", "floor"])
            .parse::<u64>()
            .unwrap()
    };
    let locks = replica(&of(&servers, TTL)).await;
    assert!(floor(&servers[0]) < FencingToken::MAX);
    let before = admission(&servers[0]);
    servers[0].cli(&["FLUSHALL"]);
    admitted_anew(&servers[0], &before, Duration::from_secs(10));
    assert!(floor(&servers[0]) < FencingToken::MAX);
    let mut last = 0;
    for _ in 0..10 {
        let lease = take_soon(&locks, "hot", TTL).await;
        assert!(token(&lease) > last && token(&lease) < FencingToken::MAX);
        last = token(&lease);
        locks.renew(&lease.key, None).await.unwrap();
        locks.release(&lease.key).await.unwrap();
        // A node that has forgotten the lock goes on from the floor of all.
        for server in &servers {
            server.cli(&["DEL", "fencepost:faults:l:hot"]);
        }
    }
    let held = take_soon(&locks, "held", TTL).await;
    for server in &mut servers {
        server.shift_clock(0);
    }
    // Its holder is gone: it ends all the same.
    let next = acquire(&locks, "held", TTL, Duration::from_secs(30)).await.unwrap();
    assert!(token(&next) > token(&held) && token(&next) < FencingToken::MAX);
    assert!(token(&take_soon(&locks, "hot", TTL).await) > last);
}

// G77b
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_each_lock_rise_by_clocks_before_2020() {
    common::skip_unless!(available());
    let mut servers: [RedisServer; 3] = std::array::from_fn(|_| RedisServer::with_clock(&[]));
    let locks = replica(&of(&servers, TTL)).await;
    let mut last = [("old", 0), ("new", 0)];
    for years in [0, 10, 30, 20, 0] {
        for server in &mut servers {
            server.shift_clock(-years * 365 * 86_400);
        }
        // The second one is new when the clocks are wrong.
        for (name, last) in last
            .iter_mut()
            .filter(|(name, last)| *name == "old" || years > 0 || *last > 0)
        {
            for _ in 0..3 {
                let lease = take_soon(&locks, name, TTL).await;
                assert!(
                    token(&lease) > *last,
                    "{name}, {years} years ago: {} after {last}",
                    token(&lease)
                );
                *last = token(&lease);
                locks.release(&lease.key).await.unwrap();
            }
        }
    }
}

// G79
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_beyond_the_range_of_tokens_do_not_count() {
    const FAR: &str = "11234000000000000";
    common::skip_unless!(available());
    let servers: [RedisServer; 3] = std::array::from_fn(|_| RedisServer::with_clock(&[]));
    let locks = replica(&of(&servers, TTL)).await;
    let before = take_soon(&locks, "a", TTL).await;
    // Its number may be as far past the clock, which is all that counts once the counter is overwritten.
    tokio::time::sleep(HINT).await;
    for server in &servers {
        server.cli(&["HSET", "fencepost:faults:l:a", "c", FAR, "val", FAR]);
        server.cli(&["HSET", "fencepost:voter", "floor", FAR]);
    }
    // Nor does a holder with one.
    let next = acquire(&locks, "a", TTL, Duration::ZERO).await.unwrap();
    assert!(
        token(&next) > token(&before) && token(&next) < too_far(&servers[0]),
        "{}",
        token(&next)
    );
    locks.release(&next.key).await.unwrap();
    let other = take_soon(&locks, "b", TTL).await;
    assert!(token(&other) < too_far(&servers[0]), "{}", token(&other));
}
