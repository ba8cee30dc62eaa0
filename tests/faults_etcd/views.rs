//! Views of a queue that are out of date.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::DeleteOptions;
use fencepost::backend::etcd::Store;
use fencepost::backend::{
    AcquireOutcome, Backend, Health, InspectLimit, NewClaim, ReleaseTarget, Released, WaitPolicy,
};
use fencepost::name::Mode;

use crate::claims::{self, Asking};
use crate::harness::{cluster, etcd, name, namespace, steady};
use crate::servers::Cluster;

async fn backend(cluster: &Cluster) -> Arc<dyn Backend> {
    let backend = Store::open(steady(cluster.urls())).namespace(&namespace());
    let mut health = backend.health();
    let serving = health.wait_for(|health| *health == Health::Serving);
    let serving = tokio::time::timeout(Duration::from_secs(20), serving).await;
    serving.expect("it serves in time").expect("it says how it is");
    backend
}

fn claim(mode: Mode) -> NewClaim {
    NewClaim {
        mode,
        ..claims::claim("tester").unrepeated()
    }
}

async fn remove(backend: &dyn Backend, claim: &NewClaim, next: Option<&NewClaim>) -> bool {
    let left = backend
        .release(&name("a"), ReleaseTarget::Call(&claim.id, claim.call), next)
        .await
        .expect("etcd answers");
    assert!(matches!(left.released, Released::Ended(_)), "{left:?}");
    left.next.is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_in_no_view_is_not_promoted() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let (locks, other) = (backend(&cluster).await, backend(&cluster).await);
    let (held, waits) = (claim(Mode::Exclusive), claim(Mode::Exclusive));
    let acquired = locks.acquire(&name("a"), &held).await.expect("etcd answers");
    assert!(matches!(acquired, AcquireOutcome::Held(_)), "{acquired:?}");
    let acquired = other.acquire(&name("a"), &waits).await.expect("etcd answers");
    assert!(matches!(acquired, AcquireOutcome::Waiting(_)), "{acquired:?}");
    let queue = format!("/fencepost/{}/lock/a\tq/", namespace());
    let mut etcd = etcd(&cluster).await;
    let gone = etcd.delete(queue, Some(DeleteOptions::new().with_prefix())).await;
    assert_eq!(gone.expect("etcd answers").deleted(), 1);
    // Whether the event has come or not.
    assert!(!remove(&*locks, &held, Some(&waits)).await);
    let place = other.promote(&name("a"), &waits).await.expect("etcd answers");
    assert!(matches!(place, AcquireOutcome::Gone), "{place:?}");
    let queue = locks
        .inspect(&name("a"), InspectLimit::of_each(9))
        .await
        .expect("etcd answers");
    assert_eq!((queue.holder_count, queue.waiter_count), (0, 0));
}

// G1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_promoted_beside_an_older_claim_that_was_just_promoted() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let (locks, other) = (backend(&cluster).await, backend(&cluster).await);
    let all = Mode::semaphore(3, 3).expect("a semaphore");
    let one = Mode::semaphore(1, 3).expect("a semaphore");
    let modes = [
        (Mode::Exclusive, Mode::Exclusive),
        (Mode::Exclusive, Mode::Shared),
        (all, one),
    ];
    for round in 0..30 {
        let (older, younger) = modes[round % modes.len()];
        let (held, older, younger) = (claim(older), claim(older), claim(younger));
        let acquired = locks.acquire(&name("a"), &held).await.expect("etcd answers");
        assert!(
            matches!(acquired, AcquireOutcome::Held(_)),
            "round {round}: {acquired:?}"
        );
        for (replica, waiter) in [(&locks, &older), (&other, &younger)] {
            let acquired = replica.acquire(&name("a"), waiter).await.expect("etcd answers");
            assert!(
                matches!(acquired, AcquireOutcome::Waiting(_)),
                "round {round}: {acquired:?}"
            );
        }
        // The younger one asks while the older one is promoted, by a hand-over or by itself.
        let next = (round % 2 == 0).then_some(&older);
        let asks = async {
            for _ in 0..10 {
                let place = other.promote(&name("a"), &younger).await.expect("etcd answers");
                assert!(matches!(place, AcquireOutcome::Waiting(_)), "round {round}: {place:?}");
            }
        };
        let takes = async {
            if !remove(&*locks, &held, next).await {
                let place = locks.promote(&name("a"), &older).await.expect("etcd answers");
                assert!(matches!(place, AcquireOutcome::Held(_)), "round {round}: {place:?}");
            }
        };
        tokio::join!(asks, takes);
        remove(&*locks, &older, None).await;
        let place = other.promote(&name("a"), &younger).await.expect("etcd answers");
        assert!(matches!(place, AcquireOutcome::Held(_)), "round {round}: {place:?}");
        remove(&*other, &younger, None).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_asks_after_a_release_has_taken_it_up_finds_its_grant() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = backend(&cluster).await;
    for modes in [[Mode::Exclusive; 2], [Mode::Exclusive, Mode::Shared]] {
        let [held, waits] = modes.map(claim);
        let acquired = locks.acquire(&name("a"), &held).await.expect("etcd answers");
        assert!(matches!(acquired, AcquireOutcome::Held(_)), "{acquired:?}");
        // Its key suffix is free for the next claim.
        let tried = NewClaim {
            wait_policy: WaitPolicy::NoWait,
            ..claim(Mode::Exclusive)
        };
        let acquired = locks.acquire(&name("a"), &tried).await.expect("etcd answers");
        assert!(matches!(acquired, AcquireOutcome::Busy(_)), "{acquired:?}");
        let acquired = locks.acquire(&name("a"), &waits).await.expect("etcd answers");
        assert!(matches!(acquired, AcquireOutcome::Waiting(_)), "{acquired:?}");
        let who = ReleaseTarget::Call(&held.id, held.call);
        let left = locks.release(&name("a"), who, Some(&waits)).await;
        let granted = left.expect("etcd answers").next.expect("it is next");
        // It asked before it heard of that.
        let place = locks.promote(&name("a"), &waits).await.expect("etcd answers");
        let AcquireOutcome::Held(again) = place else {
            panic!("{place:?}")
        };
        assert_eq!((again.token, again.secret), (granted.token, granted.secret));
        remove(&*locks, &waits, None).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_never_takes_over_a_claim_that_only_has_its_name() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let (locks, other) = (backend(&cluster).await, backend(&cluster).await);
    let (held, waits) = (claim(Mode::Exclusive), claim(Mode::Exclusive));
    let acquired = other.acquire(&name("a"), &held).await.expect("etcd answers");
    assert!(matches!(acquired, AcquireOutcome::Held(_)), "{acquired:?}");
    let acquired = other.acquire(&name("a"), &waits).await.expect("etcd answers");
    assert!(matches!(acquired, AcquireOutcome::Waiting(_)), "{acquired:?}");
    for there in [&held, &waits] {
        let new = NewClaim {
            id: there.id,
            wait_policy: WaitPolicy::NoWait,
            ..claim(Mode::Exclusive)
        };
        let acquired = locks.acquire(&name("a"), &new).await.expect("etcd answers");
        assert!(matches!(acquired, AcquireOutcome::Busy(_)), "{acquired:?}");
    }
    let queue = locks
        .inspect(&name("a"), InspectLimit::of_each(9))
        .await
        .expect("etcd answers");
    assert_eq!((queue.holder_count, queue.waiter_count), (1, 1));
    remove(&*other, &waits, None).await;
    remove(&*other, &held, None).await;
}
