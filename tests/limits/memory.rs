//! What a waiter takes beyond an open call.

use std::time::Duration;

use super::bare::{Bare, serve_if_asked};
use super::server::{Server, resident};
use super::traffic::{alone, ask, connect, runtime, take, until_waiting};

/// So many that what a process takes once is little for each.
const WAITERS: u32 = 10_000;
const PATIENT: Duration = Duration::from_secs(120);
/// What one waiter may take beyond what its open call takes without a service, in bytes. The program's allocator
/// rounds sizes up more than that of the bare process, which is the system's: 9.1 to 9.7 kB are seen.
const PER_WAITER: u64 = 11 << 10;

/// By how much a process grows with each call that waits there for one lock.
fn per_call(process: u32, address: &str, lock: &str) -> u64 {
    runtime().block_on(async {
        let client = connect(address).await;
        let before = resident(process);
        for _ in 0..WAITERS {
            let (client, ask) = (client.clone(), ask(lock, PATIENT));
            tokio::spawn(async move { take(&client, ask).await });
        }
        until_waiting(&client, WAITERS).await;
        resident(process).saturating_sub(before) / u64::from(WAITERS)
    })
}

#[test]
fn a_waiter_takes_little_more_than_an_open_call() {
    serve_if_asked();
    let _alone = alone();
    let bare = Bare::start("memory::a_waiter_takes_little_more_than_an_open_call");
    let open = per_call(bare.id(), &bare.address, "held");
    drop(bare);
    let home = tempfile::tempdir().expect("a directory");
    let server = Server::start(&home);
    runtime().block_on(async {
        let client = connect(&server.address).await;
        take(&client, ask("held", Duration::ZERO)).await.expect("it is free");
    });
    let waiting = per_call(server.id(), &server.address, "held");
    println!("bytes per open call: {open} without a service, {waiting} as a waiter");
    assert!(open > 0, "nothing was measured");
    assert!(
        waiting < open + PER_WAITER,
        "{waiting} bytes for a waiter, {open} for an open call"
    );
}
