//! The PostgreSQL store's configuration table and driver.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::Store;
use super::settings::{Replication, Settings};
use crate::backend::driver::{Apply, Driver, InvalidSetting, OpenStore, StoreError};
use crate::backend::login::LoginConfig;
use crate::backend::login_files::LoginFileError;
use crate::backend::record::QUEUE_LIMIT;
use crate::backend::{Backend, Guarantee};
use crate::name::Namespace;
use crate::schema::{Count, Period, section};

/// The environment variable with the password, if there is no file.
const PASSWORD: &str = "FENCEPOST_POSTGRES_PASSWORD";
/// A second, in milliseconds.
const SECOND: u64 = 1000;
/// The longest name of PostgreSQL, in bytes.
const MAX_NAME: usize = 63;

section! {
    /// A PostgreSQL database, 14 or newer. Namespaces with the same settings share its connections.
    pub struct PostgresSection {
        /// The servers: host:port, the preferred one first. The one that is the primary is used.
        servers: Vec<String> = vec!["127.0.0.1:5432".to_owned()],
        /// The database. It should have no other use: a transaction that stays open in it makes all
        /// steps slow.
        database: String = "fencepost".to_owned(),
        /// The schema of the tables, which must exist.
        schema: String = "public".to_owned(),
        /// What may be promoted if the primary fails: "single" nothing, "synchronous" a standby that
        /// has each commit before it is answered, "asynchronous" a standby that may lack the last
        /// ones. The guarantee of "asynchronous" is AP; after a promotion nothing is granted for the
        /// longest ttl_max or until `Admit`.
        replication: String = "single".to_owned(),
        /// Whether the servers are poolers that give each transaction another session, such as
        /// pgbouncer. Nothing is prepared then, and other servers' commits are found by a look each
        /// 20 ms.
        pooler: bool = false,
        /// Whether missing tables are created.
        create_tables: bool = true,
        /// How many connections send batches. Two more send what may be lost in a crash, and listen.
        connections: Count<1, 16> = Count::nearest(2),
        /// How long a statement may take.
        timeout: Period<100, { 9 * SECOND }> = Period::nearest(Duration::from_secs(3)),
        /// How long a connection may take to be established.
        connect_timeout: Period<100, { 9 * SECOND }> = Period::nearest(Duration::from_secs(2)),
        /// The role of PostgreSQL.
        user: String = "fencepost".to_owned(),
        /// The file with the password. Absent: the variable FENCEPOST_POSTGRES_PASSWORD.
        password_file: Option<PathBuf> = None,
        /// The file with the certificates (PEM) of the servers' authorities. Present: the connections use TLS.
        ca_file: Option<PathBuf> = None,
        /// The file with the client certificate (PEM).
        cert_file: Option<PathBuf> = None,
        /// The file with the key (PEM) of that certificate.
        key_file: Option<PathBuf> = None,
        /// The name in the servers' certificates, if it is not that of the server.
        server_name: Option<String> = None,
    }
}

/// The PostgreSQL store.
#[derive(Debug)]
pub struct PostgresDriver;

/// The settings of a PostgreSQL store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresConfig {
    settings: Settings,
    login: LoginConfig,
}

impl Driver for PostgresDriver {
    const KIND: &'static str = "postgres";
    const SERVERS: Option<&'static str> = Some("PostgreSQL");
    const QUEUE_LIMIT: u32 = QUEUE_LIMIT;
    type Section = PostgresSection;
    type Settings = PostgresConfig;

    fn check(section: &PostgresSection, _: Option<&Path>) -> Result<PostgresConfig, InvalidSetting> {
        let refuse = |key, problem: &str| Err(InvalidSetting::new(key, problem));
        if section.servers.is_empty() || !section.servers.iter().all(|server| is_server(server)) {
            return refuse("servers", "must be at least one, each host:port");
        }
        if section.database.is_empty() || section.database.len() > MAX_NAME || section.database.contains('\0') {
            return refuse("database", "must be 1 to 63 bytes");
        }
        if !is_plain(&section.schema) {
            let problem = "must be 1 to 63 characters [a-z0-9_], and not begin with a digit";
            return refuse("schema", problem);
        }
        if section.user.is_empty() || section.user.contains('\0') {
            return refuse("user", "must not be empty");
        }
        let replication = replication(&section.replication)?;
        if section.pooler && replication != Replication::Single {
            let problem = "must be false unless replication is \"single\": a pooler hides a promotion";
            return refuse("pooler", problem);
        }
        if section.server_name.is_some() && section.ca_file.is_none() {
            return refuse("server_name", "must come with a ca_file");
        }
        let login = LoginConfig {
            user: Some(section.user.clone()),
            password_file: section.password_file.clone(),
            password_variable: PASSWORD,
            ca_file: section.ca_file.clone(),
            cert_file: section.cert_file.clone(),
            key_file: section.key_file.clone(),
            server_name: section.server_name.clone(),
        };
        Ok(PostgresConfig {
            settings: Settings {
                database: section.database.clone(),
                schema: section.schema.clone(),
                replication,
                pooler: section.pooler,
                create_tables: section.create_tables,
                connections: section.connections.get() as usize,
                timeout: section.timeout.get(),
                connect_timeout: section.connect_timeout.get(),
                ..Settings::new(section.servers.clone())
            },
            login: login.checked()?,
        })
    }

    fn check_files(settings: &PostgresConfig) -> Result<(), InvalidSetting> {
        settings.login.check_files()
    }

    fn guarantee(settings: &PostgresConfig) -> Guarantee {
        settings.settings.replication.guarantee()
    }

    fn open(settings: &PostgresConfig, longest_ttl: Duration) -> Result<Arc<dyn OpenStore>, StoreError> {
        let credentials = settings.login.credentials().map_err(unusable)?;
        let own = Settings {
            longest_ttl,
            ..settings.settings.clone()
        };
        Ok(Arc::new(Opened {
            store: Store::open(own, credentials).map_err(|error| StoreError::new("its PostgreSQL", error))?,
            login: settings.login.clone(),
        }))
    }
}

/// An open store, with the paths of its files.
#[derive(Debug)]
struct Opened {
    store: Store,
    login: LoginConfig,
}

impl OpenStore for Opened {
    fn namespace(&self, namespace: &Namespace, _: u32) -> Arc<dyn Backend> {
        self.store.namespace(namespace)
    }

    fn read_credentials(&self) -> Result<Option<Apply>, StoreError> {
        let (store, credentials) = (self.store.clone(), self.login.credentials().map_err(unusable)?);
        Ok(Some(Box::new(move || store.set_credentials(credentials))))
    }
}

fn unusable(error: LoginFileError) -> StoreError {
    StoreError::new("its PostgreSQL", error)
}

fn replication(name: &str) -> Result<Replication, InvalidSetting> {
    match name {
        "single" => Ok(Replication::Single),
        "synchronous" => Ok(Replication::Synchronous),
        "asynchronous" => Ok(Replication::Asynchronous),
        other => {
            let problem = format!("must be \"single\", \"synchronous\" or \"asynchronous\", not {other:?}");
            Err(InvalidSetting::new("replication", problem))
        }
    }
}

fn is_server(server: &str) -> bool {
    let parts = server.rsplit_once(':');
    parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// Whether a name needs no quotes, so that it is the same in each tool.
fn is_plain(name: &str) -> bool {
    let rest = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.len() <= MAX_NAME
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.chars().all(rest)
}
