//! What the engine asks of the tree in etcd.

use std::time::Duration;

use fencepost::backend::etcd::Store;
use fencepost::backend::tree::store::{ConnectionState, Failure, Op, Tree};

use crate::forwarder::Forwarder;
use crate::harness::{ROOT, addresses, behind, cluster, namespace, patient, steady};

const TTL: Duration = Duration::from_secs(60);

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
    format!("{ROOT}/base")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_goes_only_over_the_connection_that_was_opened() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let way = Forwarder::before(cluster.servers[0].port()).await;
    let ways = [behind(&way), addresses(&cluster)].concat();
    let settings = patient(ways, TTL);
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
