//! Nodes, replicas of the service over them, and what their clients do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::backend::redis_server::settings::{OnEmptyStore, connection_info};
use fencepost::backend::redlock::Store;
use fencepost::backend::redlock::settings::Quorum;
use fencepost::backend::{Backend, Health};
use fencepost::error::Error;
use fencepost::limits::Limits;
use fencepost::locks::{Lease, Locks};
use fencepost::name::Namespace;

use crate::servers::RedisServer;

pub use common::clients::{acquire, health, serves, take, token};

/// How long a node has for a vote in these tests.
pub const NODE_TIMEOUT: Duration = Duration::from_millis(750);

/// Nodes that forget with their process.
pub fn nodes<const N: usize>() -> [RedisServer; N] {
    std::array::from_fn(|_| RedisServer::start(&[]))
}

/// A quorum of these URLs, whose first start is admitted and whose longest TTL is this.
pub fn quorum(urls: impl IntoIterator<Item = String>, longest: Duration) -> Quorum {
    let nodes = urls.into_iter().map(|url| connection_info(&url).unwrap()).collect();
    let mut quorum = Quorum::new(nodes);
    quorum.on_empty_store = OnEmptyStore::Admit;
    quorum.longest_ttl = longest;
    quorum.node_timeout = NODE_TIMEOUT;
    quorum
}

/// The quorum of these servers.
pub fn of(servers: &[RedisServer], longest: Duration) -> Quorum {
    quorum(servers.iter().map(RedisServer::url), longest)
}

/// One replica, with all its nodes: each votes when this returns.
pub async fn replica(quorum: &Quorum) -> Locks {
    let locks = unready(quorum);
    serves(&locks, Duration::from_secs(10)).await;
    until(&locks, |nodes| {
        nodes.iter().all(|(_, health)| *health == Health::Serving)
    })
    .await;
    locks
}

/// One replica, whatever it says of itself.
pub fn unready(quorum: &Quorum) -> Locks {
    let namespace = Namespace::new("faults").unwrap();
    let backend: Arc<dyn Backend> = Store::open(quorum.clone()).namespace(&namespace);
    let limits = Limits {
        ttl_max: quorum.longest_ttl,
        ttl_default: quorum.longest_ttl,
        ..Limits::default()
    };
    Locks::new(namespace, limits, backend)
}

/// Waits until a replica says of its nodes what is `wanted`.
pub async fn until(locks: &Locks, wanted: impl Fn(&[(String, Health)]) -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !wanted(&locks.nodes()) {
        assert!(Instant::now() < end, "{:?}", locks.nodes());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Acquires as soon as that goes, within a generous time.
pub async fn take_soon(locks: &Locks, lock: &str, ttl: Duration) -> Lease {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match acquire(locks, lock, ttl, Duration::from_secs(2)).await {
            Ok(lease) => return lease,
            Err(error) => assert!(Instant::now() < end, "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// How many nodes hold this lock for anybody, as they store it.
pub fn holding(servers: &[RedisServer], lock: &str) -> usize {
    let key = format!("fencepost:faults:l:{lock}");
    let held = |server: &&RedisServer| server.cli(&["HEXISTS", &key, "secret"]) == "1";
    servers.iter().filter(held).count()
}

/// How many nodes hold this lease with its own token: those that a renewal counts.
pub fn counting(servers: &[RedisServer], lock: &str, lease: &Lease) -> usize {
    let key = format!("fencepost:faults:l:{lock}");
    let counts = |server: &&RedisServer| server.cli(&["HGET", &key, "val"]) == token(lease).to_string();
    servers.iter().filter(counts).count()
}

/// Acquires so that every node counts: one that was held up on this machine may have handed out a larger
/// number, and a lease that has no more than a majority does not outlive one of it.
pub async fn take_everywhere(locks: &Locks, servers: &[RedisServer], lock: &str, ttl: Duration) -> Lease {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let lease = take_soon(locks, lock, ttl).await;
        // One that could not be reached just now never will.
        let soon = Instant::now() + (ttl / 2).min(Duration::from_secs(1));
        while holding(servers, lock) < servers.len() && Instant::now() < soon {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if counting(servers, lock, &lease) == servers.len() {
            return lease;
        }
        match locks.release(&lease.key).await {
            // It may have ended while this machine was busy.
            Ok(_) | Err(Error::LeaseLost { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
        assert!(Instant::now() < end, "the nodes never agree");
    }
}

/// The admission under which a node votes; empty while it does not.
pub fn admission(server: &RedisServer) -> String {
    server.cli(&["HGET", "fencepost:voter", "epoch"])
}

/// Waits until a node is admitted under another name than `before`.
pub fn admitted_anew(server: &RedisServer, before: &str, limit: Duration) {
    crate::servers::eventually("the node is admitted anew", limit, || {
        let now = admission(server);
        let pending = server.cli(&["HEXISTS", "fencepost:voter", "pending"]);
        (!now.is_empty() && now != before && pending == "0").then_some(())
    });
}
