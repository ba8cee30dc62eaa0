//! What a store brings along besides its protocol: its table of the configuration, the settings that the table comes
//! to, and how a store with these settings is opened.
//!
//! A store implements [`Driver`] and [`OpenStore`] in its own folder. The rest of this module removes their types, so
//! that the configuration and the registry (`crate::stores`) treat all stores alike.

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

/// A kind of store.
pub trait Driver: Debug + Sized + 'static {
    /// Its name in the configuration: the value of `backend`, and the name of its table.
    const KIND: &'static str;
    /// The servers that it may share with stores of another kind, where these grant nothing for the longest TTL
    /// after a loss of data. That TTL must not grow while such a store is open.
    const SERVERS: Option<&'static str> = None;
    /// Keys of its table that have another name since this release: the old name and the new one. The old name is
    /// accepted with a warning until the next release.
    const RENAMED_KEYS: &'static [(&'static str, &'static str)] = &[];
    /// Its table of the configuration.
    type Section: Section + Default + DeserializeOwned + Debug + Send + Sync;
    /// What the table comes to. Namespaces with equal settings share one store.
    type Settings: Debug + Eq + Send + Sync;

    /// Checks a table; `data_dir` is the directory of what this server stores, where it is known.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the key and the bound of what is wrong.
    fn check(section: &Self::Section, data_dir: Option<&Path>) -> Result<Self::Settings, InvalidSetting>;

    /// Checks the files that the settings name, without using them.
    ///
    /// # Errors
    /// [`InvalidSetting`] for the first file that [`Driver::open`] would refuse.
    fn check_files(settings: &Self::Settings) -> Result<(), InvalidSetting>;

    /// What a store with these settings promises.
    fn guarantee(settings: &Self::Settings) -> Guarantee;

    /// How many claims a namespace with these settings holds.
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

    /// Opens a store, within a tokio runtime. No namespace with its servers has a longer TTL than `longest_ttl`.
    ///
    /// # Errors
    /// [`StoreError`] where one of its files cannot be used.
    fn open(settings: &Self::Settings, longest_ttl: Duration) -> Result<Arc<dyn OpenStore>, StoreError>;
}

/// A store that is open.
pub trait OpenStore: Debug + Send + Sync {
    /// One namespace of it, which holds at most `claim_limit` claims. Must be called within a tokio runtime.
    fn namespace(&self, namespace: &Namespace, claim_limit: u32) -> Arc<dyn Backend>;

    /// Reads the credentials of this server anew; nothing where the store asks for none. New connections use them
    /// once the answer is called.
    ///
    /// # Errors
    /// [`StoreError`] where they cannot be used; those before stay in use.
    fn read_credentials(&self) -> Result<Option<Apply>, StoreError> {
        Ok(None)
    }
}

/// Applies what was read; it cannot fail any more.
pub type Apply = Box<dyn FnOnce() + Send>;

/// A setting that a store refuses.
#[derive(Debug)]
pub struct InvalidSetting {
    /// Its key.
    pub key: InvalidKey,
    /// What is wrong, and what the bound is.
    pub problem: String,
}

/// Which key is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvalidKey {
    /// One of the store's table.
    OfStore(&'static str),
    /// One of the server's.
    OfServer(&'static str),
}

impl InvalidSetting {
    /// The refusal of a key of the store's table.
    pub fn new(key: &'static str, problem: impl Into<String>) -> Self {
        Self {
            key: InvalidKey::OfStore(key),
            problem: problem.into(),
        }
    }

    /// The refusal of a key of the server.
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
    /// Which store: "its Redis".
    pub store: String,
    /// Why.
    pub source: Box<dyn Error + Send + Sync>,
}

impl StoreError {
    /// The store cannot be used for this reason.
    pub fn new(store: impl Into<String>, source: impl Error + Send + Sync + 'static) -> Self {
        Self {
            store: store.into(),
            source: Box::new(source),
        }
    }
}

/// A kind of store in the registry.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    kind: &'static str,
    functions: Option<Functions>,
}

/// What the registry knows of a store that this program was built with.
#[derive(Debug, Clone, Copy)]
struct Functions {
    servers: Option<&'static str>,
    renamed_keys: &'static [(&'static str, &'static str)],
    section: fn() -> Box<dyn Section>,
    table: fn() -> Arc<dyn StoreTable>,
    read: fn(RawValue<'_>) -> Result<Arc<dyn StoreTable>, ReadError>,
}

impl Entry {
    /// A store that this program was built with.
    pub const fn of<D: Driver>() -> Self {
        Self {
            kind: D::KIND,
            functions: Some(Functions {
                servers: D::SERVERS,
                renamed_keys: D::RENAMED_KEYS,
                section: || Box::new(D::Section::default()),
                table: || Arc::new(TableOf::<D>(D::Section::default())),
                read: |raw| Ok(Arc::new(TableOf::<D>(schema::read(raw)?))),
            }),
        }
    }

    /// A store that this program could have been built with.
    pub const fn missing(kind: &'static str) -> Self {
        Self { kind, functions: None }
    }

    /// Its name in the configuration.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Whether this program was built with it.
    pub fn is_built(&self) -> bool {
        self.functions.is_some()
    }

    /// As [`Driver::SERVERS`].
    pub fn servers(&self) -> Option<&'static str> {
        self.functions.and_then(|functions| functions.servers)
    }

    /// As [`Driver::RENAMED_KEYS`].
    pub fn renamed_keys(&self) -> &'static [(&'static str, &'static str)] {
        self.functions.map_or(&[], |functions| functions.renamed_keys)
    }

    /// The keys of its table with their defaults; nothing where this program was built without it.
    pub fn section(&self) -> Option<Box<dyn Section>> {
        self.functions.map(|functions| (functions.section)())
    }

    /// Its table with the defaults; nothing where this program was built without it.
    pub fn table(&self) -> Option<Arc<dyn StoreTable>> {
        self.functions.map(|functions| (functions.table)())
    }

    /// Reads its table; nothing where this program was built without it.
    ///
    /// # Errors
    /// [`ReadError`] with the key that is wrong.
    pub fn read(&self, raw: RawValue<'_>) -> Result<Option<Arc<dyn StoreTable>>, ReadError> {
        self.functions.map(|functions| (functions.read)(raw)).transpose()
    }
}

/// The table of a store, whatever its kind.
pub trait StoreTable: Debug + Send + Sync {
    /// Its keys.
    fn section(&self) -> &dyn Section;

    /// As [`Driver::check`].
    ///
    /// # Errors
    /// As [`Driver::check`].
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

/// The checked settings of a namespace's store, whatever its kind. Clones share them.
#[derive(Debug, Clone)]
pub struct StoreConfig(Arc<dyn Settings>);

/// [`Driver`] without its types: the methods are those of the same names.
#[expect(missing_docs, reason = "they are documented there")]
pub trait Settings: Debug + Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn equals(&self, other: &dyn Any) -> bool;
    fn shares_store(&self, other: &dyn Any) -> bool;
    fn servers(&self) -> Option<&'static str>;
    fn guarantee(&self) -> Guarantee;
    fn claim_limit(&self) -> u32;
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
    /// Whether both namespaces share one store.
    pub fn is_same_store(&self, other: &Self) -> bool {
        self.0.shares_store(other.0.as_any())
    }
}
