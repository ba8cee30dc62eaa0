//! Clients of two servers that want one lock all the time, while the database fails: whoever is sure to hold is never
//! refused, tokens rise, and nothing is left behind.

use std::time::{Duration, Instant};

use fencepost::backend::postgres::settings::{Replication, Settings};
use fencepost::locks::Locks;

use crate::crowd::{Crowd, FEW};
use crate::harness::{READY, acquire, nothing_is_left, replica, session, settings};
use crate::promotion::{wait_for, with};
use crate::servers::{Postgres, available};
use crate::small_disk::SmallDisk;

const LONG: bool = cfg!(feature = "soak");
/// How often a fault is repeated.
const TIMES: u32 = if LONG { 30 } else { 2 };
/// How long the clients are left alone before a fault.
pub const CALM: Duration = Duration::from_secs(1);

/// Two servers, and the clients of both.
pub struct Load {
    replicas: [Locks; 2],
    crowd: Crowd,
}

impl Load {
    /// Begins one that lasts at least so long.
    pub async fn begin(settings: &Settings, time: Duration) -> Self {
        let replicas = [replica(settings.clone()).await, replica(settings.clone()).await];
        let crowd = Crowd::begin(&replicas, 8, time);
        Self { replicas, crowd }
    }

    /// Waits for its end, and judges. Both servers grant again then. Says for how long nobody was granted the lock.
    pub async fn ends_well(self, server: &Postgres) -> Duration {
        let (grants, gap) = self.crowd.judge().await;
        assert!(grants > FEW, "only {grants} grants");
        for locks in &self.replicas {
            let (end, ttl) = (Instant::now() + READY, Duration::from_secs(3));
            let lease = loop {
                match acquire(locks, "hot", ttl, READY).await {
                    Ok(lease) => break lease,
                    Err(error) => assert!(Instant::now() < end, "it is never granted again: {error:?}"),
                }
            };
            locks.release(&lease.key).await.expect("it is held");
        }
        nothing_is_left(&self.replicas[0], server).await;
        gap
    }
}

// G140
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_the_database_crashes() {
    if !available() {
        return;
    }
    let mut server = Postgres::started(&[]);
    let load = Load::begin(&settings(&server), 2 * CALM * (TIMES + 1)).await;
    for _ in 0..TIMES {
        tokio::time::sleep(CALM).await;
        server.restart();
    }
    load.ends_well(&server).await;
}

// G141
/// Longer than a statement may take, and than a lease lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_the_database_stands_still() {
    if !available() {
        return;
    }
    let server = Postgres::started(&[]);
    let pause = Duration::from_secs(4);
    let load = Load::begin(&settings(&server), (CALM + pause) * TIMES).await;
    for _ in 0..TIMES {
        tokio::time::sleep(CALM).await;
        server.pause();
        tokio::time::sleep(pause).await;
        server.resume();
    }
    load.ends_well(&server).await;
}

// G136
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_a_synchronous_standby_is_promoted() {
    if !available() {
        return;
    }
    let mut primary = Postgres::started(&[]);
    let standby = primary.standby("one");
    wait_for(&primary, "one");
    let settings = with(Replication::Synchronous, &[&primary, &standby]);
    let load = Load::begin(&settings, 6 * CALM).await;
    tokio::time::sleep(2 * CALM).await;
    primary.crash();
    standby.promote();
    wait_for(&standby, "*");
    let _another = standby.standby("two");
    load.ends_well(&standby).await;
}

// G137
/// One that lacks the last grants: they are over before the first new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_an_asynchronous_standby_that_lags_is_promoted() {
    if !available() {
        return;
    }
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
    if !available() {
        return;
    }
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

// G129
/// Steps become slow, and stay correct.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_an_old_snapshot_is_open() {
    if !available() {
        return;
    }
    let server = Postgres::started(&[]);
    let load = Load::begin(&settings(&server), 4 * CALM * TIMES).await;
    let mut other = session(&server).await;
    let snapshot = other
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead);
    let snapshot = snapshot.start().await.expect("it begins");
    let count = "SELECT count(*), count(version) FROM fencepost_lock";
    let before = snapshot.query_one(count, &[]).await.expect("it reads");
    tokio::time::sleep(2 * CALM * TIMES).await;
    let after = snapshot.query_one(count, &[]).await.expect("it reads");
    assert_eq!(before.get::<_, i64>(0), after.get::<_, i64>(0));
    drop(snapshot);
    load.ends_well(&server).await;
}
