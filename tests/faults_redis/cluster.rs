//! Clusters whose slots and nodes come and go.

use std::process::Command;
use std::time::{Duration, Instant};

use fencepost::backend::redis_server::settings::{Servers, Settings, connection_info};

use crate::bench::{acquire, replica, replicated, serves, settings, take, unready};
use crate::servers::{Cluster, RedisServer, available, eventually};
use crate::topology::{move_slot, owner, slot_of};

const TTL: Duration = Duration::from_secs(120);

fn of(cluster: &Cluster) -> Settings {
    let seeds = cluster.urls().iter().map(|url| connection_info(url).unwrap()).collect();
    settings(Servers::Cluster(seeds))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_given_a_lower_slot_is_trusted_by_newcomers_and_after_a_failover() {
    if !available() {
        return;
    }
    let mut cluster = Cluster::quick();
    let settings = of(&cluster);
    let one = replica(&settings).await;
    take(&one, "a", TTL).await;
    let from = owner(&cluster, 0).port();
    // With it goes the marker of the node that served it.
    let moved = tokio::task::block_in_place(|| move_slot(&cluster, "0"));
    assert_eq!(moved, 1, "the first slot has no marker");
    let to = owner(&cluster, 0).port();
    assert_ne!(to, from);
    let two = unready(&settings);
    serves(&two, TTL).await;
    let at = cluster.nodes.iter().position(|node| node.port() == to).unwrap();
    tokio::task::block_in_place(|| {
        eventually("its own marker lies in its first slot", TTL / 2, || {
            has_marker_at(&cluster.nodes[at], "0").then_some(())
        });
    });
    replicated(&cluster.nodes[at]).await;
    cluster.nodes[at].kill9();
    let lock = (0..).map(|n| format!("lock{n}")).find(|lock| {
        let slot = slot_of(lock);
        owner_port(&cluster, slot).is_none()
    });
    let (lock, killed) = (lock.unwrap(), Instant::now());
    let three = unready(&settings);
    for locks in [&one, &two, &three] {
        loop {
            match acquire(locks, &lock, TTL, Duration::ZERO).await {
                Ok(lease) => {
                    locks.release(&lease.key).await.unwrap();
                    break;
                }
                Err(error) => assert!(killed.elapsed() < TTL / 2, "{error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        serves(locks, TTL / 2).await;
    }
}

/// Whether a node has a marker in this slot that names its present run.
fn has_marker_at(node: &RedisServer, slot: &str) -> bool {
    let keys = node.cli(&["KEYS", "fencepost:admitted:*"]);
    let run = node.cli(&["INFO", "server"]);
    keys.lines().any(|key| {
        node.cli(&["CLUSTER", "KEYSLOT", key]) == slot && {
            let named = node.cli(&["HGET", key, "run_id"]);
            run.lines().any(|line| line.trim() == format!("run_id:{named}"))
        }
    })
}

/// The port of the living node that serves a slot.
fn owner_port(cluster: &Cluster, slot: u16) -> Option<u16> {
    cluster
        .masters()
        .into_iter()
        .find(|node| crate::topology::owns(node, slot))
        .map(RedisServer::port)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_taken_out_of_the_cluster_is_not_believed() {
    if !available() {
        return;
    }
    let cluster = Cluster::start();
    let settings = of(&cluster);
    let mut all = Vec::new();
    for _ in 0..6 {
        all.push(replica(&settings).await);
    }
    let gone = owner(&cluster, 0);
    let (id, seed) = (gone.cli(&["CLUSTER", "MYID"]), format!("127.0.0.1:{}", gone.port()));
    let began = Instant::now();
    for command in [
        vec!["rebalance", &seed, "--cluster-weight", &format!("{id}=0")],
        vec!["del-node", &seed, &id],
    ] {
        let done = Command::new("redis-cli")
            .arg("--cluster")
            .args(&command)
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    }
    println!("taken out in {:?}", began.elapsed());
    let map = gone.cli(&["CLUSTER", "SLOTS"]);
    assert_eq!(map, "", "it still knows slots");
    // The map is read anew several times.
    tokio::time::sleep(Duration::from_secs(4)).await;
    for (n, locks) in all.iter().enumerate() {
        serves(locks, TTL).await;
        for m in 0..10 {
            take(locks, &format!("lock{n}-{m}"), TTL).await;
        }
        let health = locks.health().borrow().clone();
        assert_eq!(health, fencepost::backend::Health::Serving);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_does_not_wait_for_the_node_of_the_names() {
    if !available() {
        return;
    }
    let cluster = Cluster::start();
    let locks = replica(&of(&cluster)).await;
    let index = fencepost::backend::redis_server::cluster::slot(b"fencepost:faults:names");
    let hung = owner(&cluster, index);
    let lock = (0..)
        .map(|n| format!("lock{n}"))
        .find(|lock| owner(&cluster, slot_of(lock)).port() != hung.port());
    hung.pause();
    let asked = Instant::now();
    let lease = acquire(&locks, &lock.unwrap(), TTL, Duration::ZERO).await.unwrap();
    // An answer of the node that hangs would be waited for ten seconds.
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    locks.renew(&lease.key, None).await.unwrap();
    locks.release(&lease.key).await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());
    hung.resume();
}
