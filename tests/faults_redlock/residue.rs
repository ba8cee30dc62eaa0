//! What stays at the nodes: as long as it is needed, and no longer.

use std::time::Duration;

use futures::StreamExt;

use crate::harness::{nodes, of, replica, take, take_soon, until};
use crate::servers::{RedisServer, available, eventually};
use fencepost::backend::Health;

const TTL: Duration = Duration::from_secs(2);
const DAY: Duration = Duration::from_secs(86_400);
/// The locks' keys that a node would keep for good.
const FOR_GOOD: &str = "local found = {} for _, key in ipairs(redis.call('KEYS', '*:l:*')) do \
                        if redis.call('PTTL', key) == -1 then found[#found + 1] = key end end return found";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_watches_a_lease_shortens_it_at_no_node() {
    common::skip_unless!(available());
    let servers = nodes::<3>();
    let locks = replica(&of(&servers, 10 * DAY)).await;
    let lease = take(&locks, "a", 10 * DAY).await;
    let left = |server: &RedisServer| server.cli(&["PTTL", "fencepost:faults:l:a"]).parse::<i128>().unwrap();
    let enough = i128::try_from((10 * DAY).as_millis()).unwrap();
    eventually("every node has it", Duration::from_secs(10), || {
        servers.iter().all(|server| left(server) > enough).then_some(())
    });
    let mut watch = locks.watch(&lease.key.lock.name);
    watch.next().await.unwrap().unwrap();
    eventually("every node knows who watches", Duration::from_secs(10), || {
        let watched = |server: &RedisServer| server.cli(&["HEXISTS", "fencepost:faults:l:a", "watched"]) == "1";
        servers.iter().all(watched).then_some(())
    });
    for server in &servers {
        assert!(left(server) > enough, "it is forgotten in {} ms", left(server));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_does_not_vote_remembers_ends_for_their_time_alone() {
    common::skip_unless!(available());
    let servers = nodes::<3>();
    let locks = replica(&of(&servers, 30 * TTL)).await;
    servers[2].cli(&["FLUSHALL"]);
    until(&locks, |nodes| matches!(nodes[2].1, Health::Quarantined { .. })).await;
    for round in 0..100 {
        let lease = take_soon(&locks, &format!("once{round}"), TTL).await;
        locks.release(&lease.key).await.unwrap();
    }
    eventually("the last end is there", Duration::from_secs(10), || {
        (servers[2].cli(&["EXISTS", "fencepost:faults:l:once99"]) == "1").then_some(())
    });
    for server in &servers {
        assert_eq!(server.cli(&["EVAL", FOR_GOOD, "0"]), "");
    }
}

// G71
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_were_used_once_are_forgotten_though_nobody_lists() {
    common::skip_unless!(available());
    let mut servers: [RedisServer; 3] = std::array::from_fn(|_| RedisServer::with_clock(&[]));
    let locks = replica(&of(&servers, TTL)).await;
    for round in 0..60 {
        let lease = take_soon(&locks, &format!("once{round}"), TTL).await;
        locks.release(&lease.key).await.unwrap();
    }
    let named = |server: &RedisServer| server.cli(&["ZCARD", "fencepost:faults:names"]).parse::<u32>().unwrap();
    // A vote that was held up on this machine may come behind its end.
    eventually("the names are known", Duration::from_secs(10), || {
        servers.iter().all(|server| named(server) >= 40).then_some(())
    });
    // They are kept for a minute, by the clock of each node.
    servers.iter_mut().for_each(|server| server.shift_clock(70));
    eventually("no name is left", Duration::from_secs(60), || {
        servers.iter().all(|server| named(server) == 0).then_some(())
    });
}
