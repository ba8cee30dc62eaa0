//! What callers are told while etcd hangs.

use std::time::{Duration, Instant};

use fencepost::backend::etcd::settings::Settings;
use fencepost::error::Error;
use futures::future::join_all;
use tokio::time::sleep;

use crate::harness::{cluster, health, take, unready};

const TTL: Duration = Duration::from_secs(120);
/// How long a request may take.
const REQUEST: Duration = Duration::from_secs(1);
const RELEASES: usize = 24;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_at_a_store_that_hangs_are_told_so_together_and_succeed_when_it_is_back() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = unready(Settings {
        timeout: REQUEST,
        ..Settings::new(cluster.urls())
    });
    health(&locks, Duration::from_secs(20), |health| {
        *health == fencepost::backend::Health::Serving
    })
    .await;
    let mut held = Vec::new();
    for n in 0..RELEASES {
        held.push(take(&locks, &format!("l{n}"), TTL).await);
    }
    // What remembers their ends is asked for anew every second.
    sleep(Duration::from_millis(1_500)).await;
    cluster.members[0].pause();
    let begun = Instant::now();
    let told = join_all(held.iter().map(|lease| locks.release(&lease.key))).await;
    let took = begun.elapsed();
    cluster.members[0].go_on();
    println!("{RELEASES} releases were answered within {took:?}");
    assert!(
        told.iter().all(|told| matches!(told, Err(Error::Backend(_)))),
        "{told:?}"
    );
    assert!(took < REQUEST * 4, "{took:?}");
    health(&locks, Duration::from_secs(20), |health| {
        *health == fencepost::backend::Health::Serving
    })
    .await;
    for lease in &held {
        locks.release(&lease.key).await.expect("it is held, or was released");
    }
}
