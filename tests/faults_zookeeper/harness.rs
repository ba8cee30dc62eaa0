//! Replicas of the service over an ensemble.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::backend::zookeeper::Store;
use fencepost::backend::zookeeper::settings::{Credentials, Settings};
use fencepost::backend::{AcquireOutcome, Backend, Health};
use fencepost::limits::Limits;
use fencepost::locks::Locks;
use fencepost::name::{LockName, Namespace};

use crate::clients::health;
use crate::raw::Connection;
use crate::servers::{Ensemble, found, program};

/// How long anything may take that nothing promises.
pub const READY: Duration = Duration::from_secs(60);
/// The session timeout of all replicas: short, so that tests need not wait.
pub const SESSION: Duration = Duration::from_secs(3);
/// The path that all nodes of the replicas are under.
pub const ROOT: &str = "/fencepost/faults";

/// An ensemble of its own, where this machine can have one.
pub fn ensemble(servers: usize) -> Option<Ensemble> {
    found(program()).map(|_| Ensemble::start(servers))
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
pub async fn replica(ensemble: &Ensemble) -> Locks {
    replica_of(ensemble.addresses()).await
}

/// One replica of servers that are reached there.
pub async fn replica_of(servers: Vec<String>) -> Locks {
    let locks = unready(settings(servers), Credentials::default());
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

/// One replica, whatever it says of itself.
pub fn unready(settings: Settings, credentials: Credentials) -> Locks {
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

/// Whether a claim holds; it waits otherwise.
#[track_caller]
pub fn holds(outcome: &AcquireOutcome) -> bool {
    match outcome {
        AcquireOutcome::Held(_) => true,
        AcquireOutcome::Waiting(_) => false,
        other => panic!("it neither holds nor waits: {other:?}"),
    }
}

/// Waits until a replica serves.
pub async fn serves(locks: &Locks) {
    health(locks, READY, |health| *health == Health::Serving).await;
}

/// Waits until so many wait for a lock.
pub async fn waiters(locks: &Locks, lock: &str, wanted: usize) {
    let mut found = 0;
    let end = Instant::now() + READY;
    while Instant::now() < end {
        found = locks
            .inspect(&name(lock), 1)
            .await
            .map_or(0, |state| state.waiter_count);
        if found == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not in time: {wanted} waiters for {lock}, there are {found}");
}

/// The path of a lock's node.
pub fn lock_path(connection: &mut Connection, lock: &str) -> String {
    let locks = format!("{ROOT}/l");
    for bucket in connection.children(&locks).expect("the buckets") {
        let path = format!("{locks}/{bucket}/{lock}");
        if connection.children(&path).is_ok() {
            return path;
        }
    }
    panic!("no node of {lock}");
}

/// The children of all locks, as `<lock>/<child>`: who holds, and who waits.
pub fn claims(connection: &mut Connection) -> Vec<String> {
    let locks = format!("{ROOT}/l");
    let mut found = Vec::new();
    for bucket in connection.children(&locks).expect("the buckets") {
        let bucket = format!("{locks}/{bucket}");
        for lock in connection.children(&bucket).unwrap_or_default() {
            let children = connection.children(&format!("{bucket}/{lock}")).unwrap_or_default();
            found.extend(children.into_iter().map(|child| format!("{lock}/{child}")));
        }
    }
    found
}

/// Waits until no claim is left of any lock.
pub async fn nothing_is_left(address: &str) {
    let mut left = Vec::new();
    let end = Instant::now() + READY;
    while Instant::now() < end {
        left = claims(&mut Connection::open(address));
        if left.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("claims are left: {left:?}");
}

/// The names of the records of requests, as paths.
pub fn records(operator: &mut Connection) -> Vec<String> {
    let all = format!("{ROOT}/c");
    let buckets = operator.children(&all).expect("the buckets");
    let of = |bucket: String| {
        let records = operator.children(&format!("{all}/{bucket}")).expect("the records");
        records
            .into_iter()
            .map(move |record| format!("{ROOT}/c/{bucket}/{record}"))
    };
    buckets.into_iter().flat_map(of).collect()
}
