//! How RedLock is opened for one case: five masters that all cases share, and keys of its own for each.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost::backend::redis_server::settings::{OnEmptyStore, connection_info};
use fencepost::backend::redlock::Store;
use fencepost::backend::redlock::settings::Quorum;

use crate::fixture::{Fixture, Missing, REAL_TIME};
use crate::redis_servers::{RedisServer, available};

/// Five masters.
pub async fn five() -> Result<Fixture, Missing> {
    static SERVERS: OnceLock<[RedisServer; 5]> = OnceLock::new();
    static CASE: AtomicU32 = AtomicU32::new(0);
    if !available() {
        return Err(Missing("redis-server is not installed".into()));
    }
    let servers = common::shared(&SERVERS, || std::array::from_fn(|_| RedisServer::start(&[])));
    let info = |server: &RedisServer| connection_info(&server.url()).expect("a good URL");
    let mut quorum = Quorum::new(servers.iter().map(info).collect());
    quorum.prefix = format!("redlock{}", CASE.fetch_add(1, Ordering::Relaxed));
    quorum.on_empty_store = OnEmptyStore::Admit;
    // A machine that is busy with other tests is no slow node.
    quorum.node_timeout = Duration::from_secs(2);
    let stores = [Store::open(quorum.clone()), Store::open(quorum)];
    let fixture = Fixture::over_servers(stores, |store, name| store.namespace(name), REAL_TIME).await;
    // The first thing that a replica's wakes tell is a gap, as soon as it hears the servers.
    tokio::time::sleep(Duration::from_millis(200)).await;
    Ok(fixture)
}
