//! Nodes without any data: new ones, and those that lost it while no server ran.

use std::time::Duration;

use fencepost::backend::Health;
use fencepost::backend::redis_server::settings::OnEmptyStore;
use fencepost::backend::redis_server::store_record::StoreRecord;
use fencepost::locks::Locks;

use crate::harness::{nodes, of, replica, take, unready, until};
use crate::servers::available;

const TTL: Duration = Duration::from_secs(2);
/// So long that no quarantine ends in a test.
const LONGEST: Duration = Duration::from_secs(600);

/// Waits until all nodes are in quarantine for this reason.
async fn all_are_quarantined(locks: &Locks, why: &str) {
    until(locks, |nodes| {
        nodes
            .iter()
            .all(|(_, health)| matches!(health, Health::Quarantined { reason, .. } if reason.contains(why)))
    })
    .await;
}

// G105
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_nodes_that_were_met_in_quarantine_are_new_to_a_server_that_admits_them() {
    common::skip_unless!(available());
    let servers = nodes::<3>();
    let mut quorum = of(&servers, LONGEST);
    quorum.on_empty_store = OnEmptyStore::Quarantine;
    let locks = unready(&quorum);
    all_are_quarantined(&locks, "it is new, or has lost its data").await;
    locks.close().await;
    drop(locks);
    quorum.on_empty_store = OnEmptyStore::Admit;
    take(&replica(&quorum).await, "a", TTL).await;
}

// G105
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_nodes_that_a_server_has_granted_on_are_not_new_to_it_nor_to_others() {
    common::skip_unless!(available());
    let folder = tempfile::tempdir().unwrap();
    let mut servers = nodes::<3>();
    let mut quorum = of(&servers, LONGEST);
    let newcomer = quorum.clone();
    quorum.record = StoreRecord::new(Some(folder.path()), "redlock".to_owned());
    let locks = replica(&quorum).await;
    locks.close().await;
    drop(locks);
    for server in &mut servers {
        server.kill9();
        server.restart();
    }
    all_are_quarantined(&unready(&quorum), "it has lost the leases").await;
    all_are_quarantined(&unready(&newcomer), "it has lost the leases").await;
    for server in &mut servers {
        server.kill9();
        server.restart();
    }
    // A server alone without a record cannot know it.
    take(&replica(&newcomer).await, "a", TTL).await;
}
