//! What goes together in one request of etcd.

use std::collections::BTreeSet;
use std::time::Duration;

use etcd_client::Client;
use futures::future::join_all;

use crate::harness::{acquire, cluster, etcd, leases_of, namespace, steady_replica, take, token};

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
async fn one_dead_lease_among_thirty_costs_no_other_its_grant() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = steady_replica(&cluster).await;
    let mut etcd = etcd(&cluster).await;
    let take_all = async || {
        let one = |n: usize| {
            let locks = &locks;
            async move { take(locks, &format!("lock{n}"), TTL).await }
        };
        join_all((0..30).map(one)).await
    };
    let first = take_all().await;
    let dead = leases_of(&mut etcd, "lock7").await;
    assert_eq!(dead.len(), 1);
    let before = leases_of_all(&mut etcd).await;
    for lease in &first {
        locks.release(&lease.key).await.expect("it was held");
    }
    // It waits among the others to be used again, and ends from outside.
    etcd.lease_revoke(dead[0]).await.expect("etcd answers");
    let second = take_all().await;
    for (before, after) in first.iter().zip(&second) {
        assert!(token(after) > token(before));
    }
    let after = leases_of_all(&mut etcd).await;
    assert_eq!(after.len(), 30, "each has a lease of its own");
    assert!(!after.contains(&dead[0]));
    // The refused request was sent again apart: only one needed another lease.
    assert_eq!(after.intersection(&before).count(), 29);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_that_another_replica_raised_costs_no_step_of_a_request_its_answer() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = steady_replica(&cluster).await;
    let mut etcd = etcd(&cluster).await;
    let base = format!("/fencepost/{}/token_base", namespace());
    for round in 0..4 {
        let take_all = |from: usize| {
            let names = (from..from + 30).map(|n| format!("lock{n}"));
            let locks = &locks;
            join_all(names.map(|name| async move { take(locks, &name, TTL).await }))
        };
        let first = take_all(0).await;
        let raised = etcd.get(base.as_str(), None).await.expect("etcd answers");
        let raised = raised.kvs()[0].value_str().expect("text").parse::<u64>();
        let raised = raised.expect("a number") + 1_000_000;
        etcd.put(base.as_str(), raised.to_string(), None)
            .await
            .expect("etcd answers");
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

async fn leases_of_all(etcd: &mut Client) -> BTreeSet<i64> {
    let mut all = BTreeSet::new();
    for n in 0..30 {
        all.extend(leases_of(etcd, &format!("lock{n}")).await);
    }
    all
}
