//! Replicas of the service over an etcd, what their clients do, and what must be true of it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{Client, GetOptions};
use fencepost::backend::etcd::Store;
use fencepost::backend::etcd::settings::Settings;
use fencepost::error::Error;
use fencepost::limits::Limits;
use fencepost::locks::Locks;
use fencepost::name::Namespace;
use tokio_util::task::AbortOnDropHandle;

use crate::servers::{Cluster, available};

pub use common::clients::{acquire, ask, health, name, rides_out, serves, take, token, waits_and_watches_end};

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
    let locks = unready(Settings::new(urls));
    serves(&locks, Duration::from_secs(20)).await;
    locks
}

/// One replica for a test in which nothing fails: a store that stands still for seconds is not away to it.
pub async fn steady_replica(cluster: &Cluster) -> Locks {
    steady_replica_of(cluster.urls()).await
}

/// The same of a cluster that is reached there.
pub async fn steady_replica_of(urls: Vec<String>) -> Locks {
    let locks = unready(steady(urls));
    serves(&locks, Duration::from_secs(20)).await;
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

/// What etcd counts of itself, a line each. (HTTP/1.0, or the answer would come in chunks.)
fn figures(cluster: &Cluster) -> String {
    let address = cluster.servers[0].url().replace("http://", "");
    let mut stream = TcpStream::connect(&address).expect("etcd answers");
    let request = "GET /metrics HTTP/1.0\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("etcd reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("etcd answers");
    text
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

/// The etcd leases of the holders of a lock.
pub async fn leases_of(etcd: &mut Client, lock: &str) -> Vec<i64> {
    let holders = format!("/fencepost/{}/lock/{lock}\th/", namespace());
    let read = etcd.get(holders, Some(GetOptions::new().with_prefix())).await;
    read.expect("etcd answers").kvs().iter().map(|kv| kv.lease()).collect()
}

/// Waits until so many wait for a lock.
pub async fn waiters(locks: &Locks, lock: &str, wanted: usize) {
    let all_wait = async {
        while locks.inspect(&name(lock), 1).await.expect("etcd answers").waiter_count != wanted {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), all_wait).await;
    waited.unwrap_or_else(|_| panic!("not in time: {wanted} waiters for {lock}"));
}

/// The time in which a client could be sure that it held a lock.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    pub token: u64,
    pub from: Instant,
    /// When it sent its release, or when its lease could have ended by its own clock.
    pub until: Instant,
}

/// Acquires and releases until `until`, passing over a store that is away; what it held.
pub async fn cycle(locks: Locks, lock: String, until: Instant) -> Vec<Held> {
    let ttl = Duration::from_secs(3);
    let mut held = Vec::new();
    while Instant::now() < until {
        let sent = Instant::now();
        match acquire(&locks, &lock, ttl, Duration::from_secs(10)).await {
            Ok(lease) => {
                let from = Instant::now();
                tokio::time::sleep(Duration::from_millis(3)).await;
                held.push(Held {
                    token: token(&lease),
                    from,
                    until: Instant::now().min(sent + lease.waited + ttl),
                });
                // A release of unknown outcome is repeated; one that was lost ends by its TTL.
                for _ in 0..20 {
                    if !matches!(locks.release(&lease.key).await, Err(Error::Backend(_))) {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            Err(Error::Backend(_) | Error::WaitTimeout { .. }) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    held
}

/// The clients of several replicas, which want one lock all the time.
pub struct Crowd {
    clients: Vec<tokio::task::JoinHandle<Vec<Held>>>,
    until: Instant,
}

/// What a crowd did.
#[derive(Debug)]
pub struct CrowdResult {
    /// When somebody was granted the lock, and when it was over.
    times: Vec<Instant>,
}

impl Crowd {
    /// Lets them begin.
    pub fn begin(replicas: &[Locks], clients: usize, time: Duration) -> Self {
        let until = Instant::now() + time;
        let client = |n: usize| tokio::spawn(cycle(replicas[n % replicas.len()].clone(), "hot".into(), until));
        Self {
            clients: (0..clients).map(client).collect(),
            until,
        }
    }

    /// Waits for their end and judges: no two were sure of the lock at once, and tokens rose with
    /// the time.
    pub async fn judge(self) -> CrowdResult {
        let mut all = Vec::new();
        for client in self.clients {
            all.extend(client.await.expect("no panic"));
        }
        all.sort_unstable_by_key(|held| held.from);
        for two in all.windows(2) {
            let (one, next) = (two[0], two[1]);
            assert!(one.token < next.token, "unsafe: tokens fell: {one:?} {next:?}");
            assert!(one.until <= next.from, "unsafe: two held at once: {one:?} {next:?}");
        }
        let times = all.iter().map(|held| held.from).chain([self.until]);
        CrowdResult { times: times.collect() }
    }
}

impl CrowdResult {
    /// How many grants there were.
    pub fn grants(&self) -> usize {
        self.times.len() - 1
    }

    /// The longest time without a grant, less what of it lies within these times.
    pub fn gap_beyond(&self, away: &[(Instant, Instant)]) -> Duration {
        let beyond = |two: &[Instant]| {
            let (from, to) = (two[0], two[1]);
            let within = away
                .iter()
                .map(|(gone, back)| to.min(*back).saturating_duration_since(from.max(*gone)));
            to.saturating_duration_since(from).saturating_sub(within.sum())
        };
        self.times.windows(2).map(beyond).max().unwrap_or_default()
    }
}

/// What this machine is late by from now on: a task that sleeps measures that.
pub struct Lateness {
    begun: Instant,
    slept: Arc<AtomicU32>,
    _sleeps: AbortOnDropHandle<()>,
}

/// How long that task sleeps each time.
const NAP: Duration = Duration::from_millis(100);

impl Lateness {
    /// Begins to measure.
    pub fn begin() -> Self {
        let slept = Arc::<AtomicU32>::default();
        let count = Arc::clone(&slept);
        let sleeps = tokio::spawn(async move {
            loop {
                tokio::time::sleep(NAP).await;
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self {
            begun: Instant::now(),
            slept,
            _sleeps: AbortOnDropHandle::new(sleeps),
        }
    }

    /// The time so far less that of the naps.
    pub fn so_far(&self) -> Duration {
        self.begun
            .elapsed()
            .saturating_sub(NAP * self.slept.load(Ordering::Relaxed))
    }
}
