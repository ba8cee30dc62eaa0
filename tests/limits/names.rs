//! Names used once leave memory and file about as small as before.

use std::time::{Duration, Instant};

use super::server::{Server, resident, size};
use super::traffic::{Client, alone, ask, connect, give, runtime, take};

const NAMES: usize = 100_000;
const AT_ONCE: usize = 1000;
/// How long finished calls are remembered, what the store waits beyond that to forget them
/// together, and the quiet in which it gives space back.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60 + 5 + 4);
/// What stays with the allocator and in the caches of the store.
const MORE_MEMORY: u64 = 16 << 20;
const FILE: u64 = 12 << 20;

/// Takes and gives back the names of these numbers, one after the other.
async fn use_once(client: &Client, numbers: impl Iterator<Item = usize>) {
    for number in numbers {
        let lease = take(client, ask(&format!("used-once/{number}"), Duration::ZERO)).await;
        give(client, lease.expect("it is free")).await;
    }
}

/// Uses all names, many at a time.
async fn use_all(client: &Client) {
    let users = (0..AT_ONCE).map(|first| use_once(client, (first..NAMES).step_by(AT_ONCE)));
    futures::future::join_all(users).await;
}

#[test]
fn names_used_once_leave_memory_and_file_as_small_as_before() {
    let home = tempfile::tempdir().expect("a directory");
    let server = Server::start(&home);
    let file = home.path().join(".local/share/fencepost/fencepost.redb");
    let runtime = runtime();
    let client = runtime.block_on(connect(&server.address));
    runtime.block_on(use_once(&client, NAMES..NAMES + 100));
    let before = resident(server.id());
    let began = Instant::now();
    {
        let _alone = alone();
        runtime.block_on(use_all(&client));
    }
    let took = began.elapsed();
    let (peak, grown) = (resident(server.id()), size(&file));
    std::thread::sleep(FORGOTTEN_AFTER);
    let (after, left) = (resident(server.id()), size(&file));
    println!("{NAMES} names in {took:?}: memory {before} -> {peak} -> {after}, file {grown} -> {left} bytes");
    assert!(after < before + MORE_MEMORY, "memory: {before} before, {after} after");
    assert!(left <= FILE, "the file keeps {left} bytes");
}
