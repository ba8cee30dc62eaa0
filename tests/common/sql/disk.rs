//! A full disk: the database goes on, and refuses what needs more.

use std::time::Duration;

use fencepost::backend::BackendError;
use fencepost::error::Error;

use crate::clients::{acquire, take, token};
use crate::harness::{DISK_IS_FULL, on_small_disk, settings};
use crate::record_steps::READY;
use crate::replicas::{nothing_is_left, replica};
use crate::servers::available;

const TTL: Duration = Duration::from_secs(60);

// G141
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_grants_until_there_is_room() {
    common::skip_unless!(available());
    let Some((disk, server, _log)) = on_small_disk() else {
        return println!("skipped: this user may not mount a file system");
    };
    let locks = replica(settings(&server)).await;
    let mut kept = vec![take(&locks, "first", TTL).await];
    disk.fill();
    let refused = loop {
        let name = format!("lock {}", kept.len());
        match acquire(&locks, &name, TTL, Duration::ZERO).await {
            Ok(lease) => kept.push(lease),
            Err(error) => break error,
        }
        assert!(kept.len() < 20_000, "the disk is never full");
    };
    let Error::Backend(BackendError::NotSent { reason }) = &refused else {
        panic!("its effect is known: {refused:?}");
    };
    assert!(reason.contains(DISK_IS_FULL), "{reason}");
    disk.free();
    kept.push(acquire(&locks, "last", TTL, READY).await.expect("there is room"));
    assert!(kept.is_sorted_by_key(token), "a token fell");
    for lease in &kept {
        locks.renew(&lease.key, None).await.expect("it is held");
        locks.release(&lease.key).await.expect("it is held");
    }
    nothing_is_left(&locks, &server).await;
}
