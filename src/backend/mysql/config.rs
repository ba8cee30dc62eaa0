//! The MySQL store's configuration table and settings.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::MySql;
use crate::backend::driver::{InvalidSetting, StoreConfig, StoreTable};
use crate::backend::login::login_config;
use crate::backend::sql::config::{SECOND, checked, replication};
use crate::backend::sql::settings::Settings;
use crate::schema::{Count, Period, section};

/// The environment variable with the password, if there is no file.
const PASSWORD: &str = "FENCEPOST_MYSQL_PASSWORD";
/// The longest name of a database, in bytes.
const MAX_NAME: usize = 64;

section! {
    /// A database of MariaDB, 10.6 or newer, or MySQL, 8.0 or newer. Namespaces with the same settings
    /// share its connections.
    pub struct MySqlSection {
        /// The servers: host:port, the preferred one first. The first one that is not read-only is used.
        servers: Vec<String> = vec!["127.0.0.1:3306".to_owned()],
        /// The database.
        database: String = "fencepost".to_owned(),
        /// What may be promoted if the primary fails: "single" nothing, "asynchronous" a replica that
        /// may lack the last commits. The guarantee of "asynchronous" is AP; after a promotion nothing
        /// is granted for the longest ttl_max or until `Admit`.
        replication: String = "single".to_owned(),
        /// Whether missing tables are created.
        create_tables: bool = true,
        /// How many connections send batches. One more checks the server.
        connections: Count<1, 16> = Count::nearest(2),
        /// How long a statement may take. It waits a third of this, but at least 1 s, for a locked row.
        timeout: Period<{ 2 * SECOND }, { 9 * SECOND }> = Period::nearest(Duration::from_secs(3)),
        /// How long a connection may take to be established.
        connect_timeout: Period<100, { 9 * SECOND }> = Period::nearest(Duration::from_secs(2)),
        /// The user of MySQL.
        user: String = "fencepost".to_owned(),
        /// The file with the password. Absent: the variable FENCEPOST_MYSQL_PASSWORD.
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

impl StoreTable for MySqlSection {
    fn check(&self, data_dir: Option<&Path>) -> Result<StoreConfig, InvalidSetting> {
        if self.database.is_empty() || self.database.len() > MAX_NAME || self.database.contains('\0') {
            return Err(InvalidSetting::new("database", "must be 1 to 64 bytes"));
        }
        // A semi-synchronous primary goes on without its replica.
        let replication = replication(&self.replication, false)?;
        let settings = Settings {
            database: self.database.clone(),
            replication,
            create_tables: self.create_tables,
            connections: self.connections.get() as usize,
            timeout: self.timeout.get(),
            connect_timeout: self.connect_timeout.get(),
            ..Settings::new(self.servers.clone())
        };
        checked::<MySql>(settings, login_config!(self, PASSWORD), data_dir)
    }
}
