//! A later release on the same namespace, which closes the base of this one, and records that cannot be read.

use std::time::Duration;

use etcd_client::{GetOptions, PutOptions};
use fencepost::backend::{BackendError, Health, PageRequest};
use fencepost::error::Error;

use crate::harness::{acquire, cluster, etcd, health, namespace, replica, take};

const TTL: Duration = Duration::from_secs(60);

// G116
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_granted_where_a_later_release_has_begun_and_the_reason_is_said() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = replica(&cluster).await;
    let held = take(&locks, "a", TTL).await;
    let base = format!("/fencepost/{}/token_base", namespace());
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_cannot_be_read_fails_its_own_lock_alone_and_lists_go_on() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = replica(&cluster).await;
    for lock in ["a", "b", "c", "d"] {
        take(&locks, lock, TTL).await;
    }
    let mut etcd = etcd(&cluster).await;
    let all = format!("/fencepost/{}/lock/", namespace());
    let read = etcd.get(all.as_str(), Some(GetOptions::new().with_prefix())).await;
    let read = read.expect("etcd answers");
    let key = read.kvs()[1].key().to_vec();
    // Of a later release: its format is 9.
    let on_lease = PutOptions::new().with_lease(read.kvs()[1].lease());
    etcd.put(key, [9, 1, 2], Some(on_lease)).await.expect("etcd answers");
    etcd.put(format!("{all}bad"), "", None).await.expect("etcd answers");
    for size in [1, 2, 10] {
        let mut page = PageRequest { after: None, size };
        let mut listed = Vec::new();
        loop {
            let listing = locks.list("", page.clone()).await.expect("the others are listed");
            assert!(listing.locks.len() <= size);
            listed.extend(listing.locks.into_iter().map(|lock| {
                assert_eq!(lock.holders, 1);
                (lock.lock.to_string(), lock.first.is_some())
            }));
            page.after = listing.next;
            if page.after.is_none() {
                break;
            }
        }
        let wanted = ["a", "b", "c", "d"].map(|lock| (lock.to_owned(), lock != "b"));
        assert_eq!(listed, wanted, "{size} a page");
    }
    let other = replica(&cluster).await;
    let refused = acquire(&other, "b", TTL, Duration::ZERO).await;
    let Err(Error::Backend(BackendError::Broken { reason })) = refused else {
        panic!("{refused:?}")
    };
    assert!(reason.contains("format 9"), "{reason}");
}
