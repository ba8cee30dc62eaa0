//! A full disk.

use std::time::Duration;

use fencepost::backend::BackendError;
use fencepost::error::Error;

use crate::clients::{acquire, take, token};
use crate::harness::settings;
use crate::replicas::{nothing_is_left, replica};
use crate::servers::{Postgres, available, folder};
use crate::small_disk::SmallDisk;

const TTL: Duration = Duration::from_secs(60);

// G141
/// The log of the database has room, as on a disk of its own: it goes on, and refuses what needs more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_grants_until_there_is_room() {
    if !available() {
        return;
    }
    let Some(disk) = SmallDisk::mount("128m") else {
        return println!("skipped: this user may not mount a file system");
    };
    let (log, mut server) = (folder(), Postgres::started_in(disk.path(), &[]));
    server.stop();
    server.move_log_to(log.path());
    server.start();
    let locks = replica(settings(&server)).await;
    let mut kept = vec![take(&locks, "first", TTL).await];
    disk.fill();
    let refused = loop {
        let name = format!("lock {}", kept.len());
        match acquire(&locks, &name, TTL, Duration::ZERO).await {
            Ok(lease) => kept.push(lease),
            Err(error) => break error,
        }
        assert!(kept.len() < 10_000, "the disk is never full");
    };
    let Error::Backend(BackendError::NotSent { reason }) = &refused else {
        panic!("its effect is known: {refused:?}");
    };
    assert!(reason.contains("No space left on device"), "{reason}");
    disk.free();
    kept.push(take(&locks, "last", TTL).await);
    assert!(kept.is_sorted_by_key(token), "a token fell");
    for lease in &kept {
        locks.renew(&lease.key, None).await.expect("it is held");
        locks.release(&lease.key).await.expect("it is held");
    }
    nothing_is_left(&locks, &server).await;
}
