//! A row that the service did not write so.

use std::time::Duration;

use fencepost::backend::{BackendError, Health, PageRequest};
use fencepost::error::Error;

use crate::clients::{acquire, take};
use crate::harness::{durable, settings};
use crate::replicas::replica;
use crate::servers::available;

const TTL: Duration = Duration::from_secs(60);

// G98
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_row_hides_no_other_lock_from_lists_and_the_store_serves_on() {
    common::skip_unless!(available());
    let server = durable();
    let locks = replica(settings(&server)).await;
    for name in ["a", "damaged", "z"] {
        take(&locks, name, TTL).await;
    }
    server.sql("UPDATE fencepost_lock SET version = 0 WHERE id LIKE '%damaged'");
    let mut health = locks.health();
    health.mark_unchanged();
    let page = PageRequest { size: 10, after: None };
    let listed = locks.list("", page).await.expect("it is listed");
    let names: Vec<_> = listed.locks.iter().map(|lock| lock.lock.as_str()).collect();
    assert_eq!(names, ["a", "z"]);
    // Another server reads the row.
    let other = replica(settings(&server)).await;
    let (refused, granted) = tokio::join!(
        acquire(&other, "damaged", TTL, Duration::ZERO),
        acquire(&other, "b", TTL, Duration::ZERO),
    );
    granted.expect("it is free");
    let is_refused = matches!(
        refused,
        Err(Error::Backend(
            BackendError::Broken { .. } | BackendError::NotSent { .. }
        ))
    );
    assert!(is_refused, "{refused:?}");
    for locks in [&locks, &other] {
        assert_eq!(*locks.health().borrow(), Health::Serving);
    }
    assert!(!health.has_changed().expect("it is open"), "it served all the time");
}
