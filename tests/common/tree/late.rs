//! Steps that were given up at a leader that stands still, and come late.

use std::time::Duration;

use fencepost::error::Error;
use futures::future::join_all;

use crate::clients::{acquire, token};
use crate::harness::{addresses, name, replica, replica_of, store};

const TTL: Duration = Duration::from_secs(120);
const ROUNDS: usize = if cfg!(feature = "soak") { 12 } else { 2 };
const LOCKS: usize = 20;

// G17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_was_given_up_at_a_paused_leader_is_undone_however_late_it_comes() {
    let Some(store) = store(3) else { return };
    let other = replica(&store).await;
    let mut given_up = 0;
    for round in 0..ROUNDS {
        let leader = store.leader();
        // It talks to the leader, and to the others when that one is silent.
        let mut urls = addresses(&store);
        urls.rotate_left(leader);
        let locks = replica_of(urls).await;
        store.servers[leader].pause();
        let tries = (0..LOCKS).map(|n| {
            let locks = locks.clone();
            async move { acquire(&locks, &format!("r{round}n{n}"), TTL, Duration::ZERO).await }
        });
        let tried = join_all(tries).await;
        store.servers[leader].resume();
        for (n, tried) in tried.iter().enumerate() {
            let lock = format!("r{round}n{n}");
            match tried {
                Ok(held) => locks.release(&held.key).await.expect("it was held"),
                Err(Error::Backend(_)) => given_up += 1,
                Err(other) => panic!("{other:?}"),
            }
            // Long before the TTL of what was given up is over.
            let wait = Duration::from_secs(40);
            let held = acquire(&other, &lock, TTL, wait).await.expect("it is free in time");
            for replica in [&locks, &other] {
                let checked = replica.check(&name(&lock), held.key.token).await;
                assert!(checked.expect("it answers").is_some(), "{lock}: {}", token(&held));
            }
            let queue = other.inspect(&name(&lock), 9).await.expect("it answers");
            assert_eq!((queue.holder_count, queue.waiter_count), (1, 0), "{lock}");
        }
    }
    assert!(given_up > 0, "every call was answered: the leader was not needed");
}
