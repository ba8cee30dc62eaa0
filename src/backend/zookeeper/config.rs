//! The ZooKeeper store's configuration table and settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::Store;
use super::settings::Settings;
use crate::backend::Guarantee;
use crate::backend::driver::{
    InvalidSetting, OpenStore, Opened, StoreConfig, StoreError, StoreIdentity, StoreSettings, StoreTable, is_server,
};
use crate::backend::login::{LoginConfig, login_config};
use crate::schema::{Period, section};

/// The environment variable with the password, if there is no file.
const PASSWORD: &str = "FENCEPOST_ZOOKEEPER_PASSWORD";
/// A second, in milliseconds.
const SECOND: u64 = 1000;

section! {
    /// A ZooKeeper ensemble, 3.6 or newer. Each namespace has a session of its own.
    pub struct ZookeeperSection {
        /// The servers: host:port, the preferred one first.
        servers: Vec<String> = vec!["127.0.0.1:2181".to_owned()],
        /// The path that every node is under. The root of another deployment must not be below it.
        root: String = "/fencepost".to_owned(),
        /// How long a request may take.
        timeout: Period<100, { 9 * SECOND }> = Period::nearest(Duration::from_secs(3)),
        /// How long a connection may take to be established.
        connect_timeout: Period<100, { 9 * SECOND }> = Period::nearest(Duration::from_secs(2)),
        /// How long the waiting claims of a failed server stay in their queues. The servers may raise it.
        session_timeout: Period<{ 2 * SECOND }, { 8 * SECOND }> = Period::nearest(Duration::from_secs(6)),
        /// The user of the digest scheme. With a user, only that user may read and change the nodes.
        user: Option<String> = None,
        /// The file with the password. Absent: the variable FENCEPOST_ZOOKEEPER_PASSWORD.
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

/// The settings of a ZooKeeper store.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ZookeeperConfig {
    settings: Settings,
    login: LoginConfig,
}

impl StoreTable for ZookeeperSection {
    fn check(&self, _: Option<&Path>) -> Result<StoreConfig, InvalidSetting> {
        let refuse = |key, problem: &str| Err(InvalidSetting::new(key, problem));
        if self.servers.is_empty() || !self.servers.iter().all(|server| is_server(server)) {
            return refuse("servers", "must be at least one, each host:port");
        }
        if !is_root(&self.root) {
            let problem = "must begin with \"/\", and its parts must be letters, digits, \"-\", \"_\" and \".\"";
            return refuse("root", problem);
        }
        if self
            .user
            .as_ref()
            .is_some_and(|user| user.is_empty() || user.contains(':'))
        {
            return refuse("user", "must not be empty or hold a colon");
        }
        Ok(StoreConfig::new(ZookeeperConfig {
            settings: Settings {
                servers: self.servers.clone(),
                root: self.root.clone(),
                timeout: self.timeout.get(),
                connect_timeout: self.connect_timeout.get(),
                session_timeout: self.session_timeout.get(),
                ..Settings::new(Vec::new())
            },
            login: login_config!(self, PASSWORD).checked()?,
        }))
    }
}

impl StoreSettings for ZookeeperConfig {
    fn check_files(&self) -> Result<(), InvalidSetting> {
        self.login.check_files()
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::Cp
    }

    fn identity(&self) -> Option<StoreIdentity> {
        let Settings { root, servers, .. } = &self.settings;
        Some(StoreIdentity::new(format!("zookeeper, root {root}"), servers))
    }

    fn open(&self, _: Duration) -> Result<Arc<dyn OpenStore>, StoreError> {
        let login = self.login.clone();
        let read = move || {
            login
                .credentials()
                .map_err(|error| StoreError::new("its ZooKeeper", error))
        };
        let open = |credentials| Ok(Store::open(self.settings.clone(), credentials));
        Opened::with(read, open, Store::namespace, Store::set_credentials)
    }
}

/// Whether a root is a path of ZooKeeper.
fn is_root(root: &str) -> bool {
    let is_plain = |part: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && part != "." && part != ".." && part.chars().all(plain)
    };
    let parts = root.strip_prefix('/').map(|rest| rest.split('/').collect::<Vec<_>>());
    parts.is_some_and(|parts| parts[0] != "zookeeper" && parts.into_iter().all(is_plain))
}
