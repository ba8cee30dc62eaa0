//! What nodes store beside what others store there.

use std::time::Duration;

use fencepost::backend::PageRequest;

use crate::harness::{nodes, of, replica, take_everywhere};
use crate::servers::available;

const TTL: Duration = Duration::from_secs(20);

// G104
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_namespace_on_a_node_does_not_admit_it() {
    use fencepost::backend::redis_server::settings::{OnEmptyStore, Servers, Settings, connection_info};
    use fencepost::backend::{Health, redis};
    use fencepost::name::Namespace;

    use crate::harness::{unready, until};

    common::skip_unless!(available());
    let servers = nodes::<3>();
    let mut settings = Settings::new(Servers::Standalone(connection_info(&servers[0].url()).unwrap()));
    settings.on_empty_store = OnEmptyStore::Admit;
    let store = redis::Store::open(settings).unwrap();
    let alone = store.namespace(&Namespace::new("alone").unwrap());
    alone
        .health()
        .wait_for(|health| *health == Health::Serving)
        .await
        .unwrap();
    // Nobody has said that these nodes are new.
    let mut quorum = of(&servers, TTL);
    quorum.on_empty_store = OnEmptyStore::Quarantine;
    let locks = unready(&quorum);
    until(&locks, |nodes| {
        nodes
            .iter()
            .all(|(_, health)| matches!(health, Health::Quarantined { .. }))
    })
    .await;
    assert_eq!(*alone.health().borrow(), Health::Serving);
    assert_eq!(servers[0].cli(&["HEXISTS", "fencepost:admitted", "pending"]), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_nodes_cannot_read_hides_no_other_lock() {
    common::skip_unless!(available());
    let servers = nodes::<3>();
    let locks = replica(&of(&servers, TTL)).await;
    for lock in ["a", "b", "c", "d"] {
        take_everywhere(&locks, &servers, lock, TTL).await;
    }
    for server in &servers {
        assert_eq!(server.cli(&["SET", "fencepost:faults:l:b", "x"]), "OK");
        assert_eq!(server.cli(&["ZADD", "fencepost:faults:names", "0", "c\u{7}"]), "1");
    }
    // One node can read it, and it is still too few.
    for server in &servers[..2] {
        assert_eq!(server.cli(&["SET", "fencepost:faults:l:c", "x"]), "OK");
    }
    let listed = locks.list("", PageRequest { after: None, size: 10 }).await.unwrap();
    let names: Vec<String> = listed.locks.iter().map(|summary| summary.lock.to_string()).collect();
    assert_eq!(names, ["a", "d"]);
}
