//! A namespace's table becomes a [`NamespaceConfig`].

use std::path::Path;

use super::NamespaceConfig;
use super::backend::BackendConfig;
use super::error::ConfigError;
use super::file::{NamespaceSection, ServerSection};
use super::section::Section;
use super::source::Source;
use crate::backend::Guarantee;

/// The table of a namespace, and where it stands.
pub(super) struct Origin<'a> {
    /// The file.
    pub source: &'a Source,
    /// The namespace.
    pub namespace: &'a str,
    /// What the file says of the server.
    pub server: &'a ServerSection,
    /// The directory of what is stored, where it is known.
    #[cfg_attr(
        not(feature = "embedded"),
        expect(dead_code, reason = "only stores of this machine have files")
    )]
    pub data_dir: Option<&'a Path>,
}

impl Origin<'_> {
    /// Checks a namespace's table, and puts the defaults of its backend into it.
    pub fn namespace(&self, section: &mut NamespaceSection) -> Result<NamespaceConfig, ConfigError> {
        self.check_ttls(section)?;
        let backend = self.backend(section)?;
        self.check_tables(section)?;
        Ok(NamespaceConfig {
            limits: section.limits(self.server),
            guarantee: self.guarantee(section, &backend)?,
            backend,
        })
    }

    /// The refusal of the value at a key of this namespace.
    pub fn refuse(&self, key: &[&str], problem: String) -> ConfigError {
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

    /// The settings of a backend that the namespace does not have would be ignored.
    fn check_tables(&self, section: &NamespaceSection) -> Result<(), ConfigError> {
        let tables = section.tables();
        let spare = tables
            .iter()
            .find_map(|table| table.path.first().filter(|table| **table != section.backend));
        match spare {
            Some(table) => Err(self.refuse(
                &[table],
                format!("must be absent where backend is {:?}", section.backend),
            )),
            None => Ok(()),
        }
    }

    fn guarantee(&self, section: &NamespaceSection, backend: &BackendConfig) -> Result<Option<Guarantee>, ConfigError> {
        let declared = section.guarantee.map(Guarantee::from);
        let given = backend.guarantee();
        match declared {
            Some(declared) if declared > given => {
                let word = given.word();
                let problem = format!(
                    "must be at most {word}: the backend {:?} with these settings promises no more",
                    section.backend
                );
                Err(self.refuse(&["guarantee"], problem))
            }
            _ => Ok(declared),
        }
    }
}
