//! A rolling restart under load: no lease is lost, nobody who is sure is refused, and every call that fails
//! says why and succeeds elsewhere.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::load::{LoadState, call, hold, write};
use crate::register::Register;
use crate::replicas::{REPLICAS, Replicas};

/// How long it lasts at least.
const LASTS: Duration = Duration::from_secs(if cfg!(feature = "soak") { 300 } else { 30 });
/// How long all servers are left alone between two restarts.
const REST: Duration = Duration::from_secs(1);
/// How many registers there are, with as many writers each as there are servers.
const REGISTERS: usize = 2;
/// How many leases are held throughout.
const HELD: usize = 6;
/// How many callers there are.
const CALLERS: usize = 6;

/// Restarts each server in turn, on servers whose namespace is configured like this, and after each what is `below`.
async fn restart_in_turn(namespace: &str, mut below: impl AsyncFnMut(usize)) {
    let mut replicas = Replicas::start(namespace).await;
    let state = Arc::new(LoadState::default());
    let registers: Vec<Arc<Register>> = (0..REGISTERS).map(|_| Arc::default()).collect();
    let mut clients = JoinSet::new();
    for (number, register) in registers.iter().enumerate() {
        for first in 0..REPLICAS {
            let client = replicas.client(first).await;
            let lock = format!("register-{number}");
            clients.spawn(write(client, lock, Arc::clone(register), Arc::clone(&state)));
        }
    }
    for number in 0..HELD {
        let client = replicas.client(number).await;
        clients.spawn(hold(client, format!("held-{number}"), Arc::clone(&state)));
    }
    for number in 0..CALLERS {
        clients.spawn(call(replicas.ends(), number, Arc::clone(&state)));
    }

    let (began, mut restarts) = (Instant::now(), 0);
    while restarts < REPLICAS || began.elapsed() < LASTS {
        tokio::time::sleep(REST).await;
        replicas.0[restarts % REPLICAS].restart().await;
        below(restarts).await;
        restarts += 1;
        state.goes_on_well().await;
        if let Some(ended) = clients.try_join_next() {
            ended.expect("no client failed");
            panic!("a client ended");
        }
    }
    state.end();
    while let Some(ended) = clients.join_next().await {
        ended.expect("no client failed");
    }
    let count = |of: &std::sync::atomic::AtomicU64| of.load(Ordering::Relaxed);
    let writes: Vec<u64> = registers.iter().map(|register| register.writes()).collect();
    println!(
        "{restarts} restarts, {} grants, {} calls refused with a reason, {} that no server took, writes {writes:?}",
        count(&state.granted),
        count(&state.refused),
        count(&state.untaken),
    );
    assert!(writes.iter().all(|writes| *writes > 0), "{writes:?}");
    assert!(count(&state.refused) > 0, "no call met a server that drains");
}

// G56
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn servers_on_one_redis_are_restarted_in_turn_and_no_lease_is_lost() {
    crate::stores::on_redis(async |namespace| restart_in_turn(namespace, async |_| {}).await).await;
}

// G56
#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn servers_on_one_etcd_are_restarted_in_turn_and_no_lease_is_lost() {
    crate::stores::on_etcd(async |namespace| restart_in_turn(namespace, async |_| {}).await).await;
}

// G56
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn servers_on_one_postgres_are_restarted_in_turn_and_no_lease_is_lost() {
    crate::stores::on_postgres(async |namespace| restart_in_turn(namespace, async |_| {}).await).await;
}

// G56
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn servers_on_one_mysql_are_restarted_in_turn_and_no_lease_is_lost() {
    crate::stores::on_mysql(async |namespace| restart_in_turn(namespace, async |_| {}).await).await;
}

// G56
/// Both sides: after each of ours one of ZooKeeper's is killed and started again.
#[cfg(feature = "zookeeper")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn servers_on_three_zookeepers_are_restarted_in_turn_with_them_and_no_lease_is_lost() {
    use crate::zookeeper_servers::{Ensemble, found, program};
    let ensemble = found(program()).map(|_| Ensemble::start(3));
    let Some(mut ensemble) = ensemble else { return };
    let namespace = format!("backend = 'zookeeper'\nzookeeper.servers = {:?}", ensemble.addresses());
    restart_in_turn(&namespace, async |restarts| {
        let server = restarts % ensemble.servers.len();
        ensemble.servers[server].kill9();
        ensemble.servers[server].restart();
        // A lease whose release was lost ends once a server has seen it for a whole TTL.
        const TTL_SEEN: Duration = Duration::from_secs(24);
        if cfg!(feature = "soak") {
            tokio::time::sleep(TTL_SEEN / u32::try_from(REPLICAS).expect("a few")).await;
        }
    })
    .await;
}
