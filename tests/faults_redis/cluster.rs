//! Clusters whose slots and nodes come and go.

use std::process::Command;
use std::time::{Duration, Instant};

use fencepost::backend::redis_server::settings::{OnEmptyStore, Servers, Settings, connection_info};

use crate::faults_redis::harness::{acquire, replica, replicated, serves, settings, take, unready};
use crate::faults_redis::servers::{Cluster, RedisServer, available, cluster_node, eventually};
use crate::faults_redis::topology::{move_slot, move_slot_to, owner, slot_of};

const TTL: Duration = Duration::from_secs(120);

fn of(cluster: &Cluster) -> Settings {
    let seeds = cluster.urls().iter().map(|url| connection_info(url).unwrap()).collect();
    settings(Servers::Cluster(seeds))
}

// G91
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_given_a_lower_slot_is_trusted_by_newcomers_and_after_a_failover() {
    common::skip_unless!(available());
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
        .find(|node| crate::faults_redis::topology::owns(node, slot))
        .map(RedisServer::port)
}

// G91
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_taken_out_of_the_cluster_is_not_believed() {
    common::skip_unless!(available());
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
    common::skip_unless!(available());
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

/// Adds a master without slots, once every node knows it.
fn add_empty(cluster: &mut Cluster) {
    let added = cluster_node();
    let port = added.port().to_string();
    assert_eq!(cluster.nodes[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &port]), "OK");
    let id = added.cli(&["CLUSTER", "MYID"]);
    let knows = |node: &RedisServer| {
        let nodes = node.cli(&["CLUSTER", "NODES"]);
        nodes
            .lines()
            .any(|line| line.starts_with(&id) && line.contains(" master "))
    };
    eventually("every node knows the new one", Duration::from_secs(60), || {
        let ready = added.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
        (ready && cluster.nodes.iter().all(knows)).then_some(())
    });
    cluster.nodes.push(added);
}

// G91
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_was_met_before_it_has_slots_grants_at_once() {
    common::skip_unless!(available());
    let mut cluster = Cluster::start();
    let mut settings = of(&cluster);
    take(&replica(&settings).await, "a", TTL).await;
    // From now on a server that is not known is in quarantine for a day.
    settings.on_empty_store = OnEmptyStore::Quarantine;
    let locks = replica(&settings).await;
    tokio::task::block_in_place(|| {
        add_empty(&mut cluster);
        let added = &cluster.nodes[6];
        eventually("the new master is met", Duration::from_secs(20), || {
            let asked = added.cli(&["INFO", "commandstats"]);
            // Its marker's place is asked for last.
            asked.contains("cmdstat_cluster|nodes").then_some(())
        });
        assert_eq!(move_slot_to(&cluster, &slot_of("a").to_string(), added), 1);
    });
    let moved = Instant::now();
    let like = |lock: &String| slot_of(lock) == slot_of("a");
    let lock = (0..).map(|n| format!("lock{n}")).find(like).unwrap();
    loop {
        match acquire(&locks, &lock, TTL, Duration::ZERO).await {
            Ok(_) => break,
            Err(error) => assert!(
                moved.elapsed() < Duration::from_secs(10) && !error.to_string().contains("quarantined"),
                "{error:?}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let key = format!("fencepost:faults:l:{lock}");
    assert_eq!(cluster.nodes[6].cli(&["EXISTS", &key]), "1");
    // What moved with the slot is still held.
    let refused = acquire(&locks, "a", TTL, Duration::ZERO).await;
    assert!(
        matches!(refused, Err(fencepost::error::Error::LockHeld { .. })),
        "{refused:?}"
    );
}
