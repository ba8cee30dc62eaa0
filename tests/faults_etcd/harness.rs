//! Replicas of the service over an etcd, what their clients do, and what must be true of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::Client;
use fencepost::backend::etcd::Store;
use fencepost::backend::{Backend, Health};
use fencepost::limits::Limits;
use fencepost::locks::Locks;
use fencepost::name::Namespace;

use crate::clients;
use crate::forwarder::Forwarder;
use crate::servers::Cluster;

pub use crate::operator::{Operator, creates, deletes, end_sessions, grants_or_enqueues, sets};
pub use crate::servers::available;
pub use crate::steps::{grant, hold, holds, lease_of, nothing_is_left, queue};

pub use common::clients::{acquire, ask, health, name, take, token, waiters};
pub use fencepost::backend::etcd::settings::Settings;

/// How long anything may take that nothing promises.
pub const READY: Duration = Duration::from_secs(60);
/// How long the session of a replica outlives it.
pub const SESSION: Duration = Duration::from_secs(5);
/// How long a leader that stands still goes unnoticed.
pub const SYNC_LIMIT: Duration = Duration::from_secs(2);
/// How long it takes at most, by the default settings, until leases are renewed again when the leader is gone or stands
/// still: a request that it left behind fails after 3 s, a connection to it after 2 s more, and another member is connected
/// then. An election, which takes 2 s at most, has ended before.
pub const FAILOVER: Duration = Duration::from_secs(10);
/// The path that all keys of the replicas are under.
pub const ROOT: &str = "/fencepost/faults";

/// The servers of a store.
pub type Servers = Cluster;

/// A cluster of so many members, where this machine can have one.
pub fn store(members: usize) -> Option<Servers> {
    cluster(members, &[])
}

/// Where clients reach the members.
pub fn addresses(store: &Servers) -> Vec<String> {
    store.urls()
}

/// Where clients reach the member at this address.
pub fn at(address: &str) -> String {
    format!("http://{address}")
}

/// Where clients reach the member behind this.
pub fn behind(network: &Forwarder) -> Vec<String> {
    vec![at(&network.address())]
}

/// How a namespace of members that are reached there is configured.
pub fn config(addresses: &[String]) -> String {
    format!("backend = \"etcd\"\netcd.endpoints = {addresses:?}")
}

/// The settings of the tests.
pub fn settings(addresses: Vec<String>) -> Settings {
    Settings {
        session_ttl: SESSION,
        timeout: Duration::from_secs(2),
        ..Settings::new(addresses)
    }
}

/// The same of a replica whose session outlives it for so long.
pub fn patient(addresses: Vec<String>, session_ttl: Duration) -> Settings {
    Settings {
        session_ttl,
        ..settings(addresses)
    }
}

/// The store below one replica: it serves when this returns.
pub async fn backend(settings: Settings) -> Arc<dyn Backend> {
    let backend = Store::open(settings).namespace(&namespace());
    let mut health = backend.health();
    let served = health.wait_for(|health| *health == Health::Serving);
    let served = tokio::time::timeout(READY, served).await;
    served.expect("it serves in time").expect("it says how it is");
    backend
}

/// Waits until a replica serves.
pub async fn serves(locks: &Locks) {
    clients::serves(locks, READY).await;
}

/// A cluster of its own, where this machine can have one.
pub fn cluster(members: usize, more: &[&str]) -> Option<Cluster> {
    cluster_over("http", members, more)
}

/// The same, reached over `http` or `https`.
pub fn cluster_over(scheme: &'static str, members: usize, more: &[&str]) -> Option<Cluster> {
    // Here, where it may block: members end with the thread that started them.
    available().then(|| Cluster::start_over(scheme, members, more))
}

/// The namespace of all replicas.
pub fn namespace() -> Namespace {
    Namespace::new("faults").expect("a good name")
}

/// One replica: it serves when this returns.
pub async fn replica(cluster: &Cluster) -> Locks {
    replica_of(cluster.urls()).await
}

/// One replica of a cluster that is reached there.
pub async fn replica_of(urls: Vec<String>) -> Locks {
    let locks = unready(settings(urls));
    serves(&locks).await;
    locks
}

/// One replica for a test in which nothing fails: a store that stands still for seconds is not away to it.
pub async fn steady_replica(cluster: &Cluster) -> Locks {
    let locks = unready(steady(cluster.urls()));
    serves(&locks).await;
    locks
}

/// The settings of such a replica.
pub fn steady(urls: Vec<String>) -> Settings {
    Settings {
        timeout: Duration::from_secs(15),
        session_ttl: Duration::from_secs(60),
        ..Settings::new(urls)
    }
}

/// One replica, whatever it says of itself.
pub fn unready(settings: Settings) -> Locks {
    let backend = Store::open(settings).namespace(&namespace());
    Locks::new(namespace(), Limits::default(), backend)
}

/// A client of etcd itself.
pub async fn etcd(cluster: &Cluster) -> Client {
    Client::connect([cluster.servers[0].url()], None)
        .await
        .expect("etcd answers")
}

/// What etcd counts of itself, a line each.
fn figures(cluster: &Cluster) -> String {
    cluster.servers[0].figures().expect("etcd answers")
}

/// How many bytes etcd has sent to its clients.
pub fn sent_bytes(cluster: &Cluster) -> f64 {
    let text = figures(cluster);
    let mut lines = text.lines();
    let line = lines.find(|line| line.starts_with("etcd_network_client_grpc_sent_bytes_total"));
    let figure = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    figure.expect("etcd counts what it sends")
}

/// A figure without labels.
pub fn figure(cluster: &Cluster, name: &str) -> usize {
    let text = figures(cluster);
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let figure = line.and_then(|figure| figure.parse::<f64>().ok());
    figure.expect("etcd counts it") as usize
}

/// How many reads the cleanup of a replica may have sent since then: ten a second.
pub fn cleanup_since(begun: Instant) -> usize {
    let tenths = begun.elapsed().as_millis() / 100;
    usize::try_from(tenths).expect("a short test") * 11 / 10 + 5
}

/// How many calls of this kind etcd has answered.
pub fn calls(cluster: &Cluster, method: &str) -> usize {
    let text = figures(cluster);
    let method = format!("grpc_method=\"{method}\"");
    let counts = text
        .lines()
        .filter(|line| line.starts_with("grpc_server_handled_total{") && line.contains(&method));
    let counts: Vec<usize> = counts
        .map(|line| {
            line.rsplit(' ')
                .next()
                .and_then(|count| count.parse().ok())
                .expect("a count")
        })
        .collect();
    assert!(!counts.is_empty(), "etcd does not count {method}");
    counts.iter().sum()
}
