//! Replicas of the service over a Redis, and what their clients do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::backend::redis::Store;
use fencepost::backend::redis_server::settings::{FirstStart, Servers, Settings, connection_info};
use fencepost::backend::{Backend, Health};
use fencepost::error::Error;
use fencepost::limits::Limits;
use fencepost::locks::{Acquire, Lease, Locks};
use fencepost::name::{Identity, LockName, Metadata, Mode, Namespace, Owner, RequestId};

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
    ask(locks, lock, None, ttl, wait).await
}

/// The same under a request id.
pub async fn acquire_as(
    locks: &Locks,
    lock: &str,
    request: &str,
    ttl: Duration,
    wait: Duration,
) -> Result<Lease, Error> {
    ask(locks, lock, Some(RequestId::new(request).unwrap()), ttl, wait).await
}

async fn ask(
    locks: &Locks,
    lock: &str,
    request_id: Option<RequestId>,
    ttl: Duration,
    wait: Duration,
) -> Result<Lease, Error> {
    let ask = Acquire {
        lock: LockName::new(lock).unwrap(),
        owner: Owner::new("tester").unwrap(),
        identity: Identity::anonymous(),
        mode: Mode::Exclusive,
        ttl: Some(ttl),
        wait,
        request_id,
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

/// What clients of one lock have seen.
#[derive(Debug, Default)]
pub struct Seen {
    /// The tokens of their grants.
    pub tokens: Vec<u64>,
    /// The longest time that one of them was without a grant, and when that ended.
    pub gap: Duration,
    /// Each call that the store failed: what was asked, how long it took, and what came.
    pub failed: Vec<(&'static str, Duration, Error)>,
    /// The longest Release.
    pub slowest_release: Duration,
    /// Leases that had ended before their Release.
    pub lost: usize,
}

impl Seen {
    fn join(mut self, other: Self) -> Self {
        self.tokens.extend(other.tokens);
        self.failed.extend(other.failed);
        self.gap = self.gap.max(other.gap);
        self.slowest_release = self.slowest_release.max(other.slowest_release);
        self.lost += other.lost;
        self
    }
}

/// Acquires and releases until `until`, repeating a Release until it is answered: the tokens must
/// rise, and whatever the store fails is noted.
async fn cycle(locks: Locks, until: Instant, ttl: Duration) -> Seen {
    let (mut seen, mut last) = (Seen::default(), Instant::now());
    while Instant::now() < until {
        let asked = Instant::now();
        match acquire(&locks, "hot", ttl, Duration::from_secs(10)).await {
            Ok(lease) => {
                seen.gap = seen.gap.max(last.elapsed());
                last = Instant::now();
                seen.tokens.push(token(&lease));
                release(&locks, &lease, &mut seen).await;
            }
            Err(error @ (Error::Backend(_) | Error::WaitTimeout { .. })) => {
                seen.failed.push(("acquire", asked.elapsed(), error));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    seen.gap = seen.gap.max(last.elapsed());
    assert!(seen.tokens.is_sorted(), "a client's tokens fell");
    seen
}

async fn release(locks: &Locks, lease: &Lease, seen: &mut Seen) {
    loop {
        let asked = Instant::now();
        let released = locks.release(&lease.key).await;
        seen.slowest_release = seen.slowest_release.max(asked.elapsed());
        match released {
            Ok(()) => return,
            Err(Error::LeaseLost { .. }) => {
                seen.lost += 1;
                return;
            }
            Err(error @ Error::Backend(_)) => {
                seen.failed.push(("release", asked.elapsed(), error));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}

/// The TTL of the leases of [`contend`].
pub const HOT_TTL: Duration = Duration::from_secs(5);

/// Several replicas' clients in one queue: all tokens must differ.
pub async fn contend(replicas: &[Locks], clients: usize, time: Duration) -> Seen {
    contend_with(replicas, clients, time, HOT_TTL).await
}

/// The same with leases of another TTL.
pub async fn contend_with(replicas: &[Locks], clients: usize, time: Duration, ttl: Duration) -> Seen {
    let until = Instant::now() + time;
    let clients = (0..clients).map(|n| tokio::spawn(cycle(replicas[n % replicas.len()].clone(), until, ttl)));
    let all = futures::future::join_all(clients).await.into_iter().map(Result::unwrap);
    let mut all = all.fold(Seen::default(), Seen::join);
    all.tokens.sort_unstable();
    assert!(
        all.tokens.windows(2).all(|two| two[0] < two[1]),
        "a token was granted twice"
    );
    println!(
        "{} grants, longest gap {:?}, slowest release {:?}, {} lost, {} failed calls",
        all.tokens.len(),
        all.gap,
        all.slowest_release,
        all.lost,
        all.failed.len()
    );
    all
}
