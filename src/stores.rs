//! The registry of store kinds, with one line per kind, and the open stores. This is the only module that knows the
//! configuration and all stores.
//!
//! [`Stores`] opens the stores of a configuration and fills the table of namespaces
//! ([`crate::namespaces::Namespaces`]). When the configuration changes, [`Stores::prepare`] opens the new stores and
//! namespaces, and [`Stores::apply`] puts the change into effect or [`Stores::abandon`] discards it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::timeout;

use crate::backend::driver::{Apply, Entry, OpenStore, StoreConfig, StoreError};
use crate::backend::{Guarantee, Health, clock};
use crate::config::{Config, NamespaceConfig};
use crate::limits::Limits;
use crate::locks::Locks;
use crate::measured::OperationMetrics;
use crate::metrics::{Metrics, OperationSeries};
use crate::name::Namespace;
use crate::namespaces::{Namespaces, Served, Table};

mod last_served;
mod recorded;
#[cfg(all(test, feature = "embedded"))]
mod tests;

use self::last_served::{LastServed, NamespaceStore};

/// Declares the registry: each store kind has a name, which is also its Cargo feature, and a table.
macro_rules! registry {
    ($($kind:tt => $table:path,)+) => {
        /// All store kinds, including those that this program was built without.
        pub const ALL: &[Entry] = &[$(
            #[cfg(feature = $kind)]
            Entry::of::<$table>($kind),
            #[cfg(not(feature = $kind))]
            Entry::missing($kind),
        )+];
    };
}

// In the order of the documentation.
registry! {
    "embedded" => crate::backend::embedded::config::EmbeddedSection,
    "redis" => crate::backend::redis::config::RedisSection,
    "redlock" => crate::backend::redlock::config::RedlockSection,
    "etcd" => crate::backend::etcd::config::EtcdSection,
    "zookeeper" => crate::backend::zookeeper::config::ZookeeperSection,
    "postgres" => crate::backend::postgres::config::PostgresSection,
    "mysql" => crate::backend::mysql::config::MySqlSection,
}

/// Why the namespaces of a configuration could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The store of a namespace cannot be opened.
    #[error("namespace {namespace}: {store}: {source}")]
    Store {
        /// The first namespace that uses the store.
        namespace: Namespace,
        /// The store.
        store: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A namespace has a longer `ttl_max` than the one with which its store was opened.
    #[error(
        "namespace {namespace}: ttl_max must stay at most {longest:?} while the server runs: a {servers} was opened with that"
    )]
    LongerTtl {
        /// The namespace.
        namespace: Namespace,
        /// The kind of the store's servers.
        servers: &'static str,
        /// The longest `ttl_max` with which such a store was opened.
        longest: Duration,
    },
    /// The record of the stores that this server has served from cannot be used.
    #[error("{0}; if no lease can be left in a store that a namespace had before, remove the file")]
    Record(#[source] std::io::Error),
    /// A namespace demands a stronger guarantee than its store gives.
    #[error("namespace {namespace}: guarantee must be {}, which is what the backend gives, not {}", offered.as_str(), demanded.as_str())]
    Guarantee {
        /// The namespace.
        namespace: Namespace,
        /// The demanded guarantee.
        demanded: Guarantee,
        /// The guarantee of the store.
        offered: Guarantee,
    },
}

impl OpenError {
    /// Whether another process has the file of a store open.
    pub fn is_in_use(&self) -> bool {
        match self {
            #[cfg(feature = "embedded")]
            Self::Store { source, .. } => source
                .downcast_ref()
                .is_some_and(|error| matches!(error, crate::backend::embedded::OpenError::InUse { .. })),
            _ => false,
        }
    }

    fn of(namespace: &Namespace) -> impl Fn(StoreError) -> Self + use<> {
        let namespace = namespace.clone();
        move |error| Self::Store {
            namespace: namespace.clone(),
            store: error.store,
            source: error.source,
        }
    }
}

/// The open stores. Namespaces with the same settings share a store.
#[derive(Debug)]
pub struct Stores {
    namespaces: Namespaces,
    /// The settings of the served namespaces.
    current: BTreeMap<Namespace, NamespaceConfig>,
    open: Vec<(StoreConfig, Arc<dyn OpenStore>)>,
    /// The longest `ttl_max` with which stores were opened, by the kind of their servers.
    longest_ttls: BTreeMap<&'static str, Duration>,
    last_served: LastServed,
}

/// Opens the stores of a configuration. With metrics, the namespaces are measured.
///
/// # Errors
/// [`OpenError`] for the first namespace that cannot be served. Everything that was opened is closed again.
pub async fn open(config: &Config, metrics: Option<&Metrics>) -> Result<Stores, OpenError> {
    if let Some(problem) = clock::wall_problem() {
        tracing::error!("{problem}");
    }
    let mut stores = Stores {
        namespaces: Namespaces::measured(metrics.cloned()),
        current: BTreeMap::new(),
        open: Vec::new(),
        longest_ttls: BTreeMap::new(),
        last_served: LastServed::read(config.data_dir()).map_err(OpenError::Record)?,
    };
    let change = stores.prepare(config).await?;
    stores.apply(change);
    Ok(stores)
}

/// Connects to the stores of a configuration as a server does, and waits for each until it serves or is in quarantine, for
/// at most `limit`. Leaves out stores in a file of this machine, because a running server has them open.
///
/// # Errors
/// As [`open`].
pub async fn ask(config: &Config, limit: Duration) -> Result<Vec<(Namespace, Health)>, OpenError> {
    let mut config = config.clone();
    config.namespaces.retain(|_, one| one.store.file().is_none());
    let stores = open(&config, None).await?;
    let asked = stores.namespaces().all().into_iter().map(|locks| async move {
        let mut health = locks.health();
        let answered = |health: &Health| !matches!(health, Health::Unavailable { .. });
        // What is wrong is in the last value.
        let _ = timeout(limit, health.wait_for(answered)).await;
        let last = health.borrow().clone();
        (locks.namespace().clone(), last)
    });
    let health = join_all(asked).await;
    stores.namespaces().close().await;
    Ok(health)
}

/// A prepared change of the table of namespaces.
#[derive(Debug)]
#[must_use = "the opened namespaces must be applied or closed"]
pub struct Change {
    table: Table,
    opened: Vec<Served>,
    limits: Vec<(Locks, Limits)>,
    credentials: Credentials,
    gone: Vec<Served>,
    longest_ttls: BTreeMap<&'static str, Duration>,
    next: BTreeMap<Namespace, NamespaceConfig>,
}

/// The credentials that were read for open stores. Their next connections use them.
#[derive(Default)]
struct Credentials(Vec<Apply>);

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Credentials").field(&self.0.len()).finish()
    }
}

impl Change {
    /// The namespaces that the change removes from the table.
    pub fn gone(&self) -> Vec<Served> {
        self.gone.clone()
    }
}

impl Stores {
    /// The served namespaces.
    pub fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// Opens the new namespaces of a changed configuration, and reads the credentials of the remaining stores. The
    /// table does not change yet. The stores of remaining namespaces must be the same.
    ///
    /// # Errors
    /// [`OpenError`] for the first namespace that cannot be served. Everything that was opened is closed again.
    pub async fn prepare(&mut self, config: &Config) -> Result<Change, OpenError> {
        let longest_ttls = self.check_longest_ttls(config)?;
        let (old, next) = (self.namespaces.table(), &config.namespaces);
        let mut change = Change {
            table: Table::default(),
            opened: Vec::new(),
            limits: Vec::new(),
            // Only for stores that are already open. A store opened for the change reads its credentials itself.
            credentials: self.read_credentials(next)?,
            gone: Vec::new(),
            longest_ttls,
            next: next.clone(),
        };
        for (namespace, settings) in next {
            let served = match old.get(namespace.as_str()) {
                Some(served) => {
                    // A lease must not outlive what the record has of it.
                    self.last_served.raise_ttl(namespace, settings.limits.ttl_max).await;
                    check_guarantee(namespace, settings, served.locks.capabilities().guarantee).map(|()| {
                        change.limits.push((served.locks.clone(), settings.limits.clone()));
                        served.clone()
                    })
                }
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

    /// Puts a change into effect. Removed namespaces are no longer in the table. The caller closes them.
    pub fn apply(&mut self, change: Change) {
        // Before a namespace may grant longer ones.
        for (servers, ttl) in change.longest_ttls {
            self.longest_ttls.insert(servers, ttl);
            let of_kind = self.open.iter().filter(|(config, _)| config.servers() == Some(servers));
            of_kind.for_each(|(_, store)| store.raise_longest_ttl(ttl));
        }
        for (locks, limits) in change.limits {
            locks.set_limits(limits);
        }
        change.credentials.0.into_iter().for_each(|apply| apply());
        self.current = change.next;
        self.namespaces.replace(change.table);
        self.close_unused();
    }

    /// Discards a change that was not applied, and closes its new namespaces.
    pub async fn abandon(&mut self, change: Change) {
        for served in change.opened {
            served.close().await;
        }
        self.close_unused();
    }

    /// Reads the credentials of all open stores again, and applies those that are valid. Returns the errors of the
    /// others.
    pub fn renew_credentials(&self) -> Vec<OpenError> {
        let mut errors = Vec::new();
        for (namespace, store) in self.open_stores(&self.current) {
            match store.read_credentials() {
                Ok(apply) => apply.into_iter().for_each(|apply| apply()),
                Err(error) => errors.push(OpenError::of(namespace)(error)),
            }
        }
        errors
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

    /// Each open store once, with the first of these namespaces that uses it, in namespace order.
    fn open_stores<'a>(
        &'a self,
        namespaces: &'a BTreeMap<Namespace, NamespaceConfig>,
    ) -> Vec<(&'a Namespace, &'a dyn OpenStore)> {
        let mut remaining: Vec<&(StoreConfig, Arc<dyn OpenStore>)> = self.open.iter().collect();
        let stores = namespaces.iter().filter_map(|(namespace, one)| {
            let at = remaining
                .iter()
                .position(|(config, _)| config.is_same_store(&one.store))?;
            Some((namespace, &*remaining.swap_remove(at).1))
        });
        stores.collect()
    }

    fn close_unused(&mut self) {
        let current = &self.current;
        let is_used = |store: &StoreConfig| current.values().any(|one| one.store.is_same_store(store));
        self.open.retain(|(store, _)| is_used(store));
    }

    /// Checks that no `ttl_max` exceeds the one that the stores know, and returns those that they must be told first. A
    /// store that may have lost its data grants nothing for the longest `ttl_max` that it knows, so a longer lease could
    /// outlive this quarantine. The value is the longest of all namespaces with this kind of servers, because stores with
    /// different settings may still use the same servers.
    fn check_longest_ttls(&mut self, config: &Config) -> Result<BTreeMap<&'static str, Duration>, OpenError> {
        let mut raised = BTreeMap::new();
        let mut longest: BTreeMap<&'static str, (&Namespace, Duration)> = BTreeMap::new();
        for (namespace, one) in &config.namespaces {
            let Some(servers) = one.store.servers() else { continue };
            let ttl = one.limits.ttl_max;
            // The error names the last namespace of those with the same TTL.
            if longest.get(servers).is_none_or(|(_, longest)| *longest <= ttl) {
                longest.insert(servers, (namespace, ttl));
            }
        }
        for (servers, (namespace, ttl)) in longest {
            if !self.current.values().any(|one| one.store.servers() == Some(servers)) {
                self.longest_ttls.insert(servers, ttl);
            }
            let longest = self.longest_ttls.get(servers).copied().unwrap_or_default();
            let mut of_kind = config.namespaces.values().chain(self.current.values());
            let can_raise =
                of_kind.all(|one| one.store.servers() != Some(servers) || one.store.can_raise_longest_ttl());
            if ttl > longest && can_raise {
                raised.insert(servers, ttl);
            } else if ttl > longest {
                return Err(OpenError::LongerTtl {
                    namespace: namespace.clone(),
                    servers,
                    longest,
                });
            }
        }
        Ok(raised)
    }

    async fn serve(&mut self, namespace: &Namespace, settings: &NamespaceConfig) -> Result<Served, OpenError> {
        let store = self.store(&settings.store).map_err(OpenError::of(namespace))?;
        let backend = store.namespace(namespace, settings.store.claim_limit());
        // Checked before the metrics are created, because a refused namespace must not appear in them.
        if let Err(error) = check_guarantee(namespace, settings, backend.capabilities().guarantee) {
            backend.close().await;
            return Err(error);
        }
        let ttl_max = settings.limits.ttl_max;
        let backend = match settings.store.identity() {
            Some(identity) => {
                let store = NamespaceStore {
                    namespace: namespace.clone(),
                    identity,
                };
                recorded::guard(&self.last_served, store, ttl_max, backend)
            }
            None => backend,
        };
        let all = self.namespaces.metrics();
        let metrics = all.map(|all| all.namespace(namespace, backend.capabilities()));
        let series = metrics
            .clone()
            .map(|metrics| Arc::new(OperationSeries::of(metrics)) as Arc<dyn OperationMetrics>);
        let locks = Locks::measured(namespace.clone(), settings.limits.clone(), backend, series);
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
