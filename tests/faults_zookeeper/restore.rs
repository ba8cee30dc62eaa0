//! An old copy of the data put back while all servers are down.

use std::time::Duration;

use fencepost::error::Error;
use fencepost::locks::{Lease, Locks};

use crate::clients::{acquire, take, token};
use crate::harness::{READY, ensemble, replica};
use crate::servers::Ensemble;

const TTL: Duration = Duration::from_secs(2);
const GRANTS: usize = 50;

/// Stops all servers, and starts them again: on their data, or on the copies.
fn copy(ensemble: &mut Ensemble) -> Vec<tempfile::TempDir> {
    ensemble.kill_all();
    let copies = ensemble.servers.iter().map(crate::servers::Server::copy_data).collect();
    ensemble.start_all();
    ensemble.wait_ready();
    copies
}

fn put_back(ensemble: &mut Ensemble, copies: &[tempfile::TempDir]) {
    ensemble.kill_all();
    for (server, copy) in ensemble.servers.iter().zip(copies) {
        server.put_back(copy);
    }
    ensemble.start_all();
    ensemble.wait_ready();
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
    let Some(mut ensemble) = ensemble(servers) else { return };
    let before = replica(&ensemble).await;
    let first = grants(&before).await;
    before.close().await;
    let copies = copy(&mut ensemble);
    let between = replica(&ensemble).await;
    let last = grants(&between).await;
    assert!(last > first);
    between.close().await;
    put_back(&mut ensemble, &copies);
    let after = replica(&ensemble).await;
    let next = token(&at_last(&after).await);
    assert!(next > last, "{next} after {last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_an_old_copy_put_back_while_all_replicas_are_down() {
    tokens_rise(1).await;
}

// G88, G109
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_old_copies_of_three_servers_put_back() {
    tokens_rise(3).await;
}

// G88, G109
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_an_old_copy_put_back_under_replicas_that_live() {
    let Some(mut ensemble) = ensemble(1) else { return };
    let (idle, busy) = (replica(&ensemble).await, replica(&ensemble).await);
    for locks in [&idle, &busy] {
        let lease = take(locks, "a", TTL).await;
        locks.release(&lease.key).await.expect("it was held");
    }
    let copies = copy(&mut ensemble);
    let last = grants(&busy).await;
    // Nobody else is to raise the base.
    busy.close().await;
    put_back(&mut ensemble, &copies);
    let next = token(&at_last(&idle).await);
    assert!(next > last, "{next} after {last}");
}
