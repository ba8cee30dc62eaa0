//! The RedLock store's configuration table and settings.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::Store;
use super::settings::Quorum;
use crate::backend::driver::{
    InvalidSetting, OpenStore, Opened, StoreConfig, StoreError, StoreIdentity, StoreSettings, StoreTable,
};
use crate::backend::login_files::SettingError;
use crate::backend::redis_server::config::{self, Login, ServerConfig};
use crate::backend::redis_server::credentials::{Access, Credentials};
use crate::backend::redis_server::settings::connection_info;
use crate::backend::{Backend, Guarantee};
use crate::name::Namespace;
use crate::schema::{Count, Period, section};

/// A second, in milliseconds.
const SECOND: u64 = 1000;

section! {
    /// Several independent Redis masters, of which a majority decides. Namespaces with the same
    /// settings share their connections.
    pub struct RedlockSection {
        /// The URLs of 3, 5 or 7 nodes: redis://, rediss:// or unix://, without user and password.
        nodes: Vec<String> = (6379..6382).map(|port| format!("redis://127.0.0.1:{port}")).collect(),
        /// The ACL user. Absent: the default user.
        user: Option<String> = None,
        /// The file with the password. A trailing line break is ignored.
        password_file: Option<PathBuf> = None,
        /// The environment variable with the password.
        password_env: Option<String> = None,
        /// The file with the certificates (PEM) of the authorities of rediss:// nodes. Absent: the
        /// authorities that this machine trusts.
        ca_file: Option<PathBuf> = None,
        /// The file with the client certificate (PEM) for rediss:// nodes.
        cert_file: Option<PathBuf> = None,
        /// The file with the key (PEM) of that certificate.
        key_file: Option<PathBuf> = None,
        /// The number of the database.
        database: Count<0, 1_000_000> = Count::nearest(0),
        /// The prefix of every key.
        prefix: String = "fencepost".to_owned(),
        /// How an empty node is treated when a server starts: "quarantine" does not count its
        /// replies for the longest ttl_max or until `Admit`, because it may have lost its data;
        /// "admit" treats it as a new one if all nodes are empty. A server that has granted leases
        /// there, as data_dir or another server says, does not treat it as new.
        on_empty_store: String = "quarantine".to_owned(),
        /// How long a node may take to reply. The replies of slower nodes are not counted. Should
        /// be small compared to the TTLs.
        node_timeout: Period<10, { 2 * SECOND }> = Period::nearest(Duration::from_millis(200)),
    }
}

/// The settings of a RedLock store. Namespaces with the same settings share its connections.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RedlockConfig {
    nodes: Vec<String>,
    servers: ServerConfig,
    node_timeout: Duration,
}

impl StoreTable for RedlockSection {
    fn check(&self, data_dir: Option<&Path>) -> Result<StoreConfig, InvalidSetting> {
        let refuse = |problem: &str| Err(InvalidSetting::new("nodes", problem));
        if !matches!(self.nodes.len(), 3 | 5 | 7) {
            return refuse("must be 3, 5 or 7 URLs");
        }
        if self.nodes.iter().collect::<BTreeSet<_>>().len() < self.nodes.len() {
            return refuse("must be different servers: a node must not vote twice");
        }
        Ok(StoreConfig::new(RedlockConfig {
            nodes: self.nodes.clone(),
            servers: config::keys!(self.nodes).check(data_dir, || Ok(Login::default()))?,
            node_timeout: self.node_timeout.get(),
        }))
    }
}

impl StoreSettings for RedlockConfig {
    fn check_files(&self) -> Result<(), InvalidSetting> {
        self.servers.credentials().map(drop).map_err(InvalidSetting::from)
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::Ap
    }

    fn identity(&self) -> Option<StoreIdentity> {
        Some(self.servers.identity("redlock", &self.nodes))
    }

    fn open(&self, longest_ttl: Duration) -> Result<Arc<dyn OpenStore>, StoreError> {
        let servers = self.servers.clone();
        let read = move || Ok(servers.credentials()?);
        let open = |access| Ok(Store::open(self.quorum(longest_ttl, access)?));
        let namespace = |store: &Store, name: &Namespace| -> Arc<dyn Backend> { store.namespace(name) };
        Opened::with(read, open, namespace, Store::set_credentials)
    }

    fn servers(&self) -> Option<&'static str> {
        Some(config::SERVERS)
    }
}

impl RedlockConfig {
    fn quorum(&self, longest_ttl: Duration, access: Access) -> Result<Quorum, SettingError> {
        let nodes = self.nodes.iter().map(|node| connection_info(node));
        // The URLs have been checked in `check`.
        let nodes = nodes
            .collect::<Result<_, _>>()
            .map_err(|error| SettingError::new("nodes", error))?;
        let mut quorum = Quorum::new(nodes);
        quorum.credentials = Credentials::new(access);
        quorum.prefix.clone_from(&self.servers.prefix);
        quorum.longest_ttl = longest_ttl;
        quorum.node_timeout = self.node_timeout;
        quorum.on_empty_store = self.servers.on_empty_store;
        quorum.record = self.servers.record("redlock");
        Ok(quorum)
    }
}
