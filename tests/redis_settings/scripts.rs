//! Scripts are known to a server before they are called, and sent again to one that forgot them.

use std::time::Duration;

use crate::harness::{replica, standalone, take};
use crate::servers::{RedisServer, available};

const TTL: Duration = Duration::from_secs(30);

/// How many calls the server refused because it did not know their script.
fn unknown(server: &RedisServer) -> u64 {
    let text = server.cli(&["INFO", "errorstats"]);
    let count = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("errorstat_NOSCRIPT:count="));
    count.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_meets_a_server_that_does_not_know_its_script_unless_it_forgot() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let locks = replica(&standalone(&server.url())).await;
    let connected = unknown(&server);
    let held = take(&locks, "a", TTL).await;
    locks.renew(&held.key, None).await.unwrap();
    assert!(
        locks
            .check(&held.key.lock.name, held.key.token)
            .await
            .unwrap()
            .is_some()
    );
    locks.release(&held.key).await.unwrap();
    assert_eq!(unknown(&server), connected);
    assert_eq!(server.cli(&["SCRIPT", "FLUSH"]), "OK");
    let held = take(&locks, "a", TTL).await;
    locks.release(&held.key).await.unwrap();
    assert!(unknown(&server) > connected, "the server has forgotten no script");
}
