//! Which namespace has which backend (skeleton).
use crate::error::Error;
use crate::locks::Locks;
use std::collections::BTreeMap;

/// The table of namespaces.
#[derive(Debug, Clone, Default)]
pub struct Namespaces {
    table: BTreeMap<String, Locks>,
}

#[allow(missing_docs)]
impl Namespaces {
    pub fn new(all: Vec<Locks>) -> Self {
        Self {
            table: all
                .into_iter()
                .map(|locks| (locks.namespace().to_string(), locks))
                .collect(),
        }
    }
    /// The locks of a namespace, or NAMESPACE_NOT_FOUND (INVALID_FIELD for a bad spelling).
    pub fn get(&self, namespace: &str) -> Result<&Locks, Error> {
        crate::name::Namespace::new(namespace)?;
        self.table.get(namespace).ok_or_else(|| Error::NamespaceNotFound {
            namespace: namespace.into(),
        })
    }
    /// All, by name.
    pub fn all(&self) -> impl Iterator<Item = &Locks> {
        self.table.values()
    }
    pub fn drain(&self) {
        self.all().for_each(Locks::drain);
    }
    pub async fn close(&self) {
        for locks in self.all() {
            locks.close().await;
        }
    }
}

/// Why a backend could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("no backend can be opened")]
pub struct OpenError;

/// Opens the backends of a configuration (a stand-in: none).
///
/// # Errors
/// None here.
pub async fn open(_config: &crate::config::Config) -> Result<Namespaces, OpenError> {
    Ok(Namespaces::new(Vec::new()))
}
