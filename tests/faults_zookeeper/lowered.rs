//! A token base that elections, or a wrong clock, have driven ahead.

use std::time::Duration;

use fencepost::locks::Locks;

use crate::clients::{take, token};
use crate::forwarder::Forwarder;
use crate::harness::{Operator, ROOT, behind, replica, replica_of, sets, store};

/// Far more than the clock moves in a test.
const AHEAD: u64 = 1_000_000_000_000;

/// Acquires and releases: the token of that grant.
async fn granted(locks: &Locks) -> u64 {
    let lease = take(locks, "a", Duration::from_secs(60)).await;
    locks.release(&lease.key).await.expect("it is held");
    token(&lease)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_is_lowered_as_far_as_the_last_grant_allows() {
    let Some(store) = store(1) else { return };
    let base = format!("{ROOT}/base");
    let mut operator = Operator::open(&store).await;
    let first = replica(&store).await;
    let before = granted(&first).await;
    operator.write(&base, &(before + AHEAD).to_be_bytes()).await;
    let last = granted(&first).await;
    assert!(last > before + AHEAD);
    operator.write(&base, &(before + 2 * AHEAD).to_be_bytes()).await;
    let second = replica(&store).await;
    let next = granted(&second).await;
    assert!(next > last, "{next} after {last}");
    assert!(next < before + 2 * AHEAD, "{next}: the base stayed where it was");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_is_not_lowered_below_a_grant_that_comes_meanwhile() {
    let Some(store) = store(1) else { return };
    let network = Forwarder::before(store.servers[0].port()).await;
    let first = replica(&store).await;
    let before = granted(&first).await;
    let mut operator = Operator::open(&store).await;
    operator
        .write(&format!("{ROOT}/base"), &(before + AHEAD).to_be_bytes())
        .await;
    // Nothing was granted under the high base, as far as the second has read.
    network.holds(|part| sets(part, "/base"));
    let second = tokio::spawn(replica_of(behind(&network)));
    network.is_holding().await;
    let last = granted(&first).await;
    assert!(last > before + AHEAD);
    network.go_on();
    let second = second.await.expect("no panic");
    let next = granted(&second).await;
    assert!(next > last, "{next} after {last}");
}
