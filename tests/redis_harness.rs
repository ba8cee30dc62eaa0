//! The harness itself: what it starts is what it says.

#![cfg(feature = "redis")]

#[path = "common/redis.rs"]
mod redis;

use redis::{Cluster, RedisServer, Sentinels, available};

#[test]
fn a_server_forgets_without_and_remembers_with_durable_writes() {
    if !available() {
        return;
    }
    for (mut server, kept) in [(RedisServer::start(&[]), ""), (RedisServer::durable(), "1")] {
        server.cli(&["SET", "a", "1"]);
        server.kill9();
        server.restart();
        assert_eq!(server.cli(&["GET", "a"]), kept);
    }
}

#[test]
fn a_server_with_a_clock_of_its_own_can_be_shifted() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]).with_clock();
    let seconds = || server.cli(&["TIME"]).lines().next().unwrap().parse::<u64>().unwrap();
    let before = seconds();
    server.shift_clock("+1h");
    let after = redis::eventually("a shifted clock", std::time::Duration::from_secs(5), || {
        Some(seconds()).filter(|now| *now > before + 1800)
    });
    assert!(after >= before + 3600);
}

#[test]
fn sentinels_fail_over_to_the_replica() {
    if !available() {
        return;
    }
    let all = Sentinels::start();
    assert_eq!(all.fail_over(), all.servers[1].port());
}

#[test]
fn a_cluster_has_three_masters() {
    if !available() {
        return;
    }
    assert_eq!(Cluster::start().masters().len(), 3);
}
