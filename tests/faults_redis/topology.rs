//! Failovers, and slots that move.

use std::time::{Duration, Instant};

use fencepost::backend::redis_server::settings::{Servers, connection_info};

use crate::bench::{contend, replica, serves, settings, take, token};
use crate::servers::{Cluster, Sentinels, available, eventually};

const TTL: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_is_followed_and_tokens_rise() {
    if !available() {
        return;
    }
    let servers = Sentinels::start();
    let info = |address: &String| connection_info(&format!("redis://{address}")).unwrap();
    let sentinels: Vec<_> = servers.addresses().iter().map(info).collect();
    let settings = settings(Servers::Sentinel {
        master: "mymaster".into(),
        login: sentinels[0].clone(),
        sentinels,
    });
    let locks = replica(&settings).await;
    let held = take(&locks, "a", TTL).await;
    let settled = take(&locks, "settled", TTL).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    servers.fail_over();
    let switched = Instant::now();
    tokio::time::sleep(Duration::from_millis(500)).await;
    serves(&locks, Duration::from_secs(5)).await;
    let lease = loop {
        match crate::bench::acquire(&locks, "b", TTL, Duration::ZERO).await {
            Ok(lease) => break lease,
            Err(error) => assert!(switched.elapsed() < Duration::from_secs(5), "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    println!("served {:?} after the switch", switched.elapsed());
    assert!(token(&lease) > 0);
    // What was replicated is still held; its token is passed only upwards.
    locks.release(&held.key).await.unwrap();
    assert!(token(&take(&locks, "a", TTL).await) > token(&held));
    locks.renew(&settled.key, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_under_load_and_no_call_fails() {
    if !available() {
        return;
    }
    let cluster = Cluster::start();
    let seeds = cluster.urls().iter().map(|url| connection_info(url).unwrap()).collect();
    let settings = settings(Servers::Cluster(seeds));
    let replicas = [replica(&settings).await, replica(&settings).await];
    take(&replicas[0], "warm", TTL).await;
    let slot = fencepost::backend::redis_server::cluster::slot(b"fencepost:faults:l:hot").to_string();
    let moves = tokio::task::spawn_blocking(move || {
        std::thread::sleep(Duration::from_millis(500));
        move_slot(&cluster, &slot);
        cluster
    });
    let (tokens, gap) = contend(&replicas, 4, Duration::from_secs(5)).await;
    moves.await.unwrap();
    println!("{} grants, longest gap {gap:?}", tokens.len());
    assert!(
        tokens.len() > 100 && gap < Duration::from_secs(2),
        "{} {gap:?}",
        tokens.len()
    );
}

/// Moves a slot to another master, its keys one by one, as resharding does.
fn move_slot(cluster: &Cluster, slot: &str) {
    let masters = cluster.masters();
    let owns = |node: &&&crate::servers::RedisServer| {
        let mine = node.cli(&["CLUSTER", "NODES"]);
        let line = mine.lines().find(|line| line.contains("myself")).unwrap().to_owned();
        let wanted: u16 = slot.parse().unwrap();
        line.split_whitespace().skip(8).any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            (first.parse().unwrap_or(1)..=last.parse().unwrap_or(0)).contains(&wanted)
        })
    };
    let from = masters.iter().find(owns).unwrap();
    let to = masters.iter().find(|node| node.port() != from.port()).unwrap();
    let (from_id, to_id) = (from.cli(&["CLUSTER", "MYID"]), to.cli(&["CLUSTER", "MYID"]));
    to.cli(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &from_id]);
    from.cli(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &to_id]);
    std::thread::sleep(Duration::from_millis(500));
    eventually("the slot is empty", Duration::from_secs(10), || {
        let keys = from.cli(&["CLUSTER", "GETKEYSINSLOT", slot, "100"]);
        for key in keys.lines().filter(|key| !key.is_empty()) {
            from.cli(&["MIGRATE", "127.0.0.1", &to.port().to_string(), key, "0", "1000"]);
        }
        keys.is_empty().then_some(())
    });
    std::thread::sleep(Duration::from_millis(500));
    for node in [to, from] {
        node.cli(&["CLUSTER", "SETSLOT", slot, "NODE", &to_id]);
    }
}
