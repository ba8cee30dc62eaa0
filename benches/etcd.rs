//! Acquire and Release through the backend against etcd's own lock calls, and the hand-offs of a hot
//! lock against etcd's: one node of etcd on loopback, the same number of callers, in turns of one run.
//! It fails when a figure misses its requirement.
//!
//! `cargo bench --features etcd --bench etcd`; with `-- hot` only the hot locks, with
//! `-- worn` what a lock costs that was used many times; with `requests` each call has a request id.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{Client, Compare, CompareOp, LockOptions, Txn, TxnOp};
use fencepost::backend::Health;
use fencepost::backend::etcd::Store;
use fencepost::backend::etcd::settings::Settings;
use fencepost::limits::Limits;
use fencepost::locks::{Acquire, Locks};
use fencepost::name::{Identity, LockName, Metadata, Mode, Namespace, Owner, RequestId};
use futures::FutureExt;
use futures::future::BoxFuture;

#[path = "../tests/common/etcd.rs"]
mod servers;
#[path = "core/stats.rs"]
#[allow(dead_code, reason = "the bench of the core uses the rest")]
mod stats;

const CALLERS: usize = 64;
/// Each comparison is made so often in turns, for so long each: a machine has its moods.
const ROUNDS: usize = 7;
const TIME: Duration = Duration::from_secs(2);
const TTL_S: i64 = 30;

fn main() -> ExitCode {
    let cluster = servers::program().map(|_| servers::Cluster::start(1));
    let Some(cluster) = cluster else {
        println!("there is neither Go nor etcd: nothing is measured");
        return ExitCode::SUCCESS;
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if runtime.block_on(run(&cluster)) {
        ExitCode::SUCCESS
    } else {
        println!("something is missed");
        ExitCode::FAILURE
    }
}

/// Whether everything is as required.
async fn run(cluster: &servers::Cluster) -> bool {
    let url = cluster.members[0].url();
    let client = Client::connect([url], None).await.expect("etcd answers");
    let locks = replica(cluster).await;
    if std::env::args().any(|word| word == "worn") {
        return worn(cluster, &locks).await;
    }
    let only_hot = std::env::args().any(|word| word == "hot");
    let mut good = only_hot || own_locks(cluster, &client, &locks).await;
    for (waiters, least) in [(16, 4.0), (64, 1.3)] {
        println!("one hot lock, {waiters} callers");
        let hot = format!("hot{waiters}");
        let (theirs, also_hot) = (client.clone(), hot.clone());
        let ours = replica_pairs(locks.clone(), move |round, _| format!("{hot}.{round}"));
        let mut sides = [
            Side::new("hand-offs", ours),
            Side::new("hand-offs of etcd's Lock", move |(round, _), until| {
                etcd_waiter(theirs.clone(), format!("{also_hot}.{round}"), until).boxed()
            }),
        ];
        in_turns(cluster, waiters, &mut sides).await;
        good &= at_least(sides[0].beside(&sides[1]), least);
    }
    good
}

/// What a lock costs a lone caller that was used many times since etcd's last compaction.
async fn worn(cluster: &servers::Cluster, locks: &Locks) -> bool {
    let mut used = 0;
    let cpu = || cluster.members[0].cpu();
    for _ in 0..6 {
        let (before, began) = (cpu(), Instant::now());
        let done = pairs(locks.clone(), "worn".into(), began + TIME).await;
        let each = |time: Duration| time.as_secs_f64() * 1e6 / done as f64;
        let (took, etcd) = (each(began.elapsed()), each(cpu() - before));
        println!("used {used} times: a cycle takes {took:.0} us, {etcd:.0} us of etcd's CPU");
        // Others wear it faster, each on its way to the tail and back.
        let until = Instant::now() + 3 * TIME;
        let many = (0..CALLERS).map(|_| tokio::spawn(pairs(locks.clone(), "worn".into(), until)));
        used += done;
        for one in many.collect::<Vec<_>>() {
            used += one.await.expect("no panic");
        }
    }
    true
}

async fn own_locks(cluster: &servers::Cluster, client: &Client, locks: &Locks) -> bool {
    println!("{CALLERS} callers, a lock each");
    let shared = client.clone().lease_grant(600, None).await.expect("a lease").id();
    let (whole, on_shared) = (client.clone(), client.clone());
    let mut sides = [
        Side::new(
            "Acquire, Release",
            replica_pairs(locks.clone(), |round, n| format!("own{round}.{n}")),
        ),
        Side::new("LeaseGrant, Lock, Unlock, LeaseRevoke", move |(round, n), until| {
            etcd_pairs(whole.clone(), format!("whole{round}.{n}"), None, until).boxed()
        }),
        Side::new("Lock, Unlock on a shared lease", move |(round, n), until| {
            etcd_pairs(on_shared.clone(), format!("shared{round}.{n}"), Some(shared), until).boxed()
        }),
    ];
    in_turns(cluster, CALLERS, &mut sides).await;
    let mut good = at_least(sides[0].beside(&sides[1]), 5.0);
    good &= at_least(sides[0].beside(&sides[2]), 1.0);

    println!("a lone caller");
    let alone = client.clone();
    let mut sides = [
        Side::new(
            "Acquire, Release",
            replica_pairs(locks.clone(), |round, _| format!("lone{round}")),
        ),
        Side::new("its two transactions alone", move |_, until| {
            bare(alone.clone(), until).boxed()
        }),
    ];
    in_turns(cluster, 1, &mut sides).await;
    let times = sides[1].beside(&sides[0]);
    println!(
        "  a cycle takes {} times theirs (at most 1.4)",
        stats::spread(&times, 2)
    );
    good && stats::median(times) <= 1.4
}

fn at_least(times: Vec<f64>, least: f64) -> bool {
    println!("  {} times as many (at least {least})", stats::spread(&times, 2));
    stats::median(times) >= least
}

/// What a caller does, told the round and its place, until a time.
type Call = Box<dyn Fn((usize, usize), Instant) -> BoxFuture<'static, usize>>;

/// One side of a comparison: what a caller does until a time, and how many cycles it makes.
struct Side {
    what: &'static str,
    call: Call,
    /// Cycles a second, by round.
    rates: Vec<f64>,
    cycles: usize,
    /// CPU time of etcd, and of this process.
    cpu: [Duration; 2],
}

impl Side {
    fn new(what: &'static str, call: impl Fn((usize, usize), Instant) -> BoxFuture<'static, usize> + 'static) -> Self {
        Self {
            what,
            call: Box::new(call),
            rates: Vec::new(),
            cycles: 0,
            cpu: [Duration::ZERO; 2],
        }
    }

    /// How many times as many cycles as the other side, round by round.
    fn beside(&self, other: &Self) -> Vec<f64> {
        stats::ratios(self.rates.iter().copied(), other.rates.iter().copied())
    }
}

/// Lets the sides go on in turns, each with so many callers.
async fn in_turns(cluster: &servers::Cluster, callers: usize, sides: &mut [Side]) {
    let cpu = || [cluster.members[0].cpu(), servers::cpu_of(std::process::id())];
    for round in 0..ROUNDS {
        for side in sides.iter_mut() {
            let (before, began) = (cpu(), Instant::now());
            let until = began + TIME;
            let all: Vec<_> = (0..callers)
                .map(|n| tokio::spawn((side.call)((round, n), until)))
                .collect();
            let mut done = 0;
            for one in all {
                done += one.await.expect("no panic");
            }
            side.rates.push(done as f64 / began.elapsed().as_secs_f64());
            side.cycles += done;
            for (sum, (after, before)) in side.cpu.iter_mut().zip(cpu().into_iter().zip(before)) {
                *sum += after - before;
            }
        }
    }
    for side in sides {
        let [etcd, own] = side.cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / side.cycles as f64);
        let rate = stats::spread(&side.rates, 0);
        println!(
            "  {}: {rate}/s, {etcd:.0} us of etcd's CPU each, {own:.0} us of this process",
            side.what
        );
    }
}

/// Cycles through this project, on the lock of each caller in each round. (Etcd walks
/// past every key that a range had since its last compaction: a round's locks are fresh.)
fn replica_pairs(
    locks: Locks,
    lock: impl Fn(usize, usize) -> String + 'static,
) -> impl Fn((usize, usize), Instant) -> BoxFuture<'static, usize> + 'static {
    move |(round, n), until| pairs(locks.clone(), lock(round, n), until).boxed()
}

async fn replica(cluster: &servers::Cluster) -> Locks {
    let namespace = Namespace::new("bench").expect("a good name");
    let backend = Store::open(Settings::new(cluster.urls())).namespace(&namespace);
    let mut health = backend.health();
    let serving = health.wait_for(|health| *health == Health::Serving).await;
    serving.expect("it serves");
    Locks::new(namespace, Limits::default(), backend)
}

async fn pairs(locks: Locks, lock: String, until: Instant) -> usize {
    let ask = Acquire {
        lock: LockName::new(&lock).expect("a good name"),
        owner: Owner::new("bench").expect("a good name"),
        identity: Identity::anonymous(),
        mode: Mode::Exclusive,
        ttl: Some(Duration::from_secs(TTL_S.unsigned_abs())),
        wait: Duration::from_secs(30),
        request_id: None,
        reentrant: false,
        metadata: Metadata::default(),
    };
    let with_requests = std::env::args().any(|word| word == "requests");
    let mut done = 0;
    while Instant::now() < until {
        let request_id = with_requests.then(|| RequestId::new(&unique().to_string()).expect("a good id"));
        let ask = Acquire {
            request_id,
            ..ask.clone()
        };
        let lease = locks.acquire(ask).await.expect("a grant").delivered();
        locks.release(&lease.key).await.expect("a release");
        done += 1;
    }
    done
}

fn unique() -> usize {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// Etcd's own calls; with a lease of its own for each cycle where none is shared.
async fn etcd_pairs(mut client: Client, lock: String, shared: Option<i64>, until: Instant) -> usize {
    let mut done = 0;
    while Instant::now() < until {
        let lease = match shared {
            Some(lease) => lease,
            None => client.lease_grant(TTL_S, None).await.expect("a lease").id(),
        };
        let options = LockOptions::new().with_lease(lease);
        let held = client.lock(lock.clone(), Some(options)).await.expect("a lock");
        client.unlock(held.key()).await.expect("an unlock");
        if shared.is_none() {
            client.lease_revoke(lease).await.expect("a revocation");
        }
        done += 1;
    }
    done
}

/// A waiter of etcd's lock has a lease of its own, or it would be the same one.
async fn etcd_waiter(mut client: Client, lock: String, until: Instant) -> usize {
    let lease = client.lease_grant(600, None).await.expect("a lease").id();
    etcd_pairs(client, lock, Some(lease), until).await
}

/// What an Acquire and a Release are at the least: two transactions, each with a condition.
async fn bare(mut client: Client, until: Instant) -> usize {
    let mut done = 0;
    while Instant::now() < until {
        let free = Compare::create_revision("bare", CompareOp::Equal, 0);
        let take = Txn::new()
            .when([free])
            .and_then([TxnOp::put("bare", vec![0; 150], None)]);
        assert!(client.txn(take).await.expect("etcd answers").succeeded());
        let held = Compare::create_revision("bare", CompareOp::Greater, 0);
        let end = TxnOp::put("bare-end", vec![0; 10], None);
        let leave = Txn::new().when([held]).and_then([TxnOp::delete("bare", None), end]);
        assert!(client.txn(leave).await.expect("etcd answers").succeeded());
        done += 1;
    }
    done
}
