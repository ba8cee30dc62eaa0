//! What is remembered of leases that have ended.

use std::fmt::Debug;
use std::time::Duration;

use fencepost::claim::Cause;
use fencepost::error::Error;
use fencepost::name::{LeaseKey, Secret};

use crate::harness::{ask, cluster, name, steady_replica, take};

const LONG: Duration = Duration::from_secs(30);

#[track_caller]
fn assert_expired<T: Debug>(answer: Result<T, Error>) {
    let has_expired = matches!(&answer, Err(Error::LeaseLost { cause }) if *cause == Some(Cause::Expired));
    assert!(has_expired, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ran_out_at_a_replica_that_has_gone_is_known_to_another_by_its_lease_and_by_its_token() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let (one, two) = (steady_replica(&cluster).await, steady_replica(&cluster).await);
    let ttl = Duration::from_secs(2);
    let gone = take(&one, "a", ttl).await;
    one.close().await;
    // Names are used again, so its key is another one's later; and the history goes on.
    for _ in 0..20 {
        let other = take(&two, "b", LONG).await;
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
