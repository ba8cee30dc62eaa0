//! How Redis is opened for one case: servers that all cases share, and keys of its own for each.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost::backend::redis::Store;
use fencepost::backend::redis_server::settings::{OnEmptyStore, Replicas, Servers, Settings, connection_info};
use fencepost::backend::{Backend, ReleaseTarget, WatchEvent};
use futures::StreamExt;

use crate::claims::numbered;
use crate::fixture::{Fixture, Missing, READY, REAL_TIME, lock};
use crate::redis_servers::{Cluster, RedisServer, Sentinels, available};

/// How long a connection and an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// One server.
pub async fn standalone() -> Result<Fixture, Missing> {
    static SERVER: OnceLock<RedisServer> = OnceLock::new();
    if !available() {
        return Err(Missing("redis-server is not installed".into()));
    }
    let server = common::shared(&SERVER, || RedisServer::start(&[]));
    let info = connection_info(&server.url()).expect("a good URL");
    opened(Settings::new(Servers::Standalone(info))).await
}

/// A master with a replica, found through three sentinels.
pub async fn sentinel() -> Result<Fixture, Missing> {
    static SERVERS: OnceLock<Sentinels> = OnceLock::new();
    if !available() {
        return Err(Missing("redis-server is not installed".into()));
    }
    let servers = common::shared(&SERVERS, Sentinels::start);
    let info = |address: &String| connection_info(&format!("redis://{address}")).expect("a good URL");
    let sentinels: Vec<_> = servers.addresses().iter().map(info).collect();
    opened(Settings::new(Servers::Sentinel {
        master: "mymaster".into(),
        login: sentinels[0].clone(),
        sentinels,
    }))
    .await
}

/// Three masters with a replica each.
pub async fn cluster() -> Result<Fixture, Missing> {
    static SERVERS: OnceLock<Cluster> = OnceLock::new();
    if !available() {
        return Err(Missing("redis-server is not installed".into()));
    }
    let servers = common::shared(&SERVERS, Cluster::start);
    let seeds = servers
        .urls()
        .iter()
        .map(|url| connection_info(url).expect("a good URL"))
        .collect();
    opened(Settings::new(Servers::Cluster(seeds))).await
}

/// One server whose replica must confirm each grant.
pub async fn confirmed() -> Result<Fixture, Missing> {
    static SERVERS: OnceLock<[RedisServer; 2]> = OnceLock::new();
    if !available() {
        return Err(Missing("redis-server is not installed".into()));
    }
    let [master, _] = common::shared(&SERVERS, || {
        let master = RedisServer::start(&["--repl-diskless-sync-delay", "0"]);
        let replica = RedisServer::start(&["--replicaof", &format!("127.0.0.1 {}", master.port())]);
        [master, replica]
    });
    let info = connection_info(&master.url()).expect("a good URL");
    let mut settings = Settings::new(Servers::Standalone(info));
    settings.replicas = Some(Replicas {
        count: 1,
        timeout: Duration::from_secs(5),
    });
    opened(settings).await
}

async fn opened(mut settings: Settings) -> Result<Fixture, Missing> {
    static CASE: AtomicU32 = AtomicU32::new(0);
    settings.prefix = format!("case{}", CASE.fetch_add(1, Ordering::Relaxed));
    settings.on_empty_store = OnEmptyStore::Admit;
    // A slow machine is no Redis that hangs.
    (settings.connect_timeout, settings.response_timeout) = (PATIENCE, PATIENCE);
    let stores = [settings.clone(), settings].map(|settings| Store::open(settings).expect("random numbers"));
    let fixture = Fixture::over_servers(stores, |store, name| store.namespace(name), REAL_TIME).await;
    hears(&*fixture.first, &*fixture.second).await;
    hears(&*fixture.second, &*fixture.first).await;
    Ok(fixture)
}

/// Waits until a replica hears the messages of another one.
async fn hears(one: &dyn Backend, other: &dyn Backend) {
    let (warm, mut number) = (lock("warm"), 1 << 64);
    let mut watch = one.watch(&warm);
    let end = tokio::time::Instant::now() + READY;
    loop {
        assert!(tokio::time::Instant::now() < end, "it hears nothing");
        number += 1;
        let claim = numbered(number);
        other.acquire(&warm, &claim).await.expect("it answers");
        let call = ReleaseTarget::Call(&claim.id, claim.call);
        other.release(&warm, call, None).await.expect("it answers");
        let told = tokio::time::timeout(Duration::from_millis(100), watch.next());
        if let Ok(Some(Ok(WatchEvent::Change(_)))) = told.await {
            return;
        }
    }
}
