//! The load while a standby is promoted, and while the disk of the log is full.

use std::time::Duration;

use fencepost::backend::postgres::settings::{Replication, Settings};

use crate::harness::{session, settings};
use crate::load::{CALM, Load};
use crate::servers::{Postgres, available};
use crate::small_disk::SmallDisk;
use crate::standbys::{wait_for, with, with_standby};

// G136
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_a_synchronous_standby_is_promoted() {
    common::skip_unless!(available());
    let (mut primary, standby) = with_standby();
    let settings = Settings {
        longest_ttl: Duration::from_secs(20),
        ..with(Replication::Synchronous, &[&primary, &standby])
    };
    let load = Load::begin(&settings, 6 * CALM).await;
    tokio::time::sleep(2 * CALM).await;
    primary.crash();
    standby.promote();
    wait_for(&standby, "*");
    let _another = standby.standby("two");
    let gap = load.ends_well(&standby).await;
    assert!(gap < settings.longest_ttl, "{gap:?}");
}

// G137
/// One that lacks the last grants: they are over before the first new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_an_asynchronous_standby_that_lags_is_promoted() {
    common::skip_unless!(available());
    let mut primary = Postgres::started(&[]);
    let standby = primary.standby("one");
    let settings = Settings {
        longest_ttl: Duration::from_secs(4),
        ..with(Replication::Asynchronous, &[&primary, &standby])
    };
    let load = Load::begin(&settings, 9 * CALM).await;
    tokio::time::sleep(CALM).await;
    standby.pause();
    tokio::time::sleep(CALM).await;
    primary.crash();
    standby.resume();
    standby.promote();
    let gap = load.ends_well(&standby).await;
    assert!(gap >= settings.longest_ttl, "{gap:?}");
}

// G141
/// The log of the database has no room either: it ends, and its supervisor starts it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_the_disk_is_full() {
    common::skip_unless!(available());
    let Some(disk) = SmallDisk::mount("128m") else {
        return println!("skipped: this user may not mount a file system");
    };
    let little = [("wal_keep_size", "0"), ("max_wal_size", "4MB"), ("min_wal_size", "2MB")];
    let mut server = Postgres::started_in(disk.path(), &little);
    let load = Load::begin(&settings(&server), 8 * CALM).await;
    tokio::time::sleep(CALM).await;
    let other = session(&server).await;
    disk.fill();
    let write = "SELECT pg_logical_emit_message(true, '', repeat('x', 100000))";
    while other.batch_execute(write).await.is_ok() {}
    tokio::time::sleep(CALM).await;
    disk.free();
    server.supervise();
    load.ends_well(&server).await;
}
