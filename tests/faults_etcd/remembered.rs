//! What is remembered of leases that have ended, and for how long.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use etcd_client::{Client, GetOptions};
use fencepost::claim::Cause;
use fencepost::error::Error;
use fencepost::locks::{Acquire, Lease, Locks};
use fencepost::name::{FencingToken, LeaseKey, RequestId, Secret};

use crate::harness::{ask, cluster, etcd, leases_of, name, namespace, steady_replica, take as take_plain, token};

const SHORT: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(30);
/// By when a replica has looked for a lease that it granted for a [`SHORT`] time.
const LOOKED: Duration = Duration::from_secs(4);

fn nightly(ttl: Duration) -> Acquire {
    Acquire {
        request_id: Some(RequestId::new("nightly").expect("a good id")),
        ..ask("a", ttl, Duration::ZERO)
    }
}

async fn take(locks: &Locks, ttl: Duration) -> Lease {
    locks.acquire(nightly(ttl)).await.expect("it is free").delivered()
}

fn prefix(kind: &str) -> String {
    format!("/fencepost/{}/{kind}/", namespace())
}

/// How many keys of this kind there are, and the revision of the last change to one.
async fn kept(etcd: &mut Client, kind: &str) -> (usize, i64) {
    let read = etcd.get(prefix(kind), Some(GetOptions::new().with_prefix())).await;
    let read = read.expect("etcd answers");
    let last = read.kvs().iter().map(|kv| kv.mod_revision()).max();
    (read.kvs().len(), last.unwrap_or_default())
}

/// Ends the leases on which this is kept, as time does.
async fn forget(etcd: &mut Client, kind: &str) {
    let read = etcd.get(prefix(kind), Some(GetOptions::new().with_prefix())).await;
    for kv in read.expect("etcd answers").kvs() {
        // Several keys may be on one.
        let _ = etcd.lease_revoke(kv.lease()).await;
    }
    assert_eq!(kept(etcd, kind).await.0, 0);
}

#[track_caller]
fn assert_expired<T: Debug>(answer: Result<T, Error>) {
    let has_expired = matches!(&answer, Err(Error::LeaseLost { cause }) if *cause == Some(Cause::Expired));
    assert!(has_expired, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_id_that_is_used_again_after_its_release_was_forgotten_has_not_expired() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let (one, two) = (steady_replica(&cluster).await, steady_replica(&cluster).await);
    let mut etcd = etcd(&cluster).await;
    let first = take(&one, SHORT).await;
    two.release(&first.key).await.expect("it is held");
    for kind in ["end", "request"] {
        forget(&mut etcd, kind).await;
    }
    let again = take(&two, LONG).await;
    assert!(token(&again) > token(&first));
    tokio::time::sleep(LOOKED).await;
    let retried = two.acquire(nightly(LONG)).await.expect("it is its own").delivered();
    assert_eq!(token(&retried), token(&again));
    for replica in [&one, &two] {
        let forgotten = replica.release(&first.key).await;
        assert!(
            matches!(forgotten, Err(Error::LeaseLost { cause: None })),
            "{forgotten:?}"
        );
    }
    one.release(&again.key).await.expect("it is held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expiry_that_is_written_down_late_says_nothing_of_a_newer_claim_of_its_request() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let (one, two) = (steady_replica(&cluster).await, steady_replica(&cluster).await);
    let mut etcd = etcd(&cluster).await;
    let first = take(&one, SHORT).await;
    for lease in leases_of(&mut etcd, "a").await {
        etcd.lease_revoke(lease).await.expect("etcd answers");
    }
    assert_expired(two.acquire(nightly(LONG)).await);
    forget(&mut etcd, "request").await;
    let newer = take(&two, 2 * LONG).await;
    let written = kept(&mut etcd, "request").await;
    assert_eq!(written.0, 1);
    let begun = Instant::now();
    while kept(&mut etcd, "end").await.0 != 1 {
        assert!(begun.elapsed() < LONG, "the first one's end is not written down");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(kept(&mut etcd, "request").await, written);
    assert_expired(two.release(&first.key).await);
    let retried = two.acquire(nightly(LONG)).await.expect("it is its own").delivered();
    assert_eq!(token(&retried), token(&newer));
    two.release(&newer.key).await.expect("it is held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expiry_is_remembered_for_longer_than_its_lease_lived_also_of_one_that_was_renewed_elsewhere() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let (one, two) = (steady_replica(&cluster).await, steady_replica(&cluster).await);
    let mut etcd = etcd(&cluster).await;
    let held = take(&one, Duration::from_secs(10)).await;
    let request = etcd.get(prefix("request"), Some(GetOptions::new().with_prefix())).await;
    let on = request.expect("etcd answers").kvs()[0].lease();
    let mut left = async || {
        let left = etcd.lease_time_to_live(on, None).await.expect("etcd answers");
        Duration::from_secs(u64::try_from(left.ttl()).unwrap_or_default())
    };
    let before = left().await;
    assert!(
        before > Duration::from_secs(60) && before < Duration::from_secs(100),
        "{before:?}"
    );
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert!(left().await < before);
    let renewed = Instant::now();
    two.renew(&held.key, None).await.expect("it is held");
    let after = left().await;
    assert!(
        after + renewed.elapsed() + Duration::from_secs(1) >= before,
        "{after:?}"
    );
    // A longer lease takes what is remembered along.
    let renewed = Instant::now();
    two.renew(&held.key, Some(LONG)).await.expect("it is held");
    let request = etcd.get(prefix("request"), Some(GetOptions::new().with_prefix())).await;
    let on = request.expect("etcd answers").kvs()[0].lease();
    let left = etcd.lease_time_to_live(on, None).await.expect("etcd answers").ttl();
    let late = i64::try_from(renewed.elapsed().as_secs()).expect("a few");
    assert!(left + late > 60 + 25, "{left} s");
    two.release(&held.key).await.expect("it is held");
    assert!(matches!(one.acquire(nightly(SHORT)).await, Err(Error::AlreadyReleased)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_writes_the_record_of_its_request_anew_if_its_lease_has_ended() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let (one, two) = (steady_replica(&cluster).await, steady_replica(&cluster).await);
    let mut etcd = etcd(&cluster).await;
    let held = take(&one, LONG).await;
    forget(&mut etcd, "request").await;
    one.renew(&held.key, None).await.expect("it is held");
    assert_eq!(kept(&mut etcd, "request").await.0, 1);
    two.release(&held.key).await.expect("it is held");
    assert!(matches!(one.acquire(nightly(LONG)).await, Err(Error::AlreadyReleased)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ran_out_at_a_replica_that_has_gone_is_known_to_another_by_its_lease_and_by_its_token() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let (one, two) = (steady_replica(&cluster).await, steady_replica(&cluster).await);
    let ttl = Duration::from_secs(2);
    let gone = take_plain(&one, "a", ttl).await;
    one.close().await;
    // Names are used again, so its key is another one's later; and the history goes on.
    for _ in 0..20 {
        let other = take_plain(&two, "b", LONG).await;
        two.release(&other.key).await.expect("it is held");
    }
    let next = two
        .acquire(ask("a", LONG, LONG))
        .await
        .expect("it runs out")
        .delivered();
    assert_expired(two.release(&gone.key).await);
    assert_expired(two.renew(&gone.key, None).await);
    assert_expired(two.force_release(&name("a"), gone.key.token).await);
    two.release(&next.key).await.expect("it is held");
    let forged = LeaseKey {
        secret: Secret::from_bytes([1; 16]),
        ..gone.key.clone()
    };
    let unknown = two.release(&forged).await;
    assert!(matches!(unknown, Err(Error::LeaseLost { cause: None })), "{unknown:?}");
}

/// How often the token base is raised in a test: each start of a replica, and each new connection, raises it.
const RAISED: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expiry_is_known_although_the_token_base_was_raised_meanwhile() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let (one, two) = (steady_replica(&cluster).await, steady_replica(&cluster).await);
    let mut etcd = etcd(&cluster).await;
    let gone = take_plain(&one, "a", LONG).await;
    let of_grant = token_base(&mut etcd, 0).await;
    let before = token_base(&mut etcd, of_grant.1 - 1).await;
    for _ in 0..RAISED {
        // By so little that the token is above each of them.
        let raised = token_base(&mut etcd, 0).await.0 + 1;
        etcd.put(base_key(), raised.to_string(), None)
            .await
            .expect("etcd answers");
        let other = take_plain(&two, "b", LONG).await;
        two.release(&other.key).await.expect("it is held");
    }
    for lease in leases_of(&mut etcd, "a").await {
        etcd.lease_revoke(lease).await.expect("etcd answers");
    }
    assert_expired(two.release(&gone.key).await);
    assert_expired(two.renew(&gone.key, None).await);
    assert_expired(two.force_release(&name("a"), gone.key.token).await);
    let true_one = gone.key.token.get();
    for token in [true_one - 1, true_one + 1, true_one - of_grant.0 + before.0] {
        let forged = FencingToken::new(token).expect("a good token");
        let unknown = two.force_release(&name("a"), forged).await;
        assert!(matches!(unknown, Err(Error::LeaseLost { cause: None })), "{unknown:?}");
    }
}

fn base_key() -> String {
    format!("/fencepost/{}/token_base", namespace())
}

/// The token base at a revision, 0 for the present one, and the revision at which it was written.
async fn token_base(etcd: &mut Client, revision: i64) -> (u64, i64) {
    let read = etcd
        .get(base_key(), Some(GetOptions::new().with_revision(revision)))
        .await;
    let read = read.expect("etcd answers");
    let kv = read.kvs().first().expect("it was written");
    let number = kv.value_str().expect("text").parse().expect("a number");
    (number, kv.mod_revision())
}
