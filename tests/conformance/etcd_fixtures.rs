//! How etcd is opened for one case: clusters that all cases share, and keys of its own for each.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost::backend::etcd::Store;
use fencepost::backend::etcd::settings::Settings;

use crate::etcd_servers::{Cluster, packaged, program};
use crate::fixture::{Fixture, Missing, Pace};

/// Real time; etcd's smallest TTL by its defaults, and its own time to find a lease dead.
const PACE: Pace = Pace {
    short: Duration::from_secs(2),
    slack: Duration::from_millis(2000),
    quiet: Duration::from_millis(400),
    virtual_time: false,
    ttl_shrinks: false,
    tells_changes: true,
};

/// The same on a node whose smallest TTL is a second.
const QUICK_PACE: Pace = Pace {
    short: Duration::from_secs(1),
    ..PACE
};

/// A node that takes half a second to choose itself.
const QUICK: &[&str] = &["--heartbeat-interval", "50", "--election-timeout", "500"];

/// One node. Nobody stands for election beside it, and its smallest TTL is 1.5 times that of an
/// election.
pub async fn one() -> Result<Fixture, Missing> {
    static CLUSTER: OnceLock<Option<Cluster>> = OnceLock::new();
    fixture(
        &CLUSTER,
        || program().map(|_| Cluster::start_with(1, QUICK)),
        QUICK_PACE,
    )
    .await
}

/// One node of the program that the machine's packages bring: an old one.
pub async fn old() -> Result<Fixture, Missing> {
    static CLUSTER: OnceLock<Option<Cluster>> = OnceLock::new();
    let start = || packaged().map(|program| Cluster::start_of(program, "http", 1, QUICK));
    fixture(&CLUSTER, start, QUICK_PACE).await
}

/// Three nodes.
pub async fn three() -> Result<Fixture, Missing> {
    static CLUSTER: OnceLock<Option<Cluster>> = OnceLock::new();
    fixture(&CLUSTER, || program().map(|_| Cluster::start(3)), PACE).await
}

async fn fixture(
    cluster: &'static OnceLock<Option<Cluster>>,
    start: fn() -> Option<Cluster>,
    pace: Pace,
) -> Result<Fixture, Missing> {
    static CASE: AtomicU32 = AtomicU32::new(0);
    let cluster = tokio::task::spawn_blocking(move || common::shared(cluster, start).as_ref());
    let Some(cluster) = cluster.await.expect("the cluster starts") else {
        return Err(Missing(
            "there is no etcd: neither Go to build one, nor a package of it".into(),
        ));
    };
    let mut settings = Settings::new(cluster.urls());
    settings.root = format!("/case{}", CASE.fetch_add(1, Ordering::Relaxed));
    // How long a busy machine may keep silent before a connection counts as lost, which a case would notice.
    settings.timeout = Duration::from_secs(9);
    settings.session_ttl = Duration::from_secs(18);
    let stores = [Store::open(settings.clone()), Store::open(settings)];
    Ok(Fixture::over_servers(stores, |store, name| store.namespace(name), pace).await)
}
