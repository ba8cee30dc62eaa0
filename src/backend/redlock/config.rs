//! The RedLock store in the configuration: its table, and what it is opened with.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::Store;
use crate::backend::driver::{Apply, Driver, InvalidSetting, OpenStore, StoreError};
use crate::backend::redis_server::config::{self, Keys, Login, SettingError, Tls, unusable};
use crate::backend::redis_server::credentials::{Access, Credentials};
use crate::backend::redis_server::settings::{Quorum, connection_info};
use crate::backend::{Backend, Guarantee};
use crate::name::Namespace;
use crate::schema::{Count, Period, section};

/// In milliseconds.
const SECOND: u64 = 1000;

section! {
    /// Several Redis masters that know nothing of each other, of which a majority decides. Namespaces
    /// with the same settings share their connections.
    pub struct RedlockSection {
        /// Where they are: 3, 5 or 7 of redis://, rediss:// or unix://, without a user or a password.
        nodes: Vec<String> = (6379..6382).map(|port| format!("redis://127.0.0.1:{port}")).collect(),
        /// The ACL user; without it, the default one.
        user: Option<String> = None,
        /// The file with the password; an end of line in it does not count.
        password_file: Option<PathBuf> = None,
        /// The environment variable with the password.
        password_env: Option<String> = None,
        /// The file with the certificates (PEM) of those who may sign for the nodes behind
        /// rediss://; without it, those whom this machine trusts.
        ca_file: Option<PathBuf> = None,
        /// The file with the certificate (PEM) that this server shows there.
        cert_file: Option<PathBuf> = None,
        /// The file with its key (PEM).
        key_file: Option<PathBuf> = None,
        /// The database.
        database: Count<0, 1_000_000> = Count::nearest(0),
        /// What every key begins with.
        prefix: String = "fencepost".to_owned(),
        /// What an empty node means when a server starts: "quarantine" takes no vote of it for the
        /// longest ttl_max or until `Admit`, for it may have lost its memory; "admit" takes it for
        /// a new one.
        on_empty_store: String = "quarantine".to_owned(),
        /// How long a node has for an answer; one that takes longer does not vote. Small beside the TTLs.
        node_timeout: Period<10, { 2 * SECOND }> = Period::nearest(Duration::from_millis(200)),
    }
}

/// The RedLock store.
#[derive(Debug)]
pub struct RedlockDriver;

/// The settings of a RedLock store. Namespaces with the same ones share its connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedlockConfig {
    nodes: Vec<String>,
    login: Login,
    database: u32,
    tls: Tls,
    prefix: String,
    admit_first: bool,
    node_timeout: Duration,
}

impl Driver for RedlockDriver {
    const KIND: &'static str = "redlock";
    const SERVERS: Option<&'static str> = Some(config::SERVERS);
    const RENAMED_KEYS: &'static [(&'static str, &'static str)] = &[("first_start", "on_empty_store")];
    type Section = RedlockSection;
    type Settings = RedlockConfig;

    fn check(section: &RedlockSection, _: Option<&Path>) -> Result<RedlockConfig, InvalidSetting> {
        let refuse = |problem: &str| Err(InvalidSetting::new("nodes", problem));
        if !matches!(section.nodes.len(), 3 | 5 | 7) {
            return refuse("must be 3, 5 or 7 URLs");
        }
        if section.nodes.iter().collect::<BTreeSet<_>>().len() < section.nodes.len() {
            return refuse("must be different servers: a node must not vote twice");
        }
        let keys = keys_of(section);
        keys.check_urls()?;
        Ok(RedlockConfig {
            nodes: section.nodes.clone(),
            login: keys.login()?,
            database: section.database.get(),
            tls: keys.tls()?,
            prefix: section.prefix.clone(),
            admit_first: keys.admits_first()?,
            node_timeout: section.node_timeout.get(),
        })
    }

    fn check_files(settings: &RedlockConfig) -> Result<(), InvalidSetting> {
        settings.credentials().map(drop).map_err(InvalidSetting::from)
    }

    fn guarantee(_: &RedlockConfig) -> Guarantee {
        Guarantee::Ap
    }

    fn open(settings: &RedlockConfig, longest_ttl: Duration) -> Result<Arc<dyn OpenStore>, StoreError> {
        Ok(Arc::new(Opened {
            store: Store::open(settings.quorum(longest_ttl)?),
            config: settings.clone(),
        }))
    }
}

/// A store, and the settings that name its files.
#[derive(Debug)]
struct Opened {
    store: Store,
    config: RedlockConfig,
}

impl OpenStore for Opened {
    fn namespace(&self, namespace: &Namespace, _: u32) -> Arc<dyn Backend> {
        self.store.namespace(namespace)
    }

    fn read_credentials(&self) -> Result<Option<Apply>, StoreError> {
        let (store, access) = (self.store.clone(), self.config.credentials()?);
        Ok(Some(Box::new(move || store.prove_by(access))))
    }
}

impl RedlockConfig {
    fn credentials(&self) -> Result<Access, SettingError> {
        config::credentials(&self.login, self.database, &Login::default(), &self.tls)
    }

    fn quorum(&self, longest_ttl: Duration) -> Result<Quorum, SettingError> {
        let nodes = self.nodes.iter().map(|node| connection_info(node));
        // They have been checked before.
        let nodes = nodes
            .collect::<Result<_, _>>()
            .map_err(|error| unusable("nodes", error))?;
        let mut quorum = Quorum::new(nodes);
        quorum.proof = Credentials::new(self.credentials()?);
        quorum.prefix.clone_from(&self.prefix);
        quorum.longest_ttl = longest_ttl;
        quorum.node_timeout = self.node_timeout;
        quorum.on_empty_store = config::on_empty_store(self.admit_first);
        Ok(quorum)
    }
}

fn keys_of(section: &RedlockSection) -> Keys<'_> {
    Keys {
        servers: ("nodes", &section.nodes),
        user: &section.user,
        password_file: &section.password_file,
        password_env: &section.password_env,
        ca_file: &section.ca_file,
        cert_file: &section.cert_file,
        key_file: &section.key_file,
        prefix: &section.prefix,
        on_empty_store: &section.on_empty_store,
    }
}
