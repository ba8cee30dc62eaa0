//! What goes together in one request of etcd.

use std::time::Duration;

use futures::future::join_all;

use crate::harness::{Operator, ROOT, acquire, cluster, steady_replica, take, token};

const TTL: Duration = Duration::from_secs(30);

// G1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_claims_on_one_lock_in_one_turn_one_holds() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = steady_replica(&cluster).await;
    let mut last = [0; 20];
    for round in 0..30 {
        // Forty at once, of which each lock gets two: they come while the turn before is under way.
        let tries = (0..40).map(|n| {
            let locks = locks.clone();
            async move { acquire(&locks, &format!("lock{}", n % 20), TTL, Duration::ZERO).await }
        });
        let held: Vec<_> = join_all(tries).await.into_iter().collect();
        for lock in 0..20 {
            let here: Vec<_> = [&held[lock], &held[lock + 20]]
                .into_iter()
                .filter_map(|held| held.as_ref().ok())
                .collect();
            assert_eq!(here.len(), 1, "round {round}, lock {lock}: {here:?}");
            assert!(token(here[0]) > last[lock], "round {round}, lock {lock}");
            last[lock] = token(here[0]);
        }
        let releases = held.iter().flatten().map(|lease| locks.release(&lease.key));
        for released in join_all(releases).await {
            released.expect("it was held");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_that_another_replica_raised_costs_no_step_of_a_request_its_answer() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = steady_replica(&cluster).await;
    let mut operator = Operator::open(&cluster).await;
    let base = format!("{ROOT}/base");
    for round in 0..4 {
        let take_all = |from: usize| {
            let names = (from..from + 30).map(|n| format!("lock{n}"));
            let locks = &locks;
            join_all(names.map(|name| async move { take(locks, &name, TTL).await }))
        };
        let first = take_all(0).await;
        let written = operator.read(&base).await.try_into().expect("a number");
        let raised = u64::from_be_bytes(written) + 1_000_000;
        operator.write(&base, &raised.to_be_bytes()).await;
        // Releases ask for no base.
        let releases = join_all(first.iter().map(|lease| locks.release(&lease.key)));
        let (second, released) = tokio::join!(take_all(30), releases);
        for (lease, released) in second.iter().zip(released) {
            released.expect("it was held");
            assert!(token(lease) > raised, "round {round}: {lease:?}");
            locks.release(&lease.key).await.expect("it was held");
        }
    }
}
