//! An old copy of etcd's data put back.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fencepost::error::Error;
use fencepost::locks::{Acquire, Lease, Locks};
use fencepost::name::Mode;

use crate::forwarder::Forwarder;
use crate::harness::{acquire, ask, cluster, etcd, leases_of, name, replica, steady_replica_of, take, token};
use crate::servers::Cluster;

const TTL: Duration = Duration::from_secs(2);
/// The TTL of what must live until its test ends.
const LONG: Duration = Duration::from_secs(60);
/// How many revisions a store gets after its copy was put back: more than a replica has seen.
const BEYOND: usize = 50;

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.expect("cp runs").success());
}

/// Copies the data, lets `between` happen, and puts the copy back.
async fn put_back<F: Future>(cluster: &mut Cluster, between: impl FnOnce() -> F) -> F::Output {
    copy_under(cluster);
    let out = between().await;
    put_copy_back(cluster);
    out
}

/// Copies the data under the running member.
fn copy_under(cluster: &Cluster) {
    let data = cluster.servers[0].directory().join("data");
    let kept = cluster.servers[0].directory().join("kept");
    cluster.servers[0].pause();
    copy(&data, &kept);
    cluster.servers[0].resume();
}

/// Puts the copy back.
fn put_copy_back(cluster: &mut Cluster) {
    let data = cluster.servers[0].directory().join("data");
    let kept = cluster.servers[0].directory().join("kept");
    cluster.servers[0].kill9();
    copy(&kept, &data);
    cluster.servers[0].start();
}

/// Acquires as soon as the store answers again.
async fn at_last(locks: &Locks) -> Lease {
    for _ in 0..200 {
        match acquire(locks, "a", TTL, Duration::from_secs(10)).await {
            Err(Error::Backend(_)) => tokio::time::sleep(Duration::from_millis(100)).await,
            held => return held.expect("it is free"),
        }
    }
    panic!("the store stays away");
}

// G88, G109
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_an_old_copy_put_back_while_all_replicas_are_down() {
    let Some(mut cluster) = cluster(1, &[]) else {
        return;
    };
    let before = replica(&cluster).await;
    let first = take(&before, "a", TTL).await;
    before.release(&first.key).await.expect("it was held");
    before.close().await;
    let urls = cluster.urls();
    let last = put_back(&mut cluster, || async {
        let locks = crate::harness::replica_of(urls).await;
        let mut last = 0;
        for _ in 0..50 {
            let lease = take(&locks, "a", TTL).await;
            last = token(&lease);
            locks.release(&lease.key).await.expect("it was held");
        }
        locks.close().await;
        last
    })
    .await;
    assert!(last > token(&first));
    let after = replica(&cluster).await;
    let next = acquire(&after, "a", TTL, Duration::from_secs(10))
        .await
        .expect("it is free");
    assert!(token(&next) > last, "{} after {last}", token(&next));
}

// G88, G109
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_an_old_copy_put_back_under_a_replica_that_lives() {
    let Some(mut cluster) = cluster(1, &[]) else {
        return;
    };
    let locks = replica(&cluster).await;
    let first = take(&locks, "a", TTL).await;
    locks.release(&first.key).await.expect("it was held");
    let last = put_back(&mut cluster, || async {
        let mut last = 0;
        for _ in 0..50 {
            let lease = at_last(&locks).await;
            assert!(token(&lease) > last);
            last = token(&lease);
            locks.release(&lease.key).await.expect("it was held");
        }
        last
    })
    .await;
    let next = token(&at_last(&locks).await);
    assert!(next > last, "{next} after {last}");
}

// G88, G109
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_an_old_copy_put_back_under_a_replica_that_has_not_seen_the_last_ones() {
    let Some(mut cluster) = cluster(1, &[]) else {
        return;
    };
    let (idle, busy) = (replica(&cluster).await, replica(&cluster).await);
    // From now on both count from one base.
    for locks in [&idle, &busy, &idle] {
        let lease = take(locks, "a", TTL).await;
        locks.release(&lease.key).await.expect("it was held");
    }
    let last = put_back(&mut cluster, || async {
        let mut last = 0;
        for _ in 0..50 {
            let lease = take(&busy, "a", TTL).await;
            last = token(&lease);
            busy.release(&lease.key).await.expect("it was held");
        }
        // Nobody else is to raise the base.
        busy.close().await;
        last
    })
    .await;
    // At once: before the replica would look after its session.
    let again = async {
        loop {
            match acquire(&idle, "a", TTL, Duration::ZERO).await {
                Ok(lease) => return token(&lease),
                Err(Error::Backend(_)) => tokio::time::sleep(Duration::from_millis(2)).await,
                Err(other) => panic!("{other:?}"),
            }
        }
    };
    let next = tokio::time::timeout(Duration::from_secs(60), again).await;
    let next = next.expect("the store comes back");
    assert!(next > last, "{next} after {last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_claims_that_an_old_copy_brings_back_are_not_given_again() {
    let Some(mut cluster) = cluster(1, &[]) else {
        return;
    };
    let locks = replica(&cluster).await;
    let first = take(&locks, "b", LONG).await;
    put_back(&mut cluster, || async {
        // Its name is free for the next claim here, and in use in the copy.
        locks.release(&first.key).await.expect("it was held");
    })
    .await;
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
    let Some(mut cluster) = cluster(1, &[]) else {
        return;
    };
    let way = Forwarder::before(cluster.servers[0].port()).await;
    let locks = steady_replica_of(vec![format!("http://{}", way.address())]).await;
    let reader = || Acquire {
        mode: Mode::Shared,
        ..ask("a", LONG, Duration::ZERO)
    };
    let first = locks.acquire(reader()).await.expect("it is free").delivered();
    copy_under(&cluster);
    // Its key suffix is free for the next claim here, and in use in the copy.
    locks.release(&first.key).await.expect("it was held");
    way.stall();
    put_copy_back(&mut cluster);
    let mut etcd = etcd(&cluster).await;
    let mut written = 0;
    while written < BEYOND {
        match etcd.put("x", "1", None).await {
            Ok(_) => written += 1,
            // It has just begun.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    way.go_on();
    let second = loop {
        match locks.acquire(reader()).await {
            Err(Error::Backend(_)) => tokio::time::sleep(Duration::from_millis(100)).await,
            held => break held.expect("readers share it").delivered(),
        }
    };
    assert!(token(&second) > token(&first));
    let leases = leases_of(&mut etcd, "a").await;
    assert!(
        leases.len() == 2 && leases[0] != leases[1],
        "each has a lease of its own: {leases:?}"
    );
    for lease in [&first, &second] {
        let held = locks.check(&name("a"), lease.key.token).await.expect("etcd answers");
        assert!(held.is_some(), "the holder of the copy and the new one: {lease:?}");
    }
    locks.release(&second.key).await.expect("it is held");
}
