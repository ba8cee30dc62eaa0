//! Which servers are believed to remember what was granted, as their marker and what they say of themselves show.

use std::time::Duration;

use fencepost::backend::redis_server::handshake::ServerInfo;
use fencepost::backend::redis_server::marker::{Marker, Trust};
use fencepost::backend::redis_server::settings::OnEmptyStore;
use redis::aio::MultiplexedConnection;

use crate::servers::{RedisServer, available, eventually};

const TTL: Duration = Duration::from_secs(600);
const LIMIT: Duration = Duration::from_secs(30);
/// The keys of the markers, one for each case: who has judged a server writes that down.
const KEYS: [&str; 4] = ["at-once", "behind", "long-after", "known"];

async fn connection(server: &RedisServer) -> MultiplexedConnection {
    let client = redis::Client::open(server.url()).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

async fn trusts(marker: &Marker, server: &RedisServer) -> bool {
    let mut connection = connection(server).await;
    let server_info = ServerInfo::ask(&mut connection).await.unwrap();
    marker.check(&mut connection, &server_info).await.unwrap() == Trust::Admitted
}

fn marker(key: &str, on_empty_store: OnEmptyStore) -> Marker {
    Marker::new(key.as_bytes().to_vec(), on_empty_store, TTL)
}

// G94
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_copy_is_believed_only_if_it_was_not_behind() {
    if !available() {
        return;
    }
    let mut master = RedisServer::with_clock(&["--repl-diskless-sync-delay", "0"]);
    let port = master.port().to_string();
    let mut copy = RedisServer::with_clock(&["--replicaof", &format!("127.0.0.1 {port}")]);
    // It is older than the markers' last writing, as one is that did not restart with less.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let known = KEYS.map(|key| marker(key, OnEmptyStore::Admit));
    for marker in &known {
        assert!(trusts(marker, &master).await);
    }
    tokio::task::block_in_place(|| {
        eventually("the copy has all markers", LIMIT, || {
            (copy.cli(&["DBSIZE"]) == "4").then_some(())
        });
    });
    assert_eq!(copy.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    let newcomer = |key| marker(key, OnEmptyStore::Quarantine);
    assert!(trusts(&newcomer(KEYS[0]), &copy).await, "promoted at once");
    // Ten seconds of grants that it does not have.
    master.shift_clock_ms(10_000);
    assert!(trusts(&known[1], &master).await);
    assert!(!trusts(&known[1], &copy).await, "promoted without the last ten seconds");
    // What came in a hundred seconds is not known to who comes now.
    copy.shift_clock_ms(100_000);
    assert!(
        !trusts(&newcomer(KEYS[2]), &copy).await,
        "promoted long after the last writing"
    );
    assert!(trusts(&known[3], &copy).await, "it has what was written last");
}

// G93
#[tokio::test]
async fn writes_are_durable_only_if_synced_during_a_rewrite_too() {
    if !available() {
        return;
    }
    let always = ["--appendonly", "yes", "--appendfsync", "always"];
    let durable = RedisServer::start(&always);
    assert!(ServerInfo::ask(&mut connection(&durable).await).await.unwrap().durable);
    let unsynced = [always.as_slice(), &["--no-appendfsync-on-rewrite", "yes"]].concat();
    let server = RedisServer::start(&unsynced);
    assert!(!ServerInfo::ask(&mut connection(&server).await).await.unwrap().durable);
}
