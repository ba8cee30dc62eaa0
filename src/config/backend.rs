//! Which backend a namespace has: its table becomes a [`BackendConfig`].

use std::path::{Path, PathBuf};

use super::error::ConfigError;
use super::file::NamespaceSection;
use super::namespace::Origin;
use crate::backend::Guarantee;

/// The kind of the embedded backend, and the default.
pub(super) const EMBEDDED: &str = "embedded";
/// The kind of the Redis backend.
#[cfg(feature = "redis")]
const REDIS: &str = "redis";
/// The kind of the etcd backend.
#[cfg(feature = "etcd")]
const ETCD: &str = "etcd";
/// The kind of the RedLock backend.
#[cfg(feature = "redlock")]
const REDLOCK: &str = "redlock";
/// The path that stands for a store without a file.
#[cfg(feature = "embedded")]
const MEMORY: &str = ":memory:";

/// The backends that this program was built with.
pub const BACKENDS: &[&str] = &[
    #[cfg(feature = "embedded")]
    EMBEDDED,
    #[cfg(feature = "redis")]
    REDIS,
    #[cfg(feature = "etcd")]
    ETCD,
    #[cfg(feature = "redlock")]
    REDLOCK,
];

/// The backend of a namespace and its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendConfig {
    /// The embedded store.
    #[cfg(feature = "embedded")]
    Embedded {
        /// Where it keeps its locks.
        path: EmbeddedPath,
        /// How many claims the namespace holds at most.
        claim_limit: u32,
    },
    /// A Redis.
    #[cfg(feature = "redis")]
    Redis(Box<super::RedisConfig>),
    /// An etcd cluster.
    #[cfg(feature = "etcd")]
    Etcd(Box<super::EtcdConfig>),
    /// Several Redis masters.
    #[cfg(feature = "redlock")]
    Redlock(Box<super::RedlockConfig>),
}

/// Where an embedded store keeps its locks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EmbeddedPath {
    /// Nowhere: they end with the process.
    Memory,
    /// In this file, named absolutely; namespaces with the same file share it.
    File(PathBuf),
}

impl BackendConfig {
    /// What a backend with these settings promises.
    pub fn guarantee(&self) -> Guarantee {
        match *self {
            #[cfg(feature = "embedded")]
            Self::Embedded {
                path: EmbeddedPath::Memory,
                ..
            } => Guarantee::Ap,
            #[cfg(feature = "embedded")]
            Self::Embedded {
                path: EmbeddedPath::File(_),
                ..
            } => Guarantee::Cp,
            #[cfg(feature = "redis")]
            Self::Redis(_) => Guarantee::Ap,
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => Guarantee::Cp,
            #[cfg(feature = "redlock")]
            Self::Redlock(_) => Guarantee::Ap,
        }
    }
}

impl BackendConfig {
    /// Whether it is in a Redis, or in several.
    #[cfg(any(feature = "redis", feature = "redlock"))]
    pub fn is_redis(&self) -> bool {
        match *self {
            #[cfg(feature = "embedded")]
            Self::Embedded { .. } => false,
            #[cfg(feature = "redis")]
            Self::Redis(_) => true,
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => false,
            #[cfg(feature = "redlock")]
            Self::Redlock(_) => true,
        }
    }

    /// The file that only one store may have open.
    pub fn file(&self) -> Option<&Path> {
        match *self {
            #[cfg(feature = "embedded")]
            Self::Embedded { ref path, .. } => match path {
                EmbeddedPath::Memory => None,
                EmbeddedPath::File(file) => Some(file),
            },
            #[cfg(feature = "redis")]
            Self::Redis(_) => None,
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => None,
            #[cfg(feature = "redlock")]
            Self::Redlock(_) => None,
        }
    }
}

impl Origin<'_> {
    /// Makes the backend that the namespace names, and shows its settings in the section.
    pub fn backend(&self, section: &mut NamespaceSection) -> Result<BackendConfig, ConfigError> {
        match section.backend.as_str() {
            #[cfg(feature = "embedded")]
            EMBEDDED => {
                let settings = section.embedded.get_or_insert_default();
                Ok(BackendConfig::Embedded {
                    path: self.embedded_path(&settings.path)?,
                    claim_limit: settings.claim_limit.get(),
                })
            }
            #[cfg(feature = "redis")]
            REDIS => {
                let settings = section.redis.get_or_insert_default();
                Ok(BackendConfig::Redis(Box::new(self.redis(settings)?)))
            }
            #[cfg(feature = "etcd")]
            ETCD => {
                let settings = section.etcd.get_or_insert_default();
                Ok(BackendConfig::Etcd(Box::new(self.etcd(settings)?)))
            }
            #[cfg(feature = "redlock")]
            REDLOCK => {
                let settings = section.redlock.get_or_insert_default();
                Ok(BackendConfig::Redlock(Box::new(self.redlock(settings)?)))
            }
            other => Err(self.refuse(
                &["backend"],
                format!(
                    "must be a backend of this program ({}), not {other:?}",
                    BACKENDS.join(", ")
                ),
            )),
        }
    }

    #[cfg(feature = "embedded")]
    fn embedded_path(&self, path: &Path) -> Result<EmbeddedPath, ConfigError> {
        if path == Path::new(MEMORY) {
            return Ok(EmbeddedPath::Memory);
        }
        if path.file_name().is_none() {
            return Err(self.refuse(
                &["embedded", "path"],
                format!("must be the path of a file or {MEMORY:?}, not {path:?}"),
            ));
        }
        self.below_data_dir(path).map(EmbeddedPath::File)
    }

    #[cfg(feature = "embedded")]
    fn below_data_dir(&self, path: &Path) -> Result<PathBuf, ConfigError> {
        match self.data_dir {
            Some(directory) => Ok(directory.join(path)),
            None if path.is_absolute() => Ok(path.to_owned()),
            None => Err(self.source.refuse(
                &["data_dir"],
                "must be set where the environment has neither XDG_DATA_HOME nor HOME",
            )),
        }
    }
}
