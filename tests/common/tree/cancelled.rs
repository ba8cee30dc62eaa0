//! Calls whose clients go away, and what they leave in the store.

use std::time::Duration;

use fencepost::error::Error;

use crate::clients::acquire;
use crate::harness::{addresses, name, nothing_is_left, serves, steady, store, unready};

/// Longer than any test.
const TTL: Duration = Duration::from_secs(3600);
const CALLS: u64 = if cfg!(feature = "soak") { 10_000 } else { 1_000 };
const LOCKS: u64 = 7;
/// How many calls are begun before etcd has served the earlier ones.
const TOGETHER: u64 = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_cancelled_under_way_leave_no_claim() {
    let Some(store) = store(1) else { return };
    let locks = unready(steady(addresses(&store)));
    serves(&locks).await;
    let mut cancelled = 0;
    // Of how many calls the timeout comes first depends on the machine.
    for n in 0..20 * CALLS {
        if n >= CALLS && cancelled > CALLS / 4 {
            break;
        }
        let lock = format!("m{}", n % LOCKS);
        if n % TOGETHER == 0 {
            // The store answers this after the steps of the calls before, so a slow one has few to do at once.
            locks.inspect(&name(&lock), 1).await.expect("it answers");
        }
        // Some try, and some wait.
        let wait = if n % 3 == 0 { TTL } else { Duration::ZERO };
        let call = acquire(&locks, &lock, TTL, wait);
        let after = Duration::from_micros(200 + 73 * (n % 40));
        match tokio::time::timeout(after, call).await {
            Ok(Ok(lease)) => locks.release(&lease.key).await.expect("it is held"),
            Ok(Err(Error::LockHeld { .. })) => {}
            Ok(Err(other)) => panic!("{other:?}"),
            Err(_) => cancelled += 1,
        }
    }
    assert!(cancelled > CALLS / 4, "only {cancelled} were under way");
    println!("{cancelled} calls cancelled");
    nothing_is_left(&store).await;
}
