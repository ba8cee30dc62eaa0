//! The traits of a store kind apart from its protocol: [`StoreTable`] is its configuration table, [`StoreSettings`] what
//! is checked of it, and [`OpenStore`] an open store. The configuration and the registry (`crate::stores`) handle all
//! kinds alike.

use std::any::Any;
use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::{self, Debug};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Backend, CLAIM_LIMIT, Guarantee};
use crate::name::Namespace;
use crate::schema::{self, RawValue, ReadError, Section};

/// The configuration table of a store kind.
pub trait StoreTable: Section + Debug + Send + Sync {
    /// Checks the table. `data_dir` is the server's data directory, if it is known.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the invalid key and its bound.
    fn check(&self, data_dir: Option<&Path>) -> Result<StoreConfig, InvalidSetting>;
}

/// The checked settings of a store. Namespaces with equal settings share a store.
pub trait StoreSettings: Equals + Debug + Send + Sync {
    /// Checks the files in the settings without using them.
    ///
    /// # Errors
    /// [`InvalidSetting`] for the first file that [`Self::open`] would refuse.
    fn check_files(&self) -> Result<(), InvalidSetting>;

    /// The guarantee of a store with these settings.
    fn guarantee(&self) -> Guarantee;

    /// Whether these settings can keep this guarantee, which is at most theirs.
    ///
    /// # Errors
    /// [`InvalidSetting`] for the first key that contradicts it.
    fn check_guarantee(&self, _: Guarantee) -> Result<(), InvalidSetting> {
        Ok(())
    }

    /// Opens the store. No namespace with its servers has a longer TTL than `longest_ttl`. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// [`StoreError`] if one of its files cannot be used.
    fn open(&self, longest_ttl: Duration) -> Result<Arc<dyn OpenStore>, StoreError>;

    /// The kind of the servers, if they grant nothing for the longest TTL after a loss of data. Stores of several kinds may
    /// share them.
    fn servers(&self) -> Option<&'static str> {
        None
    }

    /// Whether that TTL may grow while such a store is open, by [`OpenStore::raise_longest_ttl`].
    fn can_raise_longest_ttl(&self) -> bool {
        false
    }

    /// How many claims the queue of one lock may have at most, holders and waiters together.
    fn queue_limit(&self) -> u32 {
        u32::MAX
    }

    /// How many claims a namespace with these settings holds at most.
    fn claim_limit(&self) -> u32 {
        CLAIM_LIMIT
    }

    /// The file that only one store may have open.
    fn file(&self) -> Option<&Path> {
        None
    }

    /// The store that these settings name; `None` if it keeps nothing over a restart.
    fn identity(&self) -> Option<StoreIdentity> {
        None
    }

    /// Whether namespaces with these settings share one store. `other` are the settings of any store.
    fn is_same_store(&self, other: &dyn Any) -> bool {
        self.equals(other)
    }
}

/// Which store settings name, so that a namespace which has moved to another one is noticed. It holds no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreIdentity {
    /// The kind, and what is its own within its servers: a database, a prefix, a path.
    pub store: String,
    /// How its servers are reached; empty for a file.
    pub servers: BTreeSet<String>,
}

impl StoreIdentity {
    /// The store with this name on these servers.
    pub fn new<'a>(store: String, servers: impl IntoIterator<Item = &'a String>) -> Self {
        Self {
            store,
            servers: servers.into_iter().cloned().collect(),
        }
    }

    /// Whether both are one store, as far as settings show: one server in common is enough, because the servers of a store
    /// are replaced one by one.
    pub fn is_same(&self, other: &Self) -> bool {
        self.store == other.store && (self.servers == other.servers || !self.servers.is_disjoint(&other.servers))
    }
}

impl fmt::Display for StoreIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.store)?;
        for (number, server) in self.servers.iter().enumerate() {
            write!(f, "{} {server}", if number == 0 { " at" } else { "," })?;
        }
        Ok(())
    }
}

/// Settings that are compared with those of any store.
pub trait Equals: Any {
    /// Whether these are the same settings of the same store kind.
    fn equals(&self, other: &dyn Any) -> bool;
}

impl<T: Eq + Any> Equals for T {
    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref().is_some_and(|other| self == other)
    }
}

/// An open store.
pub trait OpenStore: Debug + Send + Sync {
    /// Opens a namespace with at most `claim_limit` claims. Must be called within a tokio runtime.
    fn namespace(&self, namespace: &Namespace, claim_limit: u32) -> Arc<dyn Backend>;

    /// Reads the credentials again; `None` if the store has none. New connections use them after the returned function
    /// is called.
    ///
    /// # Errors
    /// [`StoreError`] if they cannot be used. The previous credentials stay in use.
    fn read_credentials(&self) -> Result<Option<Apply>, StoreError> {
        Ok(None)
    }

    /// Raises the longest TTL of a namespace with its servers. No lease that is longer is granted before the servers know.
    fn raise_longest_ttl(&self, _: Duration) {}
}

/// Applies credentials that were read. Cannot fail.
pub type Apply = Box<dyn FnOnce() + Send>;

/// An open store whose credentials are in files.
pub struct Opened<S, C> {
    store: S,
    namespace: fn(&S, &Namespace) -> Arc<dyn Backend>,
    set_credentials: fn(&S, C),
    raise_longest_ttl: fn(&S, Duration),
    read: Box<dyn Fn() -> Result<C, StoreError> + Send + Sync>,
}

impl<S: Debug, C> Debug for Opened<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

impl<S: Clone + Debug + Send + Sync + 'static, C: Send + 'static> Opened<S, C> {
    /// Opens a store with the credentials that `read` reads. It can open namespaces and replace its credentials.
    ///
    /// # Errors
    /// [`StoreError`] if the credentials cannot be read, or the store not be opened with them.
    pub fn with(
        read: impl Fn() -> Result<C, StoreError> + Send + Sync + 'static,
        open: impl FnOnce(C) -> Result<S, StoreError>,
        namespace: fn(&S, &Namespace) -> Arc<dyn Backend>,
        set_credentials: fn(&S, C),
    ) -> Result<Arc<dyn OpenStore>, StoreError> {
        Self::raising(read, open, namespace, set_credentials, |_, _| {})
    }

    /// The same for a store whose longest TTL may grow.
    ///
    /// # Errors
    /// As [`Self::with`].
    pub fn raising(
        read: impl Fn() -> Result<C, StoreError> + Send + Sync + 'static,
        open: impl FnOnce(C) -> Result<S, StoreError>,
        namespace: fn(&S, &Namespace) -> Arc<dyn Backend>,
        set_credentials: fn(&S, C),
        raise_longest_ttl: fn(&S, Duration),
    ) -> Result<Arc<dyn OpenStore>, StoreError> {
        Ok(Arc::new(Self {
            store: open(read()?)?,
            namespace,
            set_credentials,
            raise_longest_ttl,
            read: Box::new(read),
        }))
    }
}

impl<S: Clone + Debug + Send + Sync + 'static, C: Send + 'static> OpenStore for Opened<S, C> {
    fn namespace(&self, namespace: &Namespace, _: u32) -> Arc<dyn Backend> {
        (self.namespace)(&self.store, namespace)
    }

    fn read_credentials(&self) -> Result<Option<Apply>, StoreError> {
        let (store, set_credentials, credentials) = (self.store.clone(), self.set_credentials, (self.read)()?);
        Ok(Some(Box::new(move || set_credentials(&store, credentials))))
    }

    fn raise_longest_ttl(&self, ttl: Duration) {
        (self.raise_longest_ttl)(&self.store, ttl);
    }
}

/// A setting that a store refuses.
#[derive(Debug)]
pub struct InvalidSetting {
    /// The key.
    pub key: InvalidKey,
    /// The problem and the bound.
    pub problem: String,
}

/// The key of a refused setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvalidKey {
    /// A key of the store's table.
    OfStore(&'static str),
    /// A key of the server.
    OfServer(&'static str),
}

impl InvalidSetting {
    /// Refuses a key of the store's table.
    pub fn new(key: &'static str, problem: impl Into<String>) -> Self {
        Self {
            key: InvalidKey::OfStore(key),
            problem: problem.into(),
        }
    }

    /// Refuses a key of the server.
    pub fn of_server(key: &'static str, problem: impl Into<String>) -> Self {
        Self {
            key: InvalidKey::OfServer(key),
            problem: problem.into(),
        }
    }
}

/// Whether this is `host:port`, as tables name servers.
pub fn is_server(address: &str) -> bool {
    let parts = address.rsplit_once(':');
    parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// A store that cannot be opened, or whose credentials cannot be read.
#[derive(Debug)]
pub struct StoreError {
    /// The store, such as "its Redis".
    pub store: String,
    /// The cause.
    pub source: Box<dyn Error + Send + Sync>,
}

impl StoreError {
    /// A store that cannot be used for this reason.
    pub fn new(store: impl Into<String>, source: impl Error + Send + Sync + 'static) -> Self {
        Self {
            store: store.into(),
            source: Box::new(source),
        }
    }
}

/// A store kind in the registry.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    kind: &'static str,
    functions: Option<Functions>,
}

/// The functions of a store kind that this program was built with.
#[derive(Debug, Clone, Copy)]
struct Functions {
    section: fn() -> Box<dyn Section>,
    table: fn() -> Arc<dyn StoreTable>,
    read: fn(RawValue<'_>) -> Result<Arc<dyn StoreTable>, ReadError>,
}

impl Entry {
    /// The entry of a store kind that this program was built with, by its name and its table.
    pub const fn of<T: StoreTable + Default + DeserializeOwned + 'static>(kind: &'static str) -> Self {
        Self {
            kind,
            functions: Some(Functions {
                section: || Box::new(T::default()),
                table: || Arc::new(T::default()),
                read: |raw| Ok(Arc::new(schema::read::<T>(raw)?)),
            }),
        }
    }

    /// The entry of a store kind that this program was built without.
    pub const fn missing(kind: &'static str) -> Self {
        Self { kind, functions: None }
    }

    /// The name in the configuration: the value of `backend`, and the name of the table.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Whether this program was built with it.
    pub fn is_built(&self) -> bool {
        self.functions.is_some()
    }

    /// The keys of its table with their defaults; `None` if this program was built without it.
    pub fn section(&self) -> Option<Box<dyn Section>> {
        self.functions.map(|functions| (functions.section)())
    }

    /// Its table with the defaults; `None` if this program was built without it.
    pub fn table(&self) -> Option<Arc<dyn StoreTable>> {
        self.functions.map(|functions| (functions.table)())
    }

    /// Reads its table; `None` if this program was built without it.
    ///
    /// # Errors
    /// [`ReadError`] with the invalid key.
    pub fn read(&self, raw: RawValue<'_>) -> Result<Option<Arc<dyn StoreTable>>, ReadError> {
        self.functions.map(|functions| (functions.read)(raw)).transpose()
    }
}

/// The checked settings of a namespace's store, of any kind. Clones share them.
#[derive(Debug, Clone)]
pub struct StoreConfig(Arc<dyn StoreSettings>);

impl StoreConfig {
    /// These settings.
    pub fn new(settings: impl StoreSettings) -> Self {
        Self(Arc::new(settings))
    }

    /// Whether namespaces with these settings share one store.
    pub fn is_same_store(&self, other: &Self) -> bool {
        self.0.is_same_store(&*other.0)
    }
}

impl Deref for StoreConfig {
    type Target = dyn StoreSettings;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref()
    }
}

impl PartialEq for StoreConfig {
    fn eq(&self, other: &Self) -> bool {
        self.0.equals(&*other.0)
    }
}

impl Eq for StoreConfig {}
