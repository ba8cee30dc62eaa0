//! How etcd is opened for one case: clusters that all cases share, and keys of its own for each.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost::backend::etcd::Store;
use fencepost::backend::etcd::settings::Settings;
use fencepost::backend::{Backend, Health};

use crate::bed::{Bed, ELSEWHERE, Missing, NAMESPACE, Pace, namespace};
use crate::etcd_servers::{Cluster, program};

/// Real time; etcd's smallest TTL, and its own time to find a lease dead.
const PACE: Pace = Pace {
    short: Duration::from_secs(2),
    slack: Duration::from_millis(2000),
    quiet: Duration::from_millis(400),
    virtual_time: false,
    ttl_shrinks: false,
};

/// One node.
pub async fn one() -> Result<Bed, Missing> {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    bed(&CLUSTER, 1).await
}

/// Three nodes.
pub async fn three() -> Result<Bed, Missing> {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    bed(&CLUSTER, 3).await
}

async fn bed(cluster: &'static OnceLock<Cluster>, members: usize) -> Result<Bed, Missing> {
    static CASE: AtomicU32 = AtomicU32::new(0);
    let cluster = tokio::task::spawn_blocking(move || program().map(|_| Cluster::shared(cluster, members)));
    let Some(cluster) = cluster.await.expect("the cluster starts") else {
        return Err(Missing("there is neither Go nor etcd".into()));
    };
    let mut settings = Settings::new(cluster.urls());
    settings.root = format!("/case{}", CASE.fetch_add(1, Ordering::Relaxed));
    let stores = [Store::open(settings.clone()), Store::open(settings)];
    let names = [namespace(NAMESPACE), namespace(ELSEWHERE)];
    let (first, second) = (stores[0].namespace(&names[0]), stores[1].namespace(&names[0]));
    let elsewhere = stores[0].namespace(&names[1]);
    for replica in [&first, &second, &elsewhere] {
        serves(&**replica).await;
    }
    Ok(Bed {
        first,
        second,
        elsewhere,
        pace: PACE,
        _keep: Box::new(stores),
    })
}

async fn serves(replica: &dyn Backend) {
    let mut health = replica.health();
    let served = health.wait_for(|health| *health == Health::Serving);
    let served = tokio::time::timeout(Duration::from_secs(20), served).await;
    served.expect("it serves in time").expect("it says how it is");
}
