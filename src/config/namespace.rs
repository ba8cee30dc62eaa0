//! Converts a namespace's table into a [`NamespaceConfig`].

use std::path::Path;

use super::error::ConfigError;
use super::file::{NamespaceSection, ServerSection};
use super::source::Source;
use crate::backend::Guarantee;
use crate::backend::driver::{InvalidKey, InvalidSetting, StoreConfig};
use crate::limits::Limits;
use crate::schema::Count;

/// A namespace to serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceConfig {
    /// Its limits.
    pub limits: Limits,
    /// The guarantee that its store must give; already checked for these settings.
    pub guarantee: Option<Guarantee>,
    /// Its store.
    pub store: StoreConfig,
}

/// The context of a namespace's table.
pub(super) struct Origin<'a> {
    /// The file.
    pub source: &'a Source,
    /// The namespace.
    pub namespace: &'a str,
    /// The server's table.
    pub server: &'a ServerSection,
    /// The data directory, if it is known.
    pub data_dir: Option<&'a Path>,
}

impl Origin<'_> {
    /// Checks a namespace's table, and adds the defaults of its store.
    pub fn namespace(&self, section: &mut NamespaceSection) -> Result<NamespaceConfig, ConfigError> {
        self.check_ttls(section)?;
        let store = self.store(section)?;
        // The table of another store would be ignored.
        if let Some(spare) = section.stores.other_than(&section.backend) {
            let problem = format!("must be absent where backend is {:?}", section.backend);
            return Err(self.refuse(&[spare], problem));
        }
        self.bound_queue(section, &store)?;
        Ok(NamespaceConfig {
            limits: section.limits(self.server),
            guarantee: self.guarantee(section, &store)?,
            store,
        })
    }

    fn store(&self, section: &mut NamespaceSection) -> Result<StoreConfig, ConfigError> {
        let kind = section.backend.as_str();
        let Some(table) = section.stores.get_or_insert_default(kind) else {
            let built = section.stores.built();
            let problem = format!("must be a backend of this program ({built}), not {kind:?}");
            return Err(self.refuse(&["backend"], problem));
        };
        let checked = table.check(self.data_dir);
        checked.map_err(|invalid| self.source.refuse_setting(self.namespace, kind, invalid))
    }

    /// Lowers the default of `queue_limit` to what the store can hold, and refuses a longer queue that was asked for.
    fn bound_queue(&self, section: &mut NamespaceSection, store: &StoreConfig) -> Result<(), ConfigError> {
        let (asked, most) = (section.queue_limit.get(), store.queue_limit());
        if asked <= most {
            return Ok(());
        }
        if self.source.contains(&["namespaces", self.namespace, "queue_limit"]) {
            let problem = format!(
                "must be at most {most} for the backend {:?}, not {asked}",
                section.backend
            );
            return Err(self.refuse(&["queue_limit"], problem));
        }
        section.queue_limit = Count::nearest(most);
        Ok(())
    }

    /// Refuses the value at a key of this namespace.
    fn refuse(&self, key: &[&str], problem: String) -> ConfigError {
        let path = [&["namespaces", self.namespace], key].concat();
        self.source.refuse(&path, problem)
    }

    fn check_ttls(&self, section: &NamespaceSection) -> Result<(), ConfigError> {
        let (min, default, max) = (section.ttl_min, section.ttl_default, section.ttl_max);
        if min > max {
            return Err(self.refuse(&["ttl_min"], format!("must be at most ttl_max ({max}), not {min}")));
        }
        if default < min || default > max {
            let problem = format!("must be from ttl_min ({min}) to ttl_max ({max}), not {default}");
            return Err(self.refuse(&["ttl_default"], problem));
        }
        Ok(())
    }

    fn guarantee(&self, section: &NamespaceSection, store: &StoreConfig) -> Result<Option<Guarantee>, ConfigError> {
        let declared = section.guarantee.map(Guarantee::from);
        let given = store.guarantee();
        match declared {
            Some(declared) if declared > given => {
                let word = given.as_str();
                let problem = format!(
                    "must be at most {word}: the backend {:?} with these settings promises no more",
                    section.backend
                );
                Err(self.refuse(&["guarantee"], problem))
            }
            _ => {
                let kept = store.check_guarantee(declared.unwrap_or(given));
                kept.map_err(|invalid| self.source.refuse_setting(self.namespace, &section.backend, invalid))?;
                Ok(declared)
            }
        }
    }
}

impl Source {
    /// Refuses a setting of a namespace's store.
    pub(super) fn refuse_setting(&self, namespace: &str, kind: &str, invalid: InvalidSetting) -> ConfigError {
        match invalid.key {
            InvalidKey::OfStore(key) => self.refuse(&["namespaces", namespace, kind, key], invalid.problem),
            InvalidKey::OfServer(key) => self.refuse(&[key], invalid.problem),
        }
    }
}
