//! Names used once leave memory and file about as small as before.

use std::time::{Duration, Instant};

use super::server::{Server, resident, size};
use super::traffic::{Client, alone, ask, connect, give, runtime, take};

const NAMES: usize = if cfg!(feature = "soak") { 100_000 } else { 20_000 };
/// Used before, with as many calls at a time, so that what connections and caches take is not
/// counted to the names.
const WARM_UP: usize = 5_000;
const AT_ONCE: usize = 1000;
/// How long finished calls are remembered, what the store waits beyond that to forget them
/// together, and the quiet in which it gives space back.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60 + 5 + 4);
/// What stays with the allocator and in the caches of the store.
const MORE_MEMORY: u64 = if cfg!(feature = "soak") { 32 << 20 } else { 7 << 20 };
const FILE: u64 = if cfg!(feature = "soak") { 12 << 20 } else { 4 << 20 };

/// Takes and gives back the names of these numbers, one after the other.
async fn use_once(client: &Client, numbers: impl Iterator<Item = usize>) {
    for number in numbers {
        let lease = take(client, ask(&format!("used-once/{number}"), Duration::ZERO)).await;
        give(client, lease.expect("it is free")).await;
    }
}

/// Uses all names, many at a time.
async fn use_all(client: &Client, names: std::ops::Range<usize>) {
    let users = (0..AT_ONCE).map(|user| use_once(client, names.clone().skip(user).step_by(AT_ONCE)));
    futures::future::join_all(users).await;
}

/// How many times all names are used: once, and under soak often enough to tell a leak from what the
/// allocator keeps.
const BURSTS: usize = if cfg!(feature = "soak") { 5 } else { 1 };
/// How much more a later burst may leave than the second one did: every burst uses fresh names, so
/// whatever a name left for good would be here [`NAMES`] times for each burst.
const MORE_EACH_BURST: u64 = 2 << 20;

// G71
#[test]
fn names_used_once_leave_memory_and_file_as_small_as_before() {
    let home = tempfile::tempdir().expect("a directory");
    let server = Server::start(&home);
    let file = home.path().join(".local/share/fencepost/fencepost.redb");
    let runtime = runtime();
    // From the start, so that the others have their turns while this one waits.
    let mut turn = Some(alone());
    let client = runtime.block_on(connect(&server.address));
    runtime.block_on(use_all(&client, 0..WARM_UP));
    let before = resident(server.id());
    let mut left_over = Vec::new();
    for burst in 0..BURSTS {
        let alone = turn.take().unwrap_or_else(alone);
        let began = Instant::now();
        let first = WARM_UP + burst * NAMES;
        runtime.block_on(use_all(&client, first..first + NAMES));
        drop(alone);
        let took = began.elapsed();
        let (peak, grown) = (resident(server.id()), size(&file));
        // Within the runtime: a connection whose client sleeps does not answer pings, and is ended.
        runtime.block_on(async { tokio::time::sleep(FORGOTTEN_AFTER).await });
        let (after, left) = (resident(server.id()), size(&file));
        println!("{NAMES} names in {took:?}: memory {before} -> {peak} -> {after}, file {grown} -> {left} bytes");
        assert!(after < before + MORE_MEMORY, "memory: {before} before, {after} after");
        assert!(left <= FILE, "the file keeps {left} bytes");
        left_over.push(after);
    }
    if let [_, second, .., last] = left_over[..] {
        let allowed = second + MORE_EACH_BURST * (left_over.len() as u64 - 2);
        assert!(last < allowed, "each burst leaves more: {left_over:?}");
    }
}
