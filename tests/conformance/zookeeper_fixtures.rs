//! How ZooKeeper is opened for one case: ensembles that all cases share, and a root of its own for each.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost::backend::zookeeper::Store;
use fencepost::backend::zookeeper::settings::{Credentials, Settings};
use fencepost::backend::{Backend, Health};

use crate::fixture::{ELSEWHERE, Fixture, Missing, NAMESPACE, Pace, namespace};
use crate::zookeeper_servers::{Ensemble, Options, Program, packaged, program};

/// Real time: the replica that granted a lease ends it as soon as it has seen it for its TTL.
const PACE: Pace = Pace {
    short: Duration::from_secs(1),
    slack: Duration::from_millis(500),
    quiet: Duration::from_millis(300),
    virtual_time: false,
    ttl_shrinks: true,
};

/// How long a server of a busy machine may keep silent before its connection counts as lost, which a case would notice.
const PATIENCE: Duration = Duration::from_secs(9);

/// How long a replica may take until it serves.
const READY: Duration = Duration::from_secs(60);

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
    let start = move || Ensemble::shared(place, move || Ensemble::start_of(program, servers, &Options::default()));
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
    let names = [namespace(NAMESPACE), namespace(ELSEWHERE)];
    let (first, second) = (stores[0].namespace(&names[0]), stores[1].namespace(&names[0]));
    let elsewhere = stores[0].namespace(&names[1]);
    for replica in [&first, &second, &elsewhere] {
        serves(&**replica).await;
    }
    Ok(Fixture {
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
    let served = tokio::time::timeout(READY, served).await;
    served.expect("it serves in time").expect("it says how it is");
}
