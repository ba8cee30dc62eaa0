//! What uses of locks leave in ZooKeeper.

use std::sync::Arc;

use fencepost::backend::{Backend, ClaimLimits, NewClaim, ReleaseTarget};

use crate::claims::{ROOMY, numbered};
use crate::harness::{READY, backend, hold, name, settings, store};
use crate::servers::Ensemble;

const LONG: bool = cfg!(feature = "soak");
/// How many ends the namespace remembers.
const REMEMBERED: u32 = 20;

/// One that is remembered, or not, by its number.
fn claim(number: u128) -> NewClaim {
    NewClaim {
        retryable: number.is_multiple_of(2),
        limits: ClaimLimits {
            finished: REMEMBERED,
            ..ROOMY
        },
        ..numbered(number)
    }
}

async fn use_once(backend: &dyn Backend, lock: &str, claim: &NewClaim) {
    let lease = hold(backend, lock, claim).await;
    let released = backend.release(&name(lock), ReleaseTarget::Hold(&lease), None).await;
    released.expect("it answers");
}

/// Waits until there are no more nodes than this.
async fn shrinks_to(ensemble: &Ensemble, most: usize) {
    let shrinks = async {
        while ensemble.servers[0].nodes() > most {
            tokio::time::sleep(READY / 1000).await;
        }
    };
    let shrunk = tokio::time::timeout(READY, shrinks).await;
    let left = ensemble.servers[0].nodes();
    assert!(shrunk.is_ok(), "{left} nodes are left, and not {most}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_nodes_of_a_lock_do_not_grow_with_its_uses_with_request_ids_or_without() {
    let uses: u128 = if LONG { 100_000 } else { 600 };
    let Some(ensemble) = store(1) else { return };
    let replicas = [
        backend(settings(ensemble.addresses())).await,
        backend(settings(ensemble.addresses())).await,
    ];
    // It creates the buckets of the lock.
    use_once(&*replicas[0], "a", &numbered(1)).await;
    let before = ensemble.servers[0].nodes();
    let size = || ensemble.servers[0].figure("zk_approximate_data_size");
    let size_before = size();
    for number in 2..uses {
        let replica = Arc::clone(&replicas[usize::from(number.is_multiple_of(3))]);
        use_once(&*replica, "a", &claim(number)).await;
    }
    // Each replica remembers as many.
    let most = before + replicas.len() * usize::try_from(REMEMBERED).expect("few");
    shrinks_to(&ensemble, most).await;
    let each = 1024.0 * f64::from(REMEMBERED);
    let grown = size() - size_before;
    println!(
        "{} nodes and {grown} bytes more after {uses} uses",
        ensemble.servers[0].nodes() - before
    );
    assert!(grown < each * 2.0, "{grown} bytes more");
}

// G71
/// Minutes: the cleanup looks at each bucket about once in one.
#[cfg(feature = "soak")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_node_is_left_behind_after_idle_locks_were_cleaned_up() {
    use std::time::Duration;

    use fencepost::name::{Mode, Ttl};

    use crate::harness::{ROOT, holds};
    use crate::raw::Connection;

    const LOCKS: u128 = 50;
    const CLEANED: Duration = Duration::from_secs(6 * 60);
    const SWEPT_AGAIN: Duration = Duration::from_secs(3 * 60);

    fn left(operator: &mut Connection) -> Vec<String> {
        let mut left = Vec::new();
        for part in ["l", "c"] {
            let part = format!("{ROOT}/{part}");
            for bucket in operator.children(&part).expect("the buckets") {
                let bucket = format!("{part}/{bucket}");
                let nodes = operator.children(&bucket).expect("its nodes");
                left.extend(nodes.into_iter().map(|node| format!("{bucket}/{node}")));
            }
        }
        left
    }

    let Some(ensemble) = store(1) else { return };
    let staying = backend(settings(ensemble.addresses())).await;
    let dead = backend(settings(ensemble.addresses())).await;
    for number in 1..=LOCKS {
        let shared = NewClaim {
            mode: if number.is_multiple_of(3) {
                Mode::Shared
            } else {
                Mode::Exclusive
            },
            ..claim(number)
        };
        use_once(&*dead, &format!("l{number}"), &shared).await;
    }
    // What is in use stays: a holder with its request, and a waiter with its own.
    let used = [LOCKS + 2, LOCKS + 4].map(|number| NewClaim {
        ttl: Ttl::new(2 * CLEANED).expect("a positive TTL"),
        ..claim(number)
    });
    for claim in &used {
        let acquired = staying.acquire(&name("used"), claim).await.expect("it answers");
        assert_eq!(holds(&acquired), claim.id == used[0].id);
    }
    let mut operator = Connection::open(&ensemble.servers[0].address());
    assert!(left(&mut operator).len() > usize::try_from(LOCKS / 3).expect("few"));
    // What it has left is the other's to clean up.
    dead.close().await;
    drop(dead);
    let begun = std::time::Instant::now();
    loop {
        let mut operator = Connection::open(&ensemble.servers[0].address());
        let left = left(&mut operator);
        // The lock in use, and its two requests.
        if left.len() == 3 {
            break;
        }
        assert!(left.len() > 3, "what is in use was cleaned up: {left:?}");
        assert!(begun.elapsed() < CLEANED, "{left:?}");
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    println!("all was cleaned up after {:?}", begun.elapsed());
    // A record of a request is looked at once more in this time.
    tokio::time::sleep(SWEPT_AGAIN).await;
    let mut operator = Connection::open(&ensemble.servers[0].address());
    assert_eq!(left(&mut operator).len(), 3);
}
