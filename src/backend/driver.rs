//! The traits of a store kind apart from its protocol: its configuration table, the checked settings, and how a store
//! with these settings is opened.
//!
//! Each store kind implements [`Driver`] and [`OpenStore`] in its own module. The rest of this module erases their
//! types, so that the configuration and the registry (`crate::stores`) handle all kinds alike.

use std::any::Any;
use std::error::Error;
use std::fmt::Debug;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::{Backend, CLAIM_LIMIT, Guarantee};
use crate::name::Namespace;
use crate::schema::{self, RawValue, ReadError, Section};

/// A store kind.
pub trait Driver: Debug + Sized + 'static {
    /// The name in the configuration: the value of `backend`, and the name of the table.
    const KIND: &'static str;
    /// The kind of servers, if they grant nothing for the longest TTL after a loss of data. Stores of several kinds may
    /// share them. The longest TTL must not grow while such a store is open.
    const SERVERS: Option<&'static str> = None;
    /// How many claims the queue of one lock may have at most, holders and waiters together.
    const QUEUE_LIMIT: u32 = u32::MAX;
    /// The configuration table.
    type Section: Section + Default + DeserializeOwned + Debug + Send + Sync;
    /// The checked settings. Namespaces with equal settings share a store.
    type Settings: Debug + Eq + Send + Sync;

    /// Checks a table. `data_dir` is the server's data directory, if it is known.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the invalid key and its bound.
    fn check(section: &Self::Section, data_dir: Option<&Path>) -> Result<Self::Settings, InvalidSetting>;

    /// Checks the files in the settings without using them.
    ///
    /// # Errors
    /// [`InvalidSetting`] for the first file that [`Driver::open`] would refuse.
    fn check_files(settings: &Self::Settings) -> Result<(), InvalidSetting>;

    /// The guarantee of a store with these settings.
    fn guarantee(settings: &Self::Settings) -> Guarantee;

    /// How many claims a namespace with these settings holds at most.
    fn claim_limit(_: &Self::Settings) -> u32 {
        CLAIM_LIMIT
    }

    /// The file that only one store may have open.
    fn file(_: &Self::Settings) -> Option<&Path> {
        None
    }

    /// Whether namespaces with these settings share one store.
    fn is_same_store(one: &Self::Settings, other: &Self::Settings) -> bool {
        one == other
    }

    /// Opens a store. No namespace with its servers has a longer TTL than `longest_ttl`. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// [`StoreError`] if one of its files cannot be used.
    fn open(settings: &Self::Settings, longest_ttl: Duration) -> Result<Arc<dyn OpenStore>, StoreError>;
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
}

/// Applies credentials that were read. Cannot fail.
pub type Apply = Box<dyn FnOnce() + Send>;

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
    servers: Option<&'static str>,
    section: fn() -> Box<dyn Section>,
    table: fn() -> Arc<dyn StoreTable>,
    read: fn(RawValue<'_>) -> Result<Arc<dyn StoreTable>, ReadError>,
}

impl Entry {
    /// The entry of a store kind that this program was built with.
    pub const fn of<D: Driver>() -> Self {
        Self {
            kind: D::KIND,
            functions: Some(Functions {
                servers: D::SERVERS,
                section: || Box::new(D::Section::default()),
                table: || Arc::new(TableOf::<D>(D::Section::default())),
                read: |raw| Ok(Arc::new(TableOf::<D>(schema::read(raw)?))),
            }),
        }
    }

    /// The entry of a store kind that this program was built without.
    pub const fn missing(kind: &'static str) -> Self {
        Self { kind, functions: None }
    }

    /// The name in the configuration.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Whether this program was built with it.
    pub fn is_built(&self) -> bool {
        self.functions.is_some()
    }

    /// See [`Driver::SERVERS`].
    pub fn servers(&self) -> Option<&'static str> {
        self.functions.and_then(|functions| functions.servers)
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

/// The configuration table of any store kind.
pub trait StoreTable: Debug + Send + Sync {
    /// The keys of the table.
    fn section(&self) -> &dyn Section;

    /// See [`Driver::check`].
    ///
    /// # Errors
    /// The errors of [`Driver::check`].
    fn check(&self, data_dir: Option<&Path>) -> Result<StoreConfig, InvalidSetting>;
}

#[derive(Debug)]
struct TableOf<D: Driver>(D::Section);

impl<D: Driver> StoreTable for TableOf<D> {
    fn section(&self) -> &dyn Section {
        &self.0
    }

    fn check(&self, data_dir: Option<&Path>) -> Result<StoreConfig, InvalidSetting> {
        let settings = D::check(&self.0, data_dir)?;
        Ok(StoreConfig(Arc::new(SettingsOf::<D>(settings))))
    }
}

/// The checked settings of a namespace's store, of any kind. Clones share them.
#[derive(Debug, Clone)]
pub struct StoreConfig(Arc<dyn Settings>);

/// [`Driver`] with erased types; each method calls the one with the same name.
#[expect(missing_docs, reason = "documented in `Driver`")]
pub trait Settings: Debug + Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn equals(&self, other: &dyn Any) -> bool;
    fn shares_store(&self, other: &dyn Any) -> bool;
    fn servers(&self) -> Option<&'static str>;
    fn guarantee(&self) -> Guarantee;
    fn claim_limit(&self) -> u32;
    fn queue_limit(&self) -> u32;
    fn file(&self) -> Option<&Path>;
    fn check_files(&self) -> Result<(), InvalidSetting>;
    fn open(&self, longest_ttl: Duration) -> Result<Arc<dyn OpenStore>, StoreError>;
}

#[derive(Debug)]
struct SettingsOf<D: Driver>(D::Settings);

impl<D: Driver> Settings for SettingsOf<D> {
    fn as_any(&self) -> &dyn Any {
        &self.0
    }

    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref().is_some_and(|other| self.0 == *other)
    }

    fn shares_store(&self, other: &dyn Any) -> bool {
        other
            .downcast_ref()
            .is_some_and(|other| D::is_same_store(&self.0, other))
    }

    fn servers(&self) -> Option<&'static str> {
        D::SERVERS
    }

    fn guarantee(&self) -> Guarantee {
        D::guarantee(&self.0)
    }

    fn claim_limit(&self) -> u32 {
        D::claim_limit(&self.0)
    }

    fn queue_limit(&self) -> u32 {
        D::QUEUE_LIMIT
    }

    fn file(&self) -> Option<&Path> {
        D::file(&self.0)
    }

    fn check_files(&self) -> Result<(), InvalidSetting> {
        D::check_files(&self.0)
    }

    fn open(&self, longest_ttl: Duration) -> Result<Arc<dyn OpenStore>, StoreError> {
        D::open(&self.0, longest_ttl)
    }
}

impl Deref for StoreConfig {
    type Target = dyn Settings;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref()
    }
}

impl PartialEq for StoreConfig {
    fn eq(&self, other: &Self) -> bool {
        self.0.equals(other.0.as_any())
    }
}

impl Eq for StoreConfig {}

impl StoreConfig {
    /// Whether namespaces with these settings share one store.
    pub fn is_same_store(&self, other: &Self) -> bool {
        self.0.shares_store(other.0.as_any())
    }
}
