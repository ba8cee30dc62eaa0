//! Clients of two servers that want one lock all the time, while the database fails: whoever is sure to hold is never
//! refused, tokens rise, and nothing is left behind.

use std::time::{Duration, Instant};

use fencepost::locks::Locks;

use crate::clients::acquire;
use crate::crowd::{Crowd, FEW};
use crate::harness::{Server, Settings, count, durable, settings, snapshot};
use crate::record_steps::READY;
use crate::replicas::{nothing_is_left, replica};
use crate::servers::available;

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
    pub async fn ends_well(self, server: &Server) -> Duration {
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
    let mut server = durable();
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
    let server = durable();
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

// G129
/// Steps become slow, and stay correct.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_an_old_snapshot_is_open() {
    if !available() {
        return;
    }
    let server = durable();
    let load = Load::begin(&settings(&server), 4 * CALM * TIMES).await;
    let mut snapshot = snapshot(&server).await;
    let before = count(&mut snapshot).await;
    tokio::time::sleep(2 * CALM * TIMES).await;
    assert_eq!(count(&mut snapshot).await, before);
    drop(snapshot);
    load.ends_well(&server).await;
}
