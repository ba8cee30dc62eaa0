//! Which namespace has which backend: the only room that knows every one of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::backend::{Backend, Guarantee};
use crate::config::{BackendConfig, Config};
use crate::error::Error;
use crate::locks::Locks;
use crate::name::Namespace;

/// The table of namespaces. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Namespaces {
    table: Arc<BTreeMap<String, Locks>>,
}

/// Why the namespaces of a configuration could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The embedded store of a namespace.
    #[cfg(feature = "embedded")]
    #[error("namespace {namespace}: the embedded store at {path:?}: {source}")]
    Embedded {
        /// The first namespace that uses it.
        namespace: Namespace,
        /// Its file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        source: Box<crate::backend::embedded::OpenError>,
    },
    /// The Redis servers of a namespace.
    #[cfg(any(feature = "redis", feature = "redlock"))]
    #[error("namespace {namespace}: its Redis: {source}")]
    Redis {
        /// The first namespace that uses it.
        namespace: Namespace,
        /// What is wrong with its settings.
        source: crate::config::RedisSettingsError,
    },
    /// The etcd cluster of a namespace.
    #[cfg(feature = "etcd")]
    #[error("namespace {namespace}: its etcd: {source}")]
    Etcd {
        /// The first namespace that uses it.
        namespace: Namespace,
        /// Which of its files cannot be read.
        source: crate::config::UnreadableFile,
    },
    /// A namespace demands more than its backend gives.
    #[error("namespace {namespace}: guarantee must be {}, which is what the backend gives, not {}", offered.word(), demanded.word())]
    Guarantee {
        /// The namespace.
        namespace: Namespace,
        /// What it demands.
        demanded: Guarantee,
        /// What it would get.
        offered: Guarantee,
    },
}

impl Namespaces {
    /// A table of these.
    pub fn new(all: Vec<Locks>) -> Self {
        let named = all.into_iter().map(|locks| (locks.namespace().to_string(), locks));
        Self {
            table: Arc::new(named.collect()),
        }
    }

    /// The locks of a namespace.
    ///
    /// # Errors
    /// [`Error::InvalidField`] for a bad spelling, [`Error::NamespaceNotFound`] for an unknown one.
    pub fn get(&self, namespace: &str) -> Result<&Locks, Error> {
        if let Some(locks) = self.table.get(namespace) {
            return Ok(locks);
        }
        Namespace::new(namespace)?;
        Err(Error::NamespaceNotFound {
            namespace: namespace.into(),
        })
    }

    /// All, by name.
    pub fn all(&self) -> impl Iterator<Item = &Locks> {
        self.table.values()
    }

    /// Ends every waiting acquire and every watch with DRAINING, and refuses new acquires.
    pub fn drain(&self) {
        self.all().for_each(Locks::drain);
    }

    /// Finishes what is under way and lets go of the stores.
    pub async fn close(&self) {
        futures::future::join_all(self.all().map(Locks::close)).await;
    }
}

/// Opens the backends of a configuration. Namespaces with the same settings share a store.
///
/// # Errors
/// [`OpenError`] for the first namespace that cannot be served; what was opened is closed again.
pub async fn open(config: &Config) -> Result<Namespaces, OpenError> {
    let mut stores = Stores::of(config);
    let mut opened = Vec::new();
    for (namespace, settings) in &config.namespaces {
        let backend = stores.backend(namespace, &settings.backend).and_then(|backend| {
            let offered = backend.offers().guarantee;
            match settings.guarantee {
                Some(demanded) if demanded > offered => Err(OpenError::Guarantee {
                    namespace: namespace.clone(),
                    demanded,
                    offered,
                }),
                _ => Ok(backend),
            }
        });
        match backend {
            Ok(backend) => opened.push(Locks::new(namespace.clone(), settings.limits.clone(), backend)),
            Err(error) => {
                Namespaces::new(opened).close().await;
                return Err(error);
            }
        }
    }
    Ok(Namespaces::new(opened))
}

/// The stores that namespaces are cut from, while they are opened.
struct Stores {
    #[cfg(feature = "embedded")]
    embedded: BTreeMap<crate::config::EmbeddedPath, crate::backend::embedded::Store>,
    #[cfg(feature = "redis")]
    redis: BTreeMap<crate::config::RedisConfig, crate::backend::redis::Store>,
    #[cfg(feature = "redlock")]
    redlock: BTreeMap<crate::config::RedlockConfig, crate::backend::redlock::Store>,
    /// The longest TTL of any namespace.
    #[cfg(any(feature = "redis", feature = "redlock"))]
    longest_ttl: std::time::Duration,
    #[cfg(feature = "etcd")]
    etcd: BTreeMap<crate::config::EtcdConfig, crate::backend::etcd::Store>,
}

impl Stores {
    #[allow(unused_variables, reason = "only some stores need to know of all namespaces")]
    fn of(config: &Config) -> Self {
        Self {
            #[cfg(feature = "embedded")]
            embedded: BTreeMap::new(),
            #[cfg(feature = "redis")]
            redis: BTreeMap::new(),
            #[cfg(feature = "redlock")]
            redlock: BTreeMap::new(),
            #[cfg(any(feature = "redis", feature = "redlock"))]
            longest_ttl: config
                .namespaces
                .values()
                .map(|one| one.limits.ttl_max)
                .max()
                .unwrap_or_default(),
            #[cfg(feature = "etcd")]
            etcd: BTreeMap::new(),
        }
    }

    #[allow(unused_variables, reason = "a build without any backend has nothing to open")]
    fn backend(&mut self, namespace: &Namespace, settings: &BackendConfig) -> Result<Arc<dyn Backend>, OpenError> {
        // By value: a build without any backend has no case here.
        match *settings {
            #[cfg(feature = "embedded")]
            BackendConfig::Embedded { ref path, claim_limit } => {
                let store = self.embedded(namespace, path)?;
                Ok(store.namespace_of(namespace.clone(), claim_limit))
            }
            #[cfg(feature = "redis")]
            BackendConfig::Redis(ref settings) => Ok(self.redis(namespace, settings)?.namespace(namespace)),
            #[cfg(feature = "etcd")]
            BackendConfig::Etcd(ref settings) => Ok(self.etcd(namespace, settings)?.namespace(namespace)),
            #[cfg(feature = "redlock")]
            BackendConfig::Redlock(ref settings) => Ok(self.redlock(namespace, settings)?.namespace(namespace)),
        }
    }

    #[cfg(feature = "etcd")]
    fn etcd(
        &mut self,
        namespace: &Namespace,
        config: &crate::config::EtcdConfig,
    ) -> Result<crate::backend::etcd::Store, OpenError> {
        if let Some(store) = self.etcd.get(config) {
            return Ok(store.clone());
        }
        let files = config.read().map_err(|source| OpenError::Etcd {
            namespace: namespace.clone(),
            source,
        })?;
        let store = crate::backend::etcd::Store::open(etcd_settings(config, files));
        self.etcd.insert(config.clone(), store.clone());
        Ok(store)
    }

    #[cfg(feature = "redis")]
    fn redis(
        &mut self,
        namespace: &Namespace,
        config: &crate::config::RedisConfig,
    ) -> Result<crate::backend::redis::Store, OpenError> {
        if let Some(store) = self.redis.get(config) {
            return Ok(store.clone());
        }
        let settings = config.settings(self.longest_ttl).map_err(|source| OpenError::Redis {
            namespace: namespace.clone(),
            source,
        })?;
        let store = crate::backend::redis::Store::open(settings);
        self.redis.insert(config.clone(), store.clone());
        Ok(store)
    }

    #[cfg(feature = "redlock")]
    fn redlock(
        &mut self,
        namespace: &Namespace,
        config: &crate::config::RedlockConfig,
    ) -> Result<crate::backend::redlock::Store, OpenError> {
        if let Some(store) = self.redlock.get(config) {
            return Ok(store.clone());
        }
        let quorum = config.quorum(self.longest_ttl).map_err(|source| OpenError::Redis {
            namespace: namespace.clone(),
            source,
        })?;
        let store = crate::backend::redlock::Store::open(quorum);
        self.redlock.insert(config.clone(), store.clone());
        Ok(store)
    }

    #[cfg(feature = "embedded")]
    fn embedded(
        &mut self,
        namespace: &Namespace,
        path: &crate::config::EmbeddedPath,
    ) -> Result<crate::backend::embedded::Store, OpenError> {
        use crate::backend::embedded::Store;
        use crate::config::EmbeddedPath;
        if let Some(store) = self.embedded.get(path) {
            return Ok(store.clone());
        }
        let store = match path {
            EmbeddedPath::Memory => Store::memory(),
            EmbeddedPath::File(file) => Store::open(file).map_err(|source| OpenError::Embedded {
                namespace: namespace.clone(),
                path: file.clone(),
                source: Box::new(source),
            })?,
        };
        self.embedded.insert(path.clone(), store.clone());
        Ok(store)
    }
}

/// What an etcd is opened with.
#[cfg(feature = "etcd")]
fn etcd_settings(
    config: &crate::config::EtcdConfig,
    files: crate::config::EtcdFiles,
) -> crate::backend::etcd::settings::Settings {
    use crate::backend::etcd::settings::{Login, Settings, Tls};
    Settings {
        endpoints: config.endpoints.clone(),
        root: config.root.clone(),
        timeout: config.timeout,
        connect_timeout: config.connect_timeout,
        session_ttl: config.session_ttl,
        login: config.user.clone().map(|user| Login {
            user,
            password: files.password,
        }),
        tls: files.authority.map(|authority| Tls {
            authority,
            identity: files.identity,
            server_name: config.server_name.clone(),
        }),
    }
}
