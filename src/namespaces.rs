//! Which namespace has which backend: the only room that knows every one of them.
//!
//! [`Namespaces`] is the table that calls look into. [`Stores`] opened it, and changes it when the
//! configuration does.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::backend::{Backend, Guarantee};
use crate::config::{BackendConfig, Config, NamespaceConfig};
use crate::limits::Limits;
use crate::locks::Locks;
use crate::metrics::{Measured, Metrics};
use crate::name::Namespace;

mod store_credentials;
mod table;

use self::store_credentials::StoreCredentials;
use self::table::Table;
pub use self::table::{Namespaces, Served};

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
        /// Which of its files cannot be used.
        source: crate::config::EtcdFileError,
    },
    /// A longer TTL than those with which a Redis was opened.
    #[cfg(any(feature = "redis", feature = "redlock"))]
    #[error(
        "namespace {namespace}: ttl_max must stay at most {longest:?} while the server runs: a Redis was opened with that"
    )]
    LongerTtl {
        /// The namespace.
        namespace: Namespace,
        /// The longest of those before.
        longest: std::time::Duration,
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

#[cfg(any(feature = "redis", feature = "redlock"))]
impl OpenError {
    fn of_redis(namespace: &Namespace) -> impl Fn(crate::config::RedisSettingsError) -> Self + use<> {
        let namespace = namespace.clone();
        move |source| Self::Redis {
            namespace: namespace.clone(),
            source,
        }
    }
}

/// The stores that namespaces are cut from. Namespaces with the same settings share one.
#[derive(Debug)]
pub struct Stores {
    namespaces: Namespaces,
    /// What is served.
    current: BTreeMap<Namespace, NamespaceConfig>,
    #[cfg(feature = "embedded")]
    embedded: BTreeMap<crate::config::EmbeddedPath, crate::backend::embedded::Store>,
    #[cfg(feature = "redis")]
    redis: BTreeMap<crate::config::RedisConfig, crate::backend::redis::Store>,
    #[cfg(feature = "redlock")]
    redlock: BTreeMap<crate::config::RedlockConfig, crate::backend::redlock::Store>,
    /// The longest TTL of any namespace in a Redis.
    #[cfg(any(feature = "redis", feature = "redlock"))]
    longest_ttl: std::time::Duration,
    #[cfg(feature = "etcd")]
    etcd: BTreeMap<crate::config::EtcdConfig, crate::backend::etcd::Store>,
}

/// Opens the backends of a configuration, measured where there are metrics.
///
/// # Errors
/// [`OpenError`] for the first namespace that cannot be served; what was opened is closed again.
pub async fn open(config: &Config, metrics: Option<&Metrics>) -> Result<Stores, OpenError> {
    let mut stores = Stores::none(metrics);
    let change = stores.prepare(config).await?;
    stores.apply(change);
    Ok(stores)
}

/// A change of the table that is ready to be made.
#[derive(Debug)]
#[must_use = "what was opened for it must be applied or closed"]
pub struct TableChange {
    table: Table,
    opened: Vec<Served>,
    limits: Vec<(Locks, Limits)>,
    proofs: StoreCredentials,
    gone: Vec<Served>,
    next: BTreeMap<Namespace, NamespaceConfig>,
}

impl TableChange {
    /// The namespaces that it takes out of the table.
    pub fn gone(&self) -> Vec<Served> {
        self.gone.clone()
    }
}

impl Stores {
    fn none(metrics: Option<&Metrics>) -> Self {
        Self {
            namespaces: Namespaces::measured(metrics.cloned()),
            current: BTreeMap::new(),
            #[cfg(feature = "embedded")]
            embedded: BTreeMap::new(),
            #[cfg(feature = "redis")]
            redis: BTreeMap::new(),
            #[cfg(feature = "redlock")]
            redlock: BTreeMap::new(),
            #[cfg(any(feature = "redis", feature = "redlock"))]
            longest_ttl: std::time::Duration::ZERO,
            #[cfg(feature = "etcd")]
            etcd: BTreeMap::new(),
        }
    }

    /// The namespaces that are served.
    pub fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// Opens what a changed configuration has new, and reads what proves this server to the stores that stay;
    /// nothing is served otherwise yet. The backends of namespaces that stay must be the same.
    ///
    /// # Errors
    /// [`OpenError`] for the first namespace that cannot be served; what was opened is closed again.
    pub async fn prepare(&mut self, config: &Config) -> Result<TableChange, OpenError> {
        self.check_longest_ttl(config)?;
        let (old, next) = (self.namespaces.table(), &config.namespaces);
        let mut change = TableChange {
            table: Table::default(),
            opened: Vec::new(),
            limits: Vec::new(),
            // Of the stores that are open before: what is opened for the change has read its own.
            proofs: self.read_proofs(next)?,
            gone: Vec::new(),
            next: next.clone(),
        };
        for (namespace, settings) in next {
            let served = match old.get(namespace.as_str()) {
                Some(served) => check_guarantee(namespace, settings, served.locks.capabilities().guarantee).map(|()| {
                    change.limits.push((served.locks.clone(), settings.limits.clone()));
                    served.clone()
                }),
                None => self
                    .serve(namespace, settings)
                    .await
                    .inspect(|served| change.opened.push(served.clone())),
            };
            match served {
                Ok(served) => drop(change.table.insert(namespace.to_string(), served)),
                Err(error) => {
                    self.abandon(change).await;
                    return Err(error);
                }
            }
        }
        let gone = old.iter().filter(|(name, _)| !change.table.contains_key(*name));
        change.gone = gone.map(|(_, served)| served.clone()).collect();
        Ok(change)
    }

    /// Makes a change. The namespaces that are gone are no longer found, and still to be closed.
    pub fn apply(&mut self, change: TableChange) {
        for (locks, limits) in change.limits {
            locks.set_limits(limits);
        }
        change.proofs.apply();
        self.current = change.next;
        self.namespaces.replace(change.table);
        self.let_go();
    }

    /// Takes a change back that was not made.
    pub async fn abandon(&mut self, change: TableChange) {
        for served in change.opened {
            served.close().await;
        }
        self.let_go();
    }

    /// Forgets the stores of which no namespace is left.
    fn let_go(&mut self) {
        let used: Vec<&BackendConfig> = self.current.values().map(|one| &one.backend).collect();
        #[cfg(feature = "embedded")]
        self.embedded.retain(|own, _| {
            used.iter()
                .any(|one| matches!(one, BackendConfig::Embedded { path, .. } if path == own))
        });
        #[cfg(feature = "redis")]
        self.redis.retain(|own, _| {
            used.iter()
                .any(|one| matches!(one, BackendConfig::Redis(it) if **it == *own))
        });
        #[cfg(feature = "redlock")]
        self.redlock.retain(|own, _| {
            used.iter()
                .any(|one| matches!(one, BackendConfig::Redlock(it) if **it == *own))
        });
        #[cfg(feature = "etcd")]
        self.etcd.retain(|own, _| {
            used.iter()
                .any(|one| matches!(one, BackendConfig::Etcd(it) if **it == *own))
        });
        drop(used);
    }

    /// A Redis that lost its memory is not believed for as long as the longest TTL that it was opened
    /// with: what would be granted for longer would not be waited for. It is the longest of all namespaces
    /// in a Redis, for those with different settings may share one all the same.
    #[cfg(any(feature = "redis", feature = "redlock"))]
    fn check_longest_ttl(&mut self, config: &Config) -> Result<(), OpenError> {
        let of_redis = config.namespaces.iter().filter(|(_, one)| one.backend.is_redis());
        let Some((namespace, settings)) = of_redis.max_by_key(|(_, one)| one.limits.ttl_max) else {
            return Ok(());
        };
        let longest = settings.limits.ttl_max;
        if !self.current.values().any(|one| one.backend.is_redis()) {
            self.longest_ttl = longest;
        }
        if longest <= self.longest_ttl {
            return Ok(());
        }
        Err(OpenError::LongerTtl {
            namespace: namespace.clone(),
            longest: self.longest_ttl,
        })
    }

    #[cfg(not(any(feature = "redis", feature = "redlock")))]
    #[allow(
        clippy::unused_self,
        clippy::unnecessary_wraps,
        reason = "only Redis has a longest TTL"
    )]
    fn check_longest_ttl(&mut self, _: &Config) -> Result<(), OpenError> {
        Ok(())
    }

    async fn serve(&mut self, namespace: &Namespace, settings: &NamespaceConfig) -> Result<Served, OpenError> {
        let backend = self.backend(namespace, &settings.backend)?;
        // Before anything of it is seen in the metrics: a namespace that is refused is none.
        if let Err(error) = check_guarantee(namespace, settings, backend.capabilities().guarantee) {
            backend.close().await;
            return Err(error);
        }
        let all = self.namespaces.metrics();
        let metrics = all.map(|all| all.namespace(namespace, backend.capabilities()));
        let backend: Arc<dyn Backend> = match &metrics {
            Some(metrics) => Arc::new(Measured::new(backend, Arc::clone(metrics))),
            None => backend,
        };
        let locks = Locks::new(namespace.clone(), settings.limits.clone(), backend);
        Ok(Served { locks, metrics })
    }
}

fn check_guarantee(namespace: &Namespace, settings: &NamespaceConfig, offered: Guarantee) -> Result<(), OpenError> {
    match settings.guarantee {
        Some(demanded) if demanded > offered => Err(OpenError::Guarantee {
            namespace: namespace.clone(),
            demanded,
            offered,
        }),
        _ => Ok(()),
    }
}

impl Stores {
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
        let proof = etcd_proof(namespace, config)?;
        let store = crate::backend::etcd::Store::open(etcd_settings(config, proof));
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
        let settings = config.settings(self.longest_ttl);
        let settings = settings.map_err(OpenError::of_redis(namespace))?;
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
        let quorum = config.quorum(self.longest_ttl);
        let quorum = quorum.map_err(OpenError::of_redis(namespace))?;
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
    proof: crate::backend::etcd::settings::Credentials,
) -> crate::backend::etcd::settings::Settings {
    crate::backend::etcd::settings::Settings {
        endpoints: config.endpoints.clone(),
        root: config.root.clone(),
        timeout: config.timeout,
        connect_timeout: config.connect_timeout,
        session_ttl: config.session_ttl,
        proof,
    }
}

/// What proves this server to an etcd, as its files hold it now.
#[cfg(feature = "etcd")]
fn etcd_proof(
    namespace: &Namespace,
    config: &crate::config::EtcdConfig,
) -> Result<crate::backend::etcd::settings::Credentials, OpenError> {
    use crate::backend::etcd::settings::{Login, Credentials, Tls};
    let files = config.read().map_err(|source| OpenError::Etcd {
        namespace: namespace.clone(),
        source,
    })?;
    Ok(Credentials {
        login: config.user.clone().map(|user| Login {
            user,
            password: files.password,
        }),
        tls: files.authority.map(|authority| Tls {
            authority,
            identity: files.identity,
            server_name: config.server_name.clone(),
        }),
    })
}
