//! What proves this server to its stores, read again while they are open.

use std::collections::BTreeMap;
use std::fmt;

use super::{OpenError, Stores};
use crate::config::{BackendConfig, NamespaceConfig};
use crate::name::Namespace;

/// What was read for a store, to be used by its next connections.
type Credentials = Box<dyn FnOnce() + Send>;

/// What was read for all of them.
#[derive(Default)]
pub(super) struct StoreCredentials(Vec<Credentials>);

impl fmt::Debug for StoreCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Proofs").field(&self.0.len()).finish()
    }
}

impl StoreCredentials {
    /// Uses them from now on.
    pub fn apply(self) {
        self.0.into_iter().for_each(|proof| proof());
    }
}

impl Stores {
    /// Reads what proves this server to those open stores that these namespaces use.
    ///
    /// # Errors
    /// [`OpenError`] for the first namespace whose files cannot be used.
    pub(super) fn read_proofs(&self, namespaces: &BTreeMap<Namespace, NamespaceConfig>) -> Result<StoreCredentials, OpenError> {
        let read = each_store(namespaces).filter_map(|(namespace, store)| self.proof(namespace, store).transpose());
        read.collect::<Result<_, _>>().map(StoreCredentials)
    }

    /// Reads what proves this server to its stores, and uses it where it is good. Answers what is wrong.
    pub fn renew_proofs(&self) -> Vec<OpenError> {
        let mut wrong = Vec::new();
        for (namespace, store) in each_store(&self.current) {
            match self.proof(namespace, store) {
                Ok(proof) => proof.into_iter().for_each(|proof| proof()),
                Err(error) => wrong.push(error),
            }
        }
        wrong
    }

    /// What is read for a store; nothing where it is not open yet or asks for none.
    #[allow(
        unused_variables,
        clippy::unnecessary_wraps,
        clippy::unused_self,
        reason = "a build without far stores has none to read for"
    )]
    fn proof(&self, namespace: &Namespace, store: &BackendConfig) -> Result<Option<Credentials>, OpenError> {
        // By value: a build without any backend has no case here.
        match *store {
            #[cfg(feature = "embedded")]
            BackendConfig::Embedded { .. } => Ok(None),
            #[cfg(feature = "redis")]
            BackendConfig::Redis(ref config) => {
                let Some(store) = self.redis.get(config.as_ref()).cloned() else {
                    return Ok(None);
                };
                let access = config.access().map_err(OpenError::of_redis(namespace))?;
                Ok(Some(Box::new(move || store.prove_by(access))))
            }
            #[cfg(feature = "redlock")]
            BackendConfig::Redlock(ref config) => {
                let Some(store) = self.redlock.get(config.as_ref()).cloned() else {
                    return Ok(None);
                };
                let access = config.access().map_err(OpenError::of_redis(namespace))?;
                Ok(Some(Box::new(move || store.prove_by(access))))
            }
            #[cfg(feature = "etcd")]
            BackendConfig::Etcd(ref config) => {
                let Some(store) = self.etcd.get(config.as_ref()).cloned() else {
                    return Ok(None);
                };
                let proof = super::etcd_proof(namespace, config)?;
                Ok(Some(Box::new(move || store.prove_by(proof))))
            }
        }
    }
}

/// Each store once, with the first namespace that uses it.
fn each_store(namespaces: &BTreeMap<Namespace, NamespaceConfig>) -> impl Iterator<Item = (&Namespace, &BackendConfig)> {
    let mut met: Vec<&BackendConfig> = Vec::new();
    let all = namespaces.iter().map(|(namespace, one)| (namespace, &one.backend));
    all.filter(move |(_, store)| {
        let is_new = !met.contains(store);
        if is_new {
            met.push(store);
        }
        is_new
    })
}
