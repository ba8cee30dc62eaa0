//! Records over a database, and commits of them.

use std::sync::Arc;
use std::time::Duration;

use fencepost::backend::PageRequest;
use fencepost::backend::postgres::Store;
use fencepost::backend::postgres::settings::{Credentials, Login, Settings};
use fencepost::backend::record::store::RecordStore;
use fencepost::limits::Limits;
use fencepost::locks::Locks;
use fencepost::name::Namespace;

pub use crate::clients::{acquire, take, token, until_waiting};
pub use crate::record_steps::{
    READY, applied, eventually_read, first, healthy, name, next, random, refused, serves, version_of,
};
use crate::servers::{NAME, Postgres};

/// The login of the service.
pub fn credentials() -> Credentials {
    Credentials {
        login: Some(Login {
            user: NAME.into(),
            password: String::new(),
        }),
        tls: None,
    }
}

/// The settings for a server.
pub fn settings(server: &Postgres) -> Settings {
    settings_of(vec![server.address()])
}

/// The settings for servers.
pub fn settings_of(servers: Vec<String>) -> Settings {
    Settings {
        timeout: Duration::from_secs(2),
        connect_timeout: Duration::from_secs(1),
        ..Settings::new(servers)
    }
}

/// The records of one namespace, once the store serves.
pub async fn records(settings: Settings) -> Arc<dyn RecordStore> {
    let records = unready(settings);
    serves(&*records).await;
    records
}

/// The locks of one server's namespace, once the store serves.
pub async fn replica(settings: Settings) -> Locks {
    let store = Store::open(settings, credentials()).expect("random numbers");
    let locks = locks_of(&store);
    crate::clients::serves(&locks, READY).await;
    locks
}

/// The locks of a store's namespace.
pub fn locks_of(store: &Store) -> Locks {
    let namespace = Namespace::new("faults").expect("a good name");
    Locks::new(namespace.clone(), Limits::default(), store.namespace(&namespace))
}

/// Waits until no claim is left, of a lock that nobody uses any more, and no part without its root.
pub async fn nothing_is_left(locks: &Locks, server: &Postgres) {
    let end = std::time::Instant::now() + READY;
    loop {
        let page = PageRequest { after: None, size: 9 };
        let left = locks.list("", page).await.expect("it lists").locks;
        if left.is_empty() {
            break;
        }
        assert!(std::time::Instant::now() < end, "claims are left: {left:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let parts = "SELECT count(*) FROM fencepost_part WHERE id NOT IN (SELECT id FROM fencepost_lock)";
    assert_eq!(server.sql(parts), "0");
}

/// The records of one namespace.
pub fn unready(settings: Settings) -> Arc<dyn RecordStore> {
    let store = Store::open(settings, credentials()).expect("random numbers");
    store.records(&Namespace::new("faults").expect("a good name"))
}

/// Another session of the database.
pub async fn session(server: &Postgres) -> tokio_postgres::Client {
    let mut config = tokio_postgres::Config::new();
    config.user("postgres").dbname(NAME);
    let stream = tokio::net::TcpStream::connect(server.address())
        .await
        .expect("it listens");
    let (client, connection) = config
        .connect_raw(stream, tokio_postgres::NoTls)
        .await
        .expect("it accepts");
    tokio::spawn(connection);
    client
}
