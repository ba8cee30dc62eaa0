//! Replicas of the service over a Redis, and what their clients do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fencepost::backend::Backend;
use fencepost::backend::redis::Store;
use fencepost::backend::redis_server::settings::{OnEmptyStore, Servers, Settings, connection_info};
use fencepost::error::Error;
use fencepost::limits::Limits;
use fencepost::locks::{Lease, Locks};
use fencepost::name::Namespace;

use crate::faults_redis::servers::{RedisServer, eventually};

#[allow(unused_imports, reason = "each test binary uses its share")]
pub use common::clients::{acquire, acquire_as, best_of_three, health, serves, take, token, until_waiting};

/// Settings for one server.
pub fn standalone(url: &str) -> Settings {
    settings(Servers::Standalone(connection_info(url).unwrap()))
}

/// Settings with the first start admitted. A slow machine is no Redis that hangs: where the limits
/// of a second are what is tested, [`impatient`] sets them.
pub fn settings(servers: Servers) -> Settings {
    let mut settings = Settings::new(servers);
    settings.on_empty_store = OnEmptyStore::Admit;
    (settings.connect_timeout, settings.response_timeout) = (PATIENCE, PATIENCE);
    settings
}

/// How long a connection and an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The same settings with the limits that users have.
pub fn impatient(mut settings: Settings) -> Settings {
    let usual = Settings::new(settings.servers.clone());
    settings.connect_timeout = usual.connect_timeout;
    settings.response_timeout = usual.response_timeout;
    settings
}

/// One replica: it serves when this returns.
pub async fn replica(settings: &Settings) -> Locks {
    let locks = unready(settings);
    serves(&locks, Duration::from_secs(60)).await;
    locks
}

/// One replica, whatever it says of itself.
pub fn unready(settings: &Settings) -> Locks {
    let namespace = Namespace::new("faults").unwrap();
    let backend: Arc<dyn Backend> = Store::open(settings.clone())
        .expect("random numbers")
        .namespace(&namespace);
    Locks::new(namespace, Limits::default(), backend)
}

/// What clients of one lock have seen.
#[derive(Debug, Default)]
pub struct ContestResult {
    /// The tokens of their grants.
    pub tokens: Vec<u64>,
    /// The longest time that one of them was without a grant, and when that ended.
    pub gap: Duration,
    /// Each call that the store failed: what was asked, how long it took, and what came.
    pub failed: Vec<(&'static str, Duration, Error)>,
    /// How many gaps were longer than [`LONG_GAP`].
    pub long_gaps: usize,
    /// The longest Release.
    pub slowest_release: Duration,
    /// Leases that had ended before their Release.
    pub lost: usize,
}

/// A gap in which somebody has probably waited for a poll.
const LONG_GAP: Duration = Duration::from_millis(900);

impl ContestResult {
    fn gap(&mut self, gap: Duration) {
        self.gap = self.gap.max(gap);
        self.long_gaps += usize::from(gap > LONG_GAP);
    }

    fn join(mut self, other: Self) -> Self {
        self.tokens.extend(other.tokens);
        self.failed.extend(other.failed);
        self.gap = self.gap.max(other.gap);
        self.slowest_release = self.slowest_release.max(other.slowest_release);
        self.lost += other.lost;
        self.long_gaps += other.long_gaps;
        self
    }
}

/// When clients of one lock stop.
struct StopCondition {
    until: Instant,
    /// They go on for so many grants together, though not for much longer.
    grants: usize,
    granted: AtomicUsize,
}

/// How much longer than their time they go on.
const AT_MOST: Duration = Duration::from_secs(30);

impl StopCondition {
    fn is_not_met(&self) -> bool {
        let now = Instant::now();
        let few = self.granted.load(Ordering::Relaxed) < self.grants;
        now < self.until || (few && now < self.until + AT_MOST)
    }
}

/// Acquires and releases until then, repeating a Release until it is answered: the tokens must
/// rise, and whatever the store fails is noted.
async fn cycle(locks: Locks, lock: &'static str, ttl: Duration, stop: Arc<StopCondition>) -> ContestResult {
    let (mut seen, mut last) = (ContestResult::default(), Instant::now());
    while stop.is_not_met() {
        let asked = Instant::now();
        match acquire(&locks, lock, ttl, Duration::from_secs(10)).await {
            Ok(lease) => {
                seen.gap(last.elapsed());
                last = Instant::now();
                seen.tokens.push(token(&lease));
                stop.granted.fetch_add(1, Ordering::Relaxed);
                release(&locks, &lease, &mut seen).await;
            }
            Err(error @ (Error::Backend(_) | Error::WaitTimeout { .. })) => {
                seen.failed.push(("acquire", asked.elapsed(), error));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    seen.gap(last.elapsed());
    assert!(seen.tokens.is_sorted(), "unsafe: a client's tokens fell");
    seen
}

async fn release(locks: &Locks, lease: &Lease, seen: &mut ContestResult) {
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

/// Clients of several replicas in one queue.
pub struct Contest {
    /// For which lock.
    pub lock: &'static str,
    /// How many.
    pub clients: usize,
    /// For how long,
    pub time: Duration,
    /// and until they have had so many grants, if a slow machine lets them have few.
    pub grants: usize,
    /// The TTL of their leases.
    pub ttl: Duration,
}

/// Several replicas' clients in one queue: all tokens must differ.
pub async fn contend(replicas: &[Locks], clients: usize, time: Duration, grants: usize) -> ContestResult {
    let contest = Contest {
        lock: "hot",
        clients,
        time,
        grants,
        ttl: HOT_TTL,
    };
    contest.run(replicas).await
}

impl Contest {
    /// What they have seen: all tokens must differ.
    pub async fn run(&self, replicas: &[Locks]) -> ContestResult {
        let stop = Arc::new(StopCondition {
            until: Instant::now() + self.time,
            grants: self.grants,
            granted: AtomicUsize::new(0),
        });
        let clients = (0..self.clients).map(|n| {
            let locks = replicas[n % replicas.len()].clone();
            tokio::spawn(cycle(locks, self.lock, self.ttl, Arc::clone(&stop)))
        });
        let all = futures::future::join_all(clients).await.into_iter().map(Result::unwrap);
        let mut all = all.fold(ContestResult::default(), ContestResult::join);
        all.tokens.sort_unstable();
        assert!(
            all.tokens.windows(2).all(|two| two[0] < two[1]),
            "unsafe: a token was granted twice"
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
}

/// Waits until the replica of a server has what the server has.
pub async fn replicated(master: &RedisServer) {
    tokio::task::block_in_place(|| {
        eventually("the replica has it all", Duration::from_secs(60), || {
            let text = master.cli(&["INFO", "replication"]);
            let offset = text.lines().find_map(|line| line.strip_prefix("master_repl_offset:"))?;
            text.contains(&format!("offset={},", offset.trim())).then_some(())
        });
    });
}
