//! The registry of stores, one line for each, and the stores that are open: the only module that knows the
//! configuration and all stores.
//!
//! [`Stores`] opens what a configuration names and fills the table that calls look into
//! ([`crate::namespaces::Namespaces`]). When the configuration changes, [`Stores::prepare`] opens what is new,
//! [`Stores::apply`] makes the change and [`Stores::abandon`] takes it back.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::driver::{Apply, Entry, OpenStore, StoreConfig, StoreError};
use crate::backend::{Backend, Guarantee};
use crate::config::{Config, NamespaceConfig};
use crate::limits::Limits;
use crate::locks::Locks;
use crate::metrics::{Measured, Metrics};
use crate::name::Namespace;
use crate::namespaces::{Namespaces, Served, Table};

#[cfg(all(test, feature = "embedded"))]
mod tests;

/// Declares the registry: each store has a name, which is also its feature, and its driver.
macro_rules! registry {
    ($($kind:tt => $driver:path,)+) => {
        /// All stores, also those that this program was built without.
        pub const ALL: &[Entry] = &[$(
            #[cfg(feature = $kind)]
            Entry::of::<$driver>(),
            #[cfg(not(feature = $kind))]
            Entry::missing($kind),
        )+];
    };
}

registry! {
    "embedded" => crate::backend::embedded::config::EmbeddedDriver,
    "redis" => crate::backend::redis::config::RedisDriver,
    "etcd" => crate::backend::etcd::config::EtcdDriver,
    "redlock" => crate::backend::redlock::config::RedlockDriver,
}

/// Why the namespaces of a configuration could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The store of a namespace.
    #[error("namespace {namespace}: {store}: {source}")]
    Store {
        /// The first namespace that uses it.
        namespace: Namespace,
        /// Which store.
        store: String,
        /// What is wrong with it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A longer TTL than those with which a store was opened.
    #[error(
        "namespace {namespace}: ttl_max must stay at most {longest:?} while the server runs: a {servers} was opened with that"
    )]
    LongerTtl {
        /// The namespace.
        namespace: Namespace,
        /// The servers of the store.
        servers: &'static str,
        /// The longest of those before.
        longest: Duration,
    },
    /// A namespace demands more than its store gives.
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

impl OpenError {
    fn of(namespace: &Namespace) -> impl Fn(StoreError) -> Self + use<> {
        let namespace = namespace.clone();
        move |error| Self::Store {
            namespace: namespace.clone(),
            store: error.store,
            source: error.source,
        }
    }
}

/// The stores that are open. Namespaces with the same settings share one.
#[derive(Debug)]
pub struct Stores {
    namespaces: Namespaces,
    /// What is served.
    current: BTreeMap<Namespace, NamespaceConfig>,
    open: Vec<(StoreConfig, Arc<dyn OpenStore>)>,
    /// The longest TTL with which stores were opened, by their servers.
    longest_ttls: BTreeMap<&'static str, Duration>,
}

/// Opens the stores of a configuration, measured where there are metrics.
///
/// # Errors
/// [`OpenError`] for the first namespace that cannot be served; what was opened is closed again.
pub async fn open(config: &Config, metrics: Option<&Metrics>) -> Result<Stores, OpenError> {
    let mut stores = Stores {
        namespaces: Namespaces::measured(metrics.cloned()),
        current: BTreeMap::new(),
        open: Vec::new(),
        longest_ttls: BTreeMap::new(),
    };
    let change = stores.prepare(config).await?;
    stores.apply(change);
    Ok(stores)
}

/// A change of the table that is ready to be made.
#[derive(Debug)]
#[must_use = "what was opened for it must be applied or closed"]
pub struct Change {
    table: Table,
    opened: Vec<Served>,
    limits: Vec<(Locks, Limits)>,
    credentials: Credentials,
    gone: Vec<Served>,
    next: BTreeMap<Namespace, NamespaceConfig>,
}

/// What was read for stores that are open, to be used by their next connections.
#[derive(Default)]
struct Credentials(Vec<Apply>);

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Credentials").field(&self.0.len()).finish()
    }
}

impl Change {
    /// The namespaces that it takes out of the table.
    pub fn gone(&self) -> Vec<Served> {
        self.gone.clone()
    }
}

impl Stores {
    /// The namespaces that are served.
    pub fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// Opens what a changed configuration has new, and reads the credentials for the stores that stay; nothing is
    /// served otherwise yet. The stores of namespaces that stay must be the same.
    ///
    /// # Errors
    /// [`OpenError`] for the first namespace that cannot be served; what was opened is closed again.
    pub async fn prepare(&mut self, config: &Config) -> Result<Change, OpenError> {
        self.check_longest_ttls(config)?;
        let (old, next) = (self.namespaces.table(), &config.namespaces);
        let mut change = Change {
            table: Table::default(),
            opened: Vec::new(),
            limits: Vec::new(),
            // Of the stores that are open before: what is opened for the change has read its own.
            credentials: self.read_credentials(next)?,
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
    pub fn apply(&mut self, change: Change) {
        for (locks, limits) in change.limits {
            locks.set_limits(limits);
        }
        change.credentials.0.into_iter().for_each(|apply| apply());
        self.current = change.next;
        self.namespaces.replace(change.table);
        self.forget_unused();
    }

    /// Takes a change back that was not made.
    pub async fn abandon(&mut self, change: Change) {
        for served in change.opened {
            served.close().await;
        }
        self.forget_unused();
    }

    /// Reads the credentials of this server for its stores, and uses them where they are good. Answers what is wrong.
    pub fn renew_credentials(&self) -> Vec<OpenError> {
        let mut wrong = Vec::new();
        for (namespace, store) in self.open_stores(&self.current) {
            match store.read_credentials() {
                Ok(apply) => apply.into_iter().for_each(|apply| apply()),
                Err(error) => wrong.push(OpenError::of(namespace)(error)),
            }
        }
        wrong
    }

    fn read_credentials(&self, namespaces: &BTreeMap<Namespace, NamespaceConfig>) -> Result<Credentials, OpenError> {
        let read = self
            .open_stores(namespaces)
            .into_iter()
            .filter_map(|(namespace, store)| {
                let read = store.read_credentials().map_err(OpenError::of(namespace));
                read.transpose()
            });
        read.collect::<Result<_, _>>().map(Credentials)
    }

    /// Each open store once, with the first of these namespaces that uses it, in the order of the namespaces.
    fn open_stores<'a>(
        &'a self,
        namespaces: &'a BTreeMap<Namespace, NamespaceConfig>,
    ) -> Vec<(&'a Namespace, &'a dyn OpenStore)> {
        let mut unmet: Vec<&(StoreConfig, Arc<dyn OpenStore>)> = self.open.iter().collect();
        let stores = namespaces.iter().filter_map(|(namespace, one)| {
            let at = unmet.iter().position(|(config, _)| config.is_same_store(&one.store))?;
            Some((namespace, &*unmet.swap_remove(at).1))
        });
        stores.collect()
    }

    fn forget_unused(&mut self) {
        let current = &self.current;
        let is_used = |store: &StoreConfig| current.values().any(|one| one.store.is_same_store(store));
        self.open.retain(|(store, _)| is_used(store));
    }

    /// A store that may have lost its data is not believed for as long as the longest TTL that it was opened
    /// with: what would be granted for longer would not be waited for. It is the longest of all namespaces with
    /// such servers, for those with different settings may share one all the same.
    fn check_longest_ttls(&mut self, config: &Config) -> Result<(), OpenError> {
        let mut longest: BTreeMap<&'static str, (&Namespace, Duration)> = BTreeMap::new();
        for (namespace, one) in &config.namespaces {
            let Some(servers) = one.store.servers() else { continue };
            let ttl = one.limits.ttl_max;
            // Of equal ones the last is named.
            if longest.get(servers).is_none_or(|(_, longest)| *longest <= ttl) {
                longest.insert(servers, (namespace, ttl));
            }
        }
        for (servers, (namespace, ttl)) in longest {
            if !self.current.values().any(|one| one.store.servers() == Some(servers)) {
                self.longest_ttls.insert(servers, ttl);
            }
            let longest = self.longest_ttls.get(servers).copied().unwrap_or_default();
            if ttl > longest {
                return Err(OpenError::LongerTtl {
                    namespace: namespace.clone(),
                    servers,
                    longest,
                });
            }
        }
        Ok(())
    }

    async fn serve(&mut self, namespace: &Namespace, settings: &NamespaceConfig) -> Result<Served, OpenError> {
        let store = self.store(&settings.store).map_err(OpenError::of(namespace))?;
        let backend = store.namespace(namespace, settings.store.claim_limit());
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

    fn store(&mut self, config: &StoreConfig) -> Result<Arc<dyn OpenStore>, StoreError> {
        if let Some((_, store)) = self.open.iter().find(|(open, _)| open.is_same_store(config)) {
            return Ok(Arc::clone(store));
        }
        let longest_ttl = config.servers().and_then(|servers| self.longest_ttls.get(servers));
        let store = config.open(longest_ttl.copied().unwrap_or_default())?;
        self.open.push((config.clone(), Arc::clone(&store)));
        Ok(store)
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
