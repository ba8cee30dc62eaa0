//! Replicas of the service over a Redis, and what their clients do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::backend::redis::Store;
use fencepost::backend::redis_server::settings::{FirstStart, Servers, Settings, connection_info};
use fencepost::backend::{Backend, Health};
use fencepost::error::Error;
use fencepost::limits::Limits;
use fencepost::locks::{Acquire, Lease, Locks};
use fencepost::name::{Identity, LockName, Metadata, Mode, Namespace, Owner};

/// Settings for one server.
pub fn standalone(url: &str) -> Settings {
    settings(Servers::Standalone(connection_info(url).unwrap()))
}

/// Settings with the first start admitted.
pub fn settings(servers: Servers) -> Settings {
    let mut settings = Settings::new(servers);
    settings.first_start = FirstStart::Admit;
    settings
}

/// One replica: it serves when this returns.
pub async fn replica(settings: &Settings) -> Locks {
    let locks = unready(settings);
    serves(&locks, Duration::from_secs(10)).await;
    locks
}

/// One replica, whatever it says of itself.
pub fn unready(settings: &Settings) -> Locks {
    let namespace = Namespace::new("faults").unwrap();
    let backend: Arc<dyn Backend> = Store::open(settings.clone()).namespace(&namespace);
    Locks::new(namespace, Limits::default(), backend)
}

/// Waits until a replica serves, and says how long that took.
pub async fn serves(locks: &Locks, limit: Duration) -> Duration {
    health(locks, limit, |health| *health == Health::Serving).await
}

/// Waits until a replica's health is as `wanted`, and says how long that took.
pub async fn health(locks: &Locks, limit: Duration, wanted: impl Fn(&Health) -> bool) -> Duration {
    let began = Instant::now();
    let mut health = locks.health();
    let reached = tokio::time::timeout(limit, health.wait_for(|now| wanted(now)))
        .await
        .is_ok();
    assert!(reached, "not within {limit:?}: {:?}", locks.health().borrow().clone());
    began.elapsed()
}

/// Acquires exclusively.
pub async fn acquire(locks: &Locks, lock: &str, ttl: Duration, wait: Duration) -> Result<Lease, Error> {
    let ask = Acquire {
        lock: LockName::new(lock).unwrap(),
        owner: Owner::new("tester").unwrap(),
        identity: Identity::anonymous(),
        mode: Mode::Exclusive,
        ttl: Some(ttl),
        wait,
        request_id: None,
        reentrant: false,
        metadata: Metadata::default(),
    };
    Ok(locks.acquire(ask).await?.delivered())
}

/// Acquires what must be free.
pub async fn take(locks: &Locks, lock: &str, ttl: Duration) -> Lease {
    acquire(locks, lock, ttl, Duration::ZERO).await.unwrap()
}

/// A token as a number.
pub fn token(lease: &Lease) -> u64 {
    lease.key.token.get()
}

/// Acquires and releases until `until`, passing over a store that is away; the tokens, which must
/// rise, and the longest time between two grants.
pub async fn cycle(locks: Locks, lock: String, until: Instant) -> (Vec<u64>, Duration) {
    let (mut tokens, mut gap, mut last) = (Vec::new(), Duration::ZERO, Instant::now());
    while Instant::now() < until {
        match acquire(&locks, &lock, Duration::from_secs(5), Duration::from_secs(10)).await {
            Ok(lease) => {
                gap = gap.max(last.elapsed());
                last = Instant::now();
                tokens.push(token(&lease));
                // A release of unknown outcome is repeated; one that was lost ends by its TTL.
                for _ in 0..20 {
                    if !matches!(locks.release(&lease.key).await, Err(Error::Backend(_))) {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            Err(Error::Backend(_) | Error::Superseded | Error::WaitTimeout { .. }) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    (tokens, gap)
}

/// Several replicas' clients in one queue: all tokens must differ. Answers all of them in order of
/// their values, and the longest gap that any client saw.
pub async fn contend(replicas: &[Locks], clients: usize, time: Duration) -> (Vec<u64>, Duration) {
    let until = Instant::now() + time;
    let clients = (0..clients).map(|n| tokio::spawn(cycle(replicas[n % replicas.len()].clone(), "hot".into(), until)));
    let mut all = Vec::new();
    let mut longest = Duration::ZERO;
    for done in futures::future::join_all(clients).await {
        let (tokens, gap) = done.unwrap();
        assert!(tokens.is_sorted(), "a client's tokens fell");
        all.extend(tokens);
        longest = longest.max(gap);
    }
    all.sort_unstable();
    assert!(all.windows(2).all(|two| two[0] < two[1]), "a token was granted twice");
    (all, longest)
}
