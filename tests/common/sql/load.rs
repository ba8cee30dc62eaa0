//! Clients of two servers that want one lock all the time, while the database fails: whoever is sure to hold is never
//! refused, tokens rise, and nothing is left behind.

use std::time::Duration;

use crate::crowd;
use crate::harness::{Server, Settings, count, durable, settings, snapshot};
use crate::replicas::{no_part_is_left, replica};
use crate::servers::available;

const LONG: bool = cfg!(feature = "soak");
/// How often a fault is repeated.
const TIMES: u32 = if LONG { 30 } else { 2 };
/// How long the clients are left alone before a fault.
pub const CALM: Duration = Duration::from_secs(1);

/// The clients of two servers.
pub struct Load(crowd::Load);

impl Load {
    /// Begins one that lasts at least so long.
    pub async fn begin(settings: &Settings, time: Duration) -> Self {
        let replicas = [replica(settings.clone()).await, replica(settings.clone()).await];
        Self(crowd::Load::begin(replicas, time))
    }

    /// Waits for its end, and judges. Says for how long nobody was granted the lock.
    pub async fn ends_well(self, server: &Server) -> Duration {
        let gap = self.0.ends_well().await;
        no_part_is_left(server);
        gap
    }
}

// G1
/// Steps become slow, and stay correct.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_an_old_snapshot_is_open() {
    common::skip_unless!(available());
    let server = durable();
    let load = Load::begin(&settings(&server), 4 * CALM * TIMES).await;
    let mut snapshot = snapshot(&server).await;
    let before = count(&mut snapshot).await;
    tokio::time::sleep(2 * CALM * TIMES).await;
    assert_eq!(count(&mut snapshot).await, before);
    drop(snapshot);
    load.ends_well(&server).await;
}
