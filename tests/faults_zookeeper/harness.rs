//! Replicas of the service over an ensemble.

use std::sync::Arc;
use std::time::Duration;

use fencepost::backend::zookeeper::Store;
use fencepost::backend::zookeeper::settings::Credentials;
use fencepost::backend::{Backend, Health};
use fencepost::limits::Limits;
use fencepost::locks::Locks;
use fencepost::name::{LockName, Namespace};

use crate::clients::health;
use crate::forwarder::Forwarder;
use crate::servers::{Ensemble, found, program};

pub use crate::clients::waiters;
pub use crate::operator::{Operator, creates, deletes, end_sessions, grants_or_enqueues, sets};
pub use crate::servers::SYNC_LIMIT;
pub use crate::steps::{grant, hold, holds, lease_of, nothing_is_left, queue};
pub use fencepost::backend::zookeeper::settings::Settings;

/// How long anything may take that nothing promises.
pub const READY: Duration = Duration::from_secs(60);
/// The session timeout of all replicas: short, so that tests need not wait.
pub const SESSION: Duration = Duration::from_secs(3);
/// How long it takes at most, by the default settings, until leases are renewed again when the leader is gone or stands
/// still: followers notice that after the limit and elect; a request may have been sent just before, which fails after 3 s,
/// and a connection to the old leader fails after 2 s more.
pub const FAILOVER: Duration = SYNC_LIMIT.saturating_add(Duration::from_secs(8));
/// The path that all nodes of the replicas are under.
pub const ROOT: &str = "/fencepost/faults";

/// The servers of a store.
pub type Servers = Ensemble;

/// Where clients reach the servers.
pub fn addresses(store: &Servers) -> Vec<String> {
    store.addresses()
}

/// Where clients reach the server at this address.
pub fn at(address: &str) -> String {
    address.to_owned()
}

/// Where clients reach the server behind this.
pub fn behind(network: &Forwarder) -> Vec<String> {
    vec![network.address()]
}

/// How a namespace of servers that are reached there is configured.
pub fn config(addresses: &[String]) -> String {
    format!("backend = \"zookeeper\"\nzookeeper.servers = {addresses:?}")
}

/// The settings of a replica whose session outlives it for so long.
pub fn patient(addresses: Vec<String>, session_timeout: Duration) -> Settings {
    Settings {
        session_timeout,
        ..settings(addresses)
    }
}

/// Whether this machine can have an ensemble.
pub fn available() -> bool {
    found(program()).is_some()
}

/// An ensemble of its own, where this machine can have one.
pub fn store(servers: usize) -> Option<Servers> {
    available().then(|| Ensemble::start(servers))
}

/// The namespace of all replicas.
pub fn namespace() -> Namespace {
    Namespace::new("faults").expect("a good name")
}

/// A lock's name.
pub fn name(lock: &str) -> LockName {
    LockName::new(lock).expect("a good name")
}

/// One replica, which tries the servers in their order: it serves when this returns.
pub async fn replica(store: &Servers) -> Locks {
    replica_of(store.addresses()).await
}

/// One replica of servers that are reached there.
pub async fn replica_of(servers: Vec<String>) -> Locks {
    let locks = unready(settings(servers));
    serves(&locks).await;
    locks
}

/// The settings of the tests.
pub fn settings(servers: Vec<String>) -> Settings {
    Settings {
        session_timeout: SESSION,
        timeout: Duration::from_secs(2),
        connect_timeout: Duration::from_secs(1),
        ..Settings::new(servers)
    }
}

/// The settings of a replica for a test in which nothing fails: a store that stands still for seconds is not away to it.
pub fn steady(servers: Vec<String>) -> Settings {
    Settings {
        timeout: Duration::from_secs(15),
        ..patient(servers, READY)
    }
}

/// One replica, whatever it says of itself.
pub fn unready(settings: Settings) -> Locks {
    unready_as(settings, Credentials::default())
}

/// The same of a replica with these credentials.
pub fn unready_as(settings: Settings, credentials: Credentials) -> Locks {
    let backend = Store::open(settings, credentials).namespace(&namespace());
    Locks::new(namespace(), Limits::default(), backend)
}

/// The store below one replica: it serves when this returns.
pub async fn backend(settings: Settings) -> Arc<dyn Backend> {
    let backend = Store::open(settings, Credentials::default()).namespace(&namespace());
    let mut health = backend.health();
    let served = health.wait_for(|health| *health == Health::Serving);
    let served = tokio::time::timeout(READY, served).await;
    served.expect("it serves in time").expect("it says how it is");
    backend
}

/// Waits until a replica serves.
pub async fn serves(locks: &Locks) {
    health(locks, READY, |health| *health == Health::Serving).await;
}
