//! One node of etcd, beside its own lock calls.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use common::etcd as servers;
use etcd_client::{Client, Compare, CompareOp, LockOptions, Txn, TxnOp};
use fencepost::backend::etcd::Store;
use fencepost::backend::etcd::settings::Settings;

use crate::Failure;
use crate::own::{self, CALLS, CLIENT, PROCESS, SESSION};
use crate::process::Server;
use crate::side::{Bench, Bound, Caller, Figure, Side};

const TTL_S: i64 = 30;
const FOUR: &str = "LeaseGrant, Lock, Unlock, LeaseRevoke";
const SHARED: &str = "Lock, Unlock on a shared lease";
const LOCK: &str = "Lock, Unlock, a lease for each caller";
const BARE: &str = "two bare transactions";

/// Own locks, then one hot lock. On a disk a hand-off takes an fsync; in memory it takes none.
fn bounds() -> Vec<Bound> {
    let own = |callers, side, figure| Bound {
        callers,
        hot: false,
        side,
        figure,
    };
    let in_memory = std::env::temp_dir().starts_with("/dev/shm");
    let [few, many] = if in_memory { [8.0, 2.0] } else { [5.0, 1.3] };
    let hot = |callers, least| {
        [CLIENT, SESSION].map(|side| Bound {
            callers,
            hot: true,
            side,
            figure: Figure::Beside(LOCK, least),
        })
    };
    let mut bounds = Vec::new();
    for side in [CLIENT, SESSION] {
        bounds.push(own(64, side, Figure::Beside(FOUR, 6.0)));
        bounds.push(own(64, side, Figure::Beside(SHARED, 1.2)));
        bounds.push(own(64, side, Figure::StoreCpu(SHARED, 0.7)));
        bounds.push(own(256, side, Figure::Beside(SHARED, 1.6)));
    }
    bounds.push(own(256, CLIENT, Figure::Beside(CALLS, 2.0)));
    bounds.push(own(1, BARE, Figure::Beside(PROCESS, 0.7)));
    bounds.extend(hot(16, few));
    bounds.extend(hot(64, many));
    bounds
}

/// The bench, where there is an etcd.
pub async fn bench(program: &Path) -> Result<Option<Bench>, Failure> {
    if servers::program().is_none() {
        return Ok(None);
    }
    let cluster = Arc::new(servers::Cluster::start(1));
    let server = Server::start(
        program,
        &format!(
            "backend = 'etcd'\n[namespaces.bench.etcd]\nendpoints = ['{}']",
            cluster.urls()[0]
        ),
    )?;
    let backend = Store::open(Settings::new(cluster.urls())).namespace(&own::namespace());
    let mut sides = own::sides(&server, own::locks(backend).await?).await?;
    let client = Client::connect(cluster.urls(), None).await?;
    let shared = client.clone().lease_grant(3_600, None).await?.id();
    let side = |name, call: fn(Client, i64, Caller) -> _| {
        let client = client.clone();
        Side::new(name, move |turn| {
            let client = client.clone();
            async move { Ok(turn.all(name, |caller| call(client.clone(), shared, caller)).await) }
        })
    };
    sides.push(
        side(FOUR, |client, _, caller| {
            Box::pin(four(client, caller)) as futures::future::BoxFuture<_>
        })
        .only_own(),
    );
    sides.push(side(SHARED, |client, lease, caller| Box::pin(two(client, lease, caller))).only_own());
    sides.push(side(LOCK, |client, _, caller| Box::pin(waiter(client, caller))).only_hot());
    sides.push(side(BARE, |client, _, caller| Box::pin(bare(client, caller))).only_own());
    let measured = Arc::clone(&cluster);
    Ok(Some(Bench {
        what: "etcd, one node".into(),
        server,
        sides,
        store_cpu: Box::new(move || measured.servers[0].cpu()),
        count: None,
        size: None,
        bounds: bounds(),
        servers: Box::new(cluster),
    }))
}

/// Etcd's own calls with a lease of its own for each pair.
async fn four(mut client: Client, caller: Caller) -> usize {
    let mut done = 0;
    while Instant::now() < caller.until {
        let lease = client.lease_grant(TTL_S, None).await.expect("a lease").id();
        pair(&mut client, lease, &caller.lock).await;
        client.lease_revoke(lease).await.expect("a revocation");
        done += 1;
    }
    done
}

async fn two(mut client: Client, lease: i64, caller: Caller) -> usize {
    let mut done = 0;
    while Instant::now() < caller.until {
        pair(&mut client, lease, &caller.lock).await;
        done += 1;
    }
    done
}

/// A waiter of etcd's lock has a lease of its own, or it would be the same one.
async fn waiter(mut client: Client, caller: Caller) -> usize {
    let lease = client.lease_grant(600, None).await.expect("a lease").id();
    two(client, lease, caller).await
}

async fn pair(client: &mut Client, lease: i64, lock: &str) {
    let options = LockOptions::new().with_lease(lease);
    let held = client.lock(lock, Some(options)).await.expect("a lock");
    client.unlock(held.key()).await.expect("an unlock");
}

/// What an Acquire and a Release are at the least: two transactions, each with a condition.
async fn bare(mut client: Client, caller: Caller) -> usize {
    let (key, mut done) = (caller.lock.as_str(), 0);
    while Instant::now() < caller.until {
        let free = Compare::create_revision(key, CompareOp::Equal, 0);
        let take = Txn::new().when([free]).and_then([TxnOp::put(key, vec![0; 150], None)]);
        assert!(client.txn(take).await.expect("etcd answers").succeeded());
        let held = Compare::create_revision(key, CompareOp::Greater, 0);
        let end = TxnOp::put(format!("{key}.end"), vec![0; 10], None);
        let leave = Txn::new().when([held]).and_then([TxnOp::delete(key, None), end]);
        assert!(client.txn(leave).await.expect("etcd answers").succeeded());
        done += 1;
    }
    done
}
