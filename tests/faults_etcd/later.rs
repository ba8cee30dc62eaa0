//! A later release on the same namespace, which closes the base of this one.

use std::time::Duration;

use fencepost::backend::Health;
use fencepost::error::Error;

use crate::harness::{acquire, cluster, etcd, health, namespace, replica, take};

const TTL: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_granted_where_a_later_release_has_begun_and_the_reason_is_said() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = replica(&cluster).await;
    let held = take(&locks, "a", TTL).await;
    let base = format!("/fencepost/{}/token_base_3", namespace());
    let closed = etcd(&cluster).await.put(base, "018446744073709551615", None).await;
    closed.expect("etcd answers");
    let refused = acquire(&locks, "b", TTL, Duration::ZERO).await;
    assert!(matches!(refused, Err(Error::Backend(_))), "{refused:?}");
    let is_said =
        |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains("later release"));
    health(&locks, Duration::from_secs(10), is_said).await;
    // What holds goes on, and can be given back.
    locks.renew(&held.key, None).await.expect("it is held");
    locks.release(&held.key).await.expect("it is held");
}
