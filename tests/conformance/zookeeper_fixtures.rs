//! How ZooKeeper is opened for one case: ensembles that all cases share, and a root of its own for each.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost::backend::zookeeper::Store;
use fencepost::backend::zookeeper::settings::{Credentials, Settings};

use crate::fixture::{Fixture, Missing, Pace};
use crate::zookeeper_servers::{Ensemble, Options, Program, packaged, program};

/// Real time: the replica that granted a lease ends it as soon as it has seen it for its TTL.
const PACE: Pace = Pace {
    short: Duration::from_secs(1),
    slack: Duration::from_millis(500),
    quiet: Duration::from_millis(300),
    virtual_time: false,
    ttl_shrinks: true,
    tells_changes: true,
};

/// How long a server of a busy machine may keep silent before its connection counts as lost, which a case would notice.
const PATIENCE: Duration = Duration::from_secs(9);

/// One server.
pub async fn one() -> Result<Fixture, Missing> {
    static ENSEMBLE: OnceLock<Ensemble> = OnceLock::new();
    fixture(&ENSEMBLE, program(), 1).await
}

/// One server of the program that the machine's packages bring: an old one.
pub async fn old() -> Result<Fixture, Missing> {
    static ENSEMBLE: OnceLock<Ensemble> = OnceLock::new();
    fixture(&ENSEMBLE, packaged(), 1).await
}

/// Three servers; the two replicas are connected to different ones.
pub async fn three() -> Result<Fixture, Missing> {
    static ENSEMBLE: OnceLock<Ensemble> = OnceLock::new();
    fixture(&ENSEMBLE, program(), 3).await
}

async fn fixture(
    place: &'static OnceLock<Ensemble>,
    program: Option<&'static Program>,
    servers: usize,
) -> Result<Fixture, Missing> {
    static CASE: AtomicU32 = AtomicU32::new(0);
    let program = program.ok_or_else(|| Missing("there is no ZooKeeper: neither Maven nor a package of it".into()))?;
    let start = move || common::shared(place, move || Ensemble::start_of(program, servers, &Options::default()));
    let ensemble = tokio::task::spawn_blocking(start).await.expect("the ensemble starts");
    let root = format!("/case{}", CASE.fetch_add(1, Ordering::Relaxed));
    let stores = [0, 1].map(|first| {
        let mut addresses = ensemble.addresses();
        addresses.rotate_left(first % servers);
        let settings = Settings {
            root: root.clone(),
            timeout: PATIENCE,
            session_timeout: 2 * PATIENCE,
            ..Settings::new(addresses)
        };
        Store::open(settings, Credentials::default())
    });
    Ok(Fixture::over_servers(stores, |store, name| store.namespace(name), PACE).await)
}
