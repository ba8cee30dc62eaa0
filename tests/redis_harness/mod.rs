//! The harness itself: what it starts is what it says.

#![cfg(feature = "redis")]

use std::time::SystemTime;

use common::redis::{Cluster, RedisServer, Sentinels, available};

#[test]
fn a_server_forgets_without_and_remembers_with_durable_writes() {
    common::skip_unless!(available());
    for (mut server, kept) in [(RedisServer::start(&[]), ""), (RedisServer::durable(), "1")] {
        server.cli(&["SET", "a", "1"]);
        server.kill9();
        server.restart();
        assert_eq!(server.cli(&["GET", "a"]), kept);
    }
}

#[test]
fn a_server_with_a_clock_of_its_own_can_be_shifted() {
    common::skip_unless!(available());
    let mut server = RedisServer::with_clock(&[]);
    let here = || i64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
    for shift in [3_600, -3_600, 0] {
        server.shift_clock(shift);
        let off = server.time() - here() - shift;
        assert!(off.abs() <= 2, "{off}");
    }
    server.shift_clock(60);
    server.kill9();
    server.restart();
    assert!((server.time() - here() - 60).abs() <= 2);
}

#[test]
fn sentinels_fail_over_to_the_replica() {
    common::skip_unless!(available());
    let all = Sentinels::start();
    assert_eq!(all.fail_over(), all.servers[1].port());
}

#[test]
fn a_cluster_has_three_masters() {
    common::skip_unless!(available());
    assert_eq!(Cluster::start().masters().len(), 3);
}
