//! An old copy of the data put back while all servers are down.

use std::time::Duration;

use common::clients::spawn_acquire;
use fencepost::error::Error;
use fencepost::locks::{Acquire, Lease, Locks};
use fencepost::name::Mode;

use crate::clients::{acquire, ask, take, token, until_waiting};
use crate::forwarder::Forwarder;
use crate::harness::{Operator, READY, ROOT, Servers, behind, name, replica, serves, steady, store, unready};

const TTL: Duration = Duration::from_secs(2);
/// The TTL of what must live until its test ends.
const LONG: Duration = Duration::from_secs(60);
const GRANTS: usize = 50;
/// How often a store is written to after its copy was put back: more than a replica has seen.
const BEYOND: usize = 50;

/// Stops all servers, and starts them again: on their data, or on the copies.
fn copy(store: &mut Servers) -> Vec<tempfile::TempDir> {
    store.kill_all();
    let copies = store.servers.iter().map(|server| server.copy_data()).collect();
    store.start_all();
    store.wait_ready();
    copies
}

fn put_back(store: &mut Servers, copies: &[tempfile::TempDir]) {
    store.kill_all();
    for (server, copy) in store.servers.iter().zip(copies) {
        server.put_back(copy);
    }
    store.start_all();
    store.wait_ready();
}

/// Acquires as soon as the store answers again.
async fn at_last(locks: &Locks) -> Lease {
    let again = async {
        loop {
            match acquire(locks, "a", TTL, Duration::from_secs(10)).await {
                Err(Error::Backend(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                held => return held.expect("it is free"),
            }
        }
    };
    tokio::time::timeout(READY, again).await.expect("the store comes back")
}

async fn grants(locks: &Locks) -> u64 {
    let mut last = 0;
    for _ in 0..GRANTS {
        let lease = at_last(locks).await;
        assert!(token(&lease) > last, "{} after {last}", token(&lease));
        last = token(&lease);
        locks.release(&lease.key).await.expect("it was held");
    }
    last
}

async fn tokens_rise(servers: usize) {
    let Some(mut store) = store(servers) else { return };
    let before = replica(&store).await;
    let first = grants(&before).await;
    before.close().await;
    let copies = copy(&mut store);
    let between = replica(&store).await;
    let last = grants(&between).await;
    assert!(last > first);
    between.close().await;
    put_back(&mut store, &copies);
    let after = replica(&store).await;
    let next = token(&at_last(&after).await);
    assert!(next > last, "{next} after {last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_an_old_copy_put_back_while_all_replicas_are_down() {
    tokens_rise(1).await;
}

// G88a, G109
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_old_copies_of_three_servers_put_back() {
    tokens_rise(3).await;
}

// G88a, G109
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_an_old_copy_put_back_under_replicas_that_live() {
    let Some(mut store) = store(1) else { return };
    let (idle, busy) = (replica(&store).await, replica(&store).await);
    for locks in [&idle, &busy] {
        let lease = take(locks, "a", TTL).await;
        locks.release(&lease.key).await.expect("it was held");
    }
    let copies = copy(&mut store);
    let last = grants(&busy).await;
    // Nobody else is to raise the base.
    busy.close().await;
    put_back(&mut store, &copies);
    let next = token(&at_last(&idle).await);
    assert!(next > last, "{next} after {last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_an_old_copy_brings_back_blocks_nobody() {
    let Some(mut store) = store(1) else { return };
    let (locks, steady) = (replica(&store).await, Duration::from_secs(10));
    let first = acquire(&locks, "a", steady, Duration::ZERO).await.expect("it is free");
    let waits = spawn_acquire(&locks, "a", steady, LONG);
    until_waiting(&locks, "a", 1).await;
    let copies = copy(&mut store);
    serves(&locks).await;
    waits.abort();
    until_waiting(&locks, "a", 0).await;
    locks.release(&first.key).await.expect("it was held");
    put_back(&mut store, &copies);
    serves(&locks).await;
    // The holder of the copy ends with its TTL, and the waiter with the session that it was made under.
    let next = acquire(&locks, "a", TTL, LONG).await.expect("the copy's claims end");
    assert!(token(&next) > token(&first));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_claims_that_an_old_copy_brings_back_are_not_given_again() {
    let Some(mut store) = store(1) else { return };
    let locks = replica(&store).await;
    let first = take(&locks, "b", LONG).await;
    let copies = copy(&mut store);
    serves(&locks).await;
    // Its name is free for the next claim here, and in use in the copy.
    locks.release(&first.key).await.expect("it was held");
    put_back(&mut store, &copies);
    let again = async {
        loop {
            match acquire(&locks, "b", LONG, Duration::ZERO).await {
                Err(Error::Backend(error)) => {
                    assert!(!error.to_string().contains("in use already"), "{error}");
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                other => return other,
            }
        }
    };
    let tried = tokio::time::timeout(Duration::from_secs(40), again).await;
    let tried = tried.expect("the store comes back");
    assert!(matches!(tried, Err(Error::LockHeld { .. })), "{tried:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suffix_that_an_old_copy_brings_back_is_not_used_again_although_no_revision_has_fallen() {
    let Some(mut store) = store(1) else { return };
    let way = Forwarder::before(store.servers[0].port()).await;
    let locks = unready(steady(behind(&way)));
    serves(&locks).await;
    let reader = || Acquire {
        mode: Mode::Shared,
        ..ask("a", LONG, Duration::ZERO)
    };
    let first = locks.acquire(reader()).await.expect("it is free").delivered();
    let copies = copy(&mut store);
    serves(&locks).await;
    // Its key suffix is free for the next claim here, and in use in the copy.
    locks.release(&first.key).await.expect("it was held");
    let base = Operator::open(&store).await.read(&format!("{ROOT}/base")).await;
    way.stall();
    put_back(&mut store, &copies);
    let mut operator = Operator::open(&store).await;
    for _ in 0..BEYOND {
        operator.write(&format!("{ROOT}/base"), &base).await;
    }
    way.go_on();
    let second = loop {
        match locks.acquire(reader()).await {
            Err(Error::Backend(_)) => tokio::time::sleep(Duration::from_millis(100)).await,
            held => break held.expect("readers share it").delivered(),
        }
    };
    assert!(token(&second) > token(&first));
    assert_eq!(operator.claims().await.len(), 2, "each has a key of its own");
    for lease in [&first, &second] {
        let held = locks.check(&name("a"), lease.key.token).await.expect("it answers");
        assert!(held.is_some(), "the holder of the copy and the new one: {lease:?}");
    }
    locks.release(&second.key).await.expect("it is held");
}
