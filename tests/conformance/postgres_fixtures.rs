//! How PostgreSQL is opened for one case: a server that all cases share, and a schema of its own for each.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost::backend::postgres::Store;
use fencepost::backend::postgres::settings::{Credentials, Login, Settings};

use crate::fixture::{Fixture, Missing, Pace};
use crate::postgres_servers::{NAME, Postgres, available};

/// Real time, and a disk that others use.
const PACE: Pace = Pace {
    short: Duration::from_secs(1),
    slack: Duration::from_millis(500),
    quiet: Duration::from_millis(300),
    virtual_time: false,
    ttl_shrinks: true,
    tells_changes: true,
};

/// How long a statement of a busy machine may take before its outcome counts as unknown, which a case would notice.
const PATIENCE: Duration = Duration::from_secs(9);

/// One server, with a connection for batches and those that every store has, for each of two replicas.
pub async fn one() -> Result<Fixture, Missing> {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    static CASE: AtomicU32 = AtomicU32::new(0);
    if !available() {
        return Err(Missing("there is no PostgreSQL".into()));
    }
    let schema = format!("case{}", CASE.fetch_add(1, Ordering::Relaxed));
    let create = format!("CREATE SCHEMA {schema} AUTHORIZATION {NAME}");
    let start = move || {
        let settings = [("max_connections", "400"), ("synchronous_commit", "off")];
        let server = common::shared(&SERVER, move || Postgres::started(&settings));
        server.sql(&create);
        server.address()
    };
    let address = tokio::task::spawn_blocking(start).await.expect("the server starts");
    let stores = [(); 2].map(|()| {
        let settings = Settings {
            schema: schema.clone(),
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
