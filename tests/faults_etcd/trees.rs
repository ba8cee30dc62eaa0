//! What the engine asks of the tree in etcd.

use std::time::Duration;

use etcd_client::GetOptions;
use fencepost::backend::etcd::Store;
use fencepost::backend::etcd::settings::Settings;
use fencepost::backend::tree::store::{ConnectionState, Failure, Op, Tree};
use fencepost::limits::Limits;
use fencepost::locks::Locks;

use crate::forwarder::Forwarder;
use crate::harness::{acquire, cluster, etcd, namespace, serves, steady, take, token, waiters};
use crate::servers::Cluster;

const TTL: Duration = Duration::from_secs(60);

async fn replica(cluster: &Cluster) -> Locks {
    let backend = Store::open(Settings::new(cluster.urls())).namespace(&namespace());
    let locks = Locks::new(namespace(), Limits::default(), backend);
    serves(&locks, Duration::from_secs(20)).await;
    locks
}

/// Waits for a connection, and returns its number.
async fn connected(tree: &dyn Tree) -> u64 {
    let mut state = tree.state();
    let is_connected = |state: &ConnectionState| matches!(state, ConnectionState::Connected(_));
    match state.wait_for(is_connected).await.expect("it lives").clone() {
        ConnectionState::Connected(connected) => connected.generation,
        ConnectionState::Disconnected(_) => unreachable!("it was waited for"),
    }
}

fn base() -> String {
    format!("/fencepost/{}/base", namespace())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_goes_only_over_the_connection_that_was_opened() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let way = Forwarder::before(cluster.servers[0].port()).await;
    let settings = Settings {
        timeout: Duration::from_secs(2),
        session_ttl: TTL,
        ..Settings::new(vec![format!("http://{}", way.address()), cluster.servers[0].url()])
    };
    let (tree, _events) = Store::open(settings).tree(&namespace());
    let generation = connected(&*tree).await;
    way.stall();
    let read = tree.get(generation, &base()).await;
    assert_eq!(read, Ok(None), "it is answered over the other way");
    let sent = tree
        .commit(generation, &[], &[vec![Op::create(base(), Vec::new())]])
        .await;
    assert!(matches!(sent, Err(Failure::NotSent(_))), "{sent:?}");
    way.go_on();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_nobody_waits_for_is_sent() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let (tree, _events) = Store::open(steady(cluster.urls())).tree(&namespace());
    let (generation, path) = (connected(&*tree).await, base());
    drop(tree.commit(generation, &[], &[vec![Op::create(&path, b"1".to_vec())]]));
    let written = async {
        loop {
            if let Some((data, _)) = tree.get(generation, &path).await.expect("etcd answers") {
                return data;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let written = tokio::time::timeout(Duration::from_secs(20), written).await;
    assert_eq!(written.expect("it is written"), b"1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_session_etcd_has_ended_waits_on() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = replica(&cluster).await;
    let held = take(&locks, "a", TTL).await;
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { acquire(&locks, "a", TTL, Duration::from_secs(30)).await }
    });
    waiters(&locks, "a", 1).await;
    let mut etcd = etcd(&cluster).await;
    let fences = format!("/fencepost/{}/s/", namespace());
    let read = etcd.get(fences, Some(GetOptions::new().with_prefix())).await;
    let session = read.expect("etcd answers").kvs()[0].lease();
    etcd.lease_revoke(session).await.expect("it lives");
    waiters(&locks, "a", 1).await;
    locks.release(&held.key).await.expect("it is held");
    let next = waiting.await.expect("no panic").expect("it waits on");
    assert!(token(&next) > token(&held));
}
