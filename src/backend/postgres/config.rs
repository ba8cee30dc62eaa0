//! The PostgreSQL store's configuration table and settings.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Postgres;
use crate::backend::driver::{InvalidSetting, StoreConfig, StoreTable};
use crate::backend::login::login_config;
use crate::backend::sql::config::{SECOND, checked, replication};
use crate::backend::sql::settings::{Replication, Settings};
use crate::schema::{Count, Period, section};

/// The environment variable with the password, if there is no file.
const PASSWORD: &str = "FENCEPOST_POSTGRES_PASSWORD";
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
        /// What may be promoted if the primary fails: "single" nothing, so that one server is named;
        /// "synchronous" a standby that has each commit before it is answered; "asynchronous" a standby
        /// that may lack the last ones, so that its guarantee is AP. After a promotion nothing is granted
        /// for the longest ttl_max or until `Admit`, unless all synchronous standbys had to confirm.
        replication: String = "single".to_owned(),
        /// Whether the servers are poolers that give each transaction another session, such as
        /// pgbouncer. Nothing is prepared then, and other servers' commits are found by polls each 20
        /// to 250 ms.
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

impl StoreTable for PostgresSection {
    fn check(&self, data_dir: Option<&Path>) -> Result<StoreConfig, InvalidSetting> {
        let refuse = |key, problem: &str| Err(InvalidSetting::new(key, problem));
        if self.database.is_empty() || self.database.len() > MAX_NAME || self.database.contains('\0') {
            return refuse("database", "must be 1 to 63 bytes");
        }
        if !is_plain(&self.schema) {
            let problem = "must be 1 to 63 characters [a-z0-9_], and not begin with a digit";
            return refuse("schema", problem);
        }
        let replication = replication(&self.replication, true)?;
        if self.pooler && replication != Replication::Single {
            let problem = "must be false unless replication is \"single\": a pooler hides a promotion";
            return refuse("pooler", problem);
        }
        let settings = Settings {
            database: self.database.clone(),
            schema: self.schema.clone(),
            replication,
            pooler: self.pooler,
            create_tables: self.create_tables,
            connections: self.connections.get() as usize,
            timeout: self.timeout.get(),
            connect_timeout: self.connect_timeout.get(),
            ..Settings::new(self.servers.clone())
        };
        checked::<Postgres>(settings, login_config!(self, PASSWORD), data_dir)
    }
}

/// Whether a name needs no quotes, so that it is the same in each tool.
fn is_plain(name: &str) -> bool {
    let rest = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.len() <= MAX_NAME
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.chars().all(rest)
}
