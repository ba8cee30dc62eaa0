//! How MariaDB is opened for one case: a server that all cases share, and a database of its own for each.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost::backend::mysql::Store;
use fencepost::backend::mysql::settings::{Credentials, Login, Settings};

use crate::fixture::{Fixture, Missing, Pace};
use crate::mysql_servers::{MariaDb, NAME, available};

/// Real time, and a disk that others use.
const PACE: Pace = Pace {
    short: Duration::from_secs(1),
    slack: Duration::from_millis(500),
    quiet: Duration::from_millis(300),
    virtual_time: false,
    ttl_shrinks: true,
    tells_changes: false,
};

/// How long a statement of a busy machine may take before its outcome counts as unknown, which a case would notice.
const PATIENCE: Duration = Duration::from_secs(9);

/// One server, with a connection for batches and the one that looks, for each of two replicas.
pub async fn one() -> Result<Fixture, Missing> {
    static SERVER: OnceLock<MariaDb> = OnceLock::new();
    static CASE: AtomicU32 = AtomicU32::new(0);
    if !available() {
        return Err(Missing("there is no MariaDB".into()));
    }
    let database = format!("case{}", CASE.fetch_add(1, Ordering::Relaxed));
    let create = format!("CREATE DATABASE {database}; GRANT ALL ON {database}.* TO {NAME}@'127.0.0.1'");
    let start = move || {
        let server = common::shared(&SERVER, || MariaDb::started(&[]));
        server.sql(&create);
        server.address()
    };
    let address = tokio::task::spawn_blocking(start).await.expect("the server starts");
    let stores = [(); 2].map(|()| {
        let settings = Settings {
            database: database.clone(),
            timeout: PATIENCE,
            connect_timeout: PATIENCE,
            connections: 1,
            ..Settings::new(vec![address.clone()])
        };
        let login = Login {
            user: NAME.into(),
            password: String::new(),
        };
        let credentials = Credentials {
            login: Some(login),
            tls: None,
        };
        Store::open(settings, credentials).expect("random numbers")
    });
    Ok(Fixture::over_servers(stores, |store, name| store.namespace(name), PACE).await)
}
