//! Acquire and Release through the backend against etcd's own lock calls, and the hand-offs of a hot
//! lock against etcd's: one node of etcd on loopback, the same number of callers, in one run.
//!
//! `cargo bench --features etcd --bench etcd`; with `-- hot` only the hot locks.

use std::time::{Duration, Instant};

use etcd_client::{Client, Compare, CompareOp, LockOptions, Txn, TxnOp};
use fencepost::backend::Health;
use fencepost::backend::etcd::Store;
use fencepost::backend::etcd::settings::Settings;
use fencepost::limits::Limits;
use fencepost::locks::{Acquire, Locks};
use fencepost::name::{Identity, LockName, Metadata, Mode, Namespace, Owner};

#[path = "../tests/common/etcd.rs"]
mod servers;

const CALLERS: usize = 64;
const TIME: Duration = Duration::from_secs(5);
const TTL_S: i64 = 30;

fn main() {
    let cluster = servers::program().map(|_| servers::Cluster::start(1));
    let Some(cluster) = cluster else {
        println!("there is neither Go nor etcd: nothing is measured");
        return;
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(run(&cluster));
}

async fn run(cluster: &servers::Cluster) {
    let url = cluster.members[0].url();
    let client = Client::connect([url], None).await.expect("etcd answers");
    let locks = replica(cluster).await;

    if std::env::args().any(|word| word == "hot") {
        return hot_locks(cluster, &client, &locks).await;
    }
    println!("{CALLERS} callers, a lock each");
    let ours = measure("  Acquire, Release", cluster, CALLERS, |n, until| {
        pairs(locks.clone(), format!("own{n}"), until)
    });
    let ours = ours.await;
    let with_leases = measure(
        "  LeaseGrant, Lock, Unlock, LeaseRevoke",
        cluster,
        CALLERS,
        |n, until| etcd_pairs(client.clone(), format!("whole{n}"), None, until),
    );
    compare(ours, with_leases.await, 5.0);
    let shared = client.clone().lease_grant(600, None).await.expect("a lease").id();
    let on_shared = measure("  Lock, Unlock on a shared lease", cluster, CALLERS, |n, until| {
        etcd_pairs(client.clone(), format!("shared{n}"), Some(shared), until)
    });
    compare(ours, on_shared.await, 1.0);

    println!("a lone caller");
    let lone = measure("  Acquire, Release", cluster, 1, |_, until| {
        pairs(locks.clone(), "lone".into(), until)
    })
    .await;
    let bare = measure("  its two transactions alone", cluster, 1, |_, until| {
        bare(client.clone(), until)
    })
    .await;
    println!("  a cycle takes {:.2} times theirs (at most 1.4)", bare / lone);

    hot_locks(cluster, &client, &locks).await;
}

async fn hot_locks(cluster: &servers::Cluster, client: &Client, locks: &Locks) {
    for (waiters, least) in [(16, 4.0), (64, 1.3)] {
        println!("one hot lock, {waiters} callers");
        let hot = format!("hot{waiters}");
        let ours = measure("  hand-offs", cluster, waiters, |_, until| {
            pairs(locks.clone(), hot.clone(), until)
        })
        .await;
        let theirs = measure("  hand-offs of etcd's Lock", cluster, waiters, |_, until| {
            etcd_waiter(client.clone(), hot.clone(), until)
        });
        compare(ours, theirs.await, least);
    }
}

fn compare(ours: f64, theirs: f64, least: f64) {
    println!("  {:.2} times as many (at least {least})", ours / theirs);
}

/// Lets callers go on until a time, and says how many cycles they made each second.
async fn measure<F>(what: &str, cluster: &servers::Cluster, callers: usize, call: impl Fn(usize, Instant) -> F) -> f64
where
    F: Future<Output = usize> + Send + 'static,
{
    let (cpu, own, began) = (
        cluster.members[0].cpu(),
        servers::cpu_of(std::process::id()),
        Instant::now(),
    );
    let until = began + TIME;
    let callers: Vec<_> = (0..callers).map(|n| tokio::spawn(call(n, until))).collect();
    let mut done = 0;
    for caller in callers {
        done += caller.await.expect("no panic");
    }
    let rate = done as f64 / began.elapsed().as_secs_f64();
    let micros = (cluster.members[0].cpu() - cpu).as_secs_f64() * 1e6 / done as f64;
    let own = (servers::cpu_of(std::process::id()) - own).as_secs_f64() * 1e6 / done as f64;
    println!("{what}: {rate:.0}/s, {micros:.0} us of etcd's CPU each, {own:.0} us of this process");
    rate
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
    let mut done = 0;
    while Instant::now() < until {
        let lease = locks.acquire(ask.clone()).await.expect("a grant").delivered();
        locks.release(&lease.key).await.expect("a release");
        done += 1;
    }
    done
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
