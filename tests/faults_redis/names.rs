//! The index of the names in use.

use std::time::Duration;

use crate::harness::{replica, standalone, take};
use crate::servers::{RedisServer, available, eventually};

const TTL: Duration = Duration::from_secs(30);
const HOUR: i64 = 3_600;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_names_of_locks_that_were_used_once_go_though_nobody_lists_them() {
    if !available() {
        return;
    }
    let mut server = RedisServer::with_clock(&[]);
    let locks = replica(&standalone(&server.url())).await;
    for n in 0..250 {
        let lease = take(&locks, &format!("once{n}"), TTL).await;
        locks.release(&lease.key).await.unwrap();
    }
    let names = |server: &RedisServer| server.cli(&["ZCARD", "fencepost:faults:names"]);
    assert_eq!(names(&server), "250");
    // Nobody uses them for an hour, and one is in use.
    server.shift_clock(HOUR);
    take(&locks, "kept", TTL).await;
    tokio::task::block_in_place(|| {
        eventually("only the one in use is named", Duration::from_secs(120), || {
            (names(&server) == "1").then_some(())
        });
    });
    let page = fencepost::backend::PageRequest { after: None, size: 10 };
    let listed = locks.list("", page).await.unwrap().locks;
    let listed: Vec<&str> = listed.iter().map(|one| one.lock.as_str()).collect();
    assert_eq!(listed, ["kept"]);
}
