//! The checks of `fencepost config check` beyond the text: all files that a server with this configuration would read
//! or create.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::ConfigError;
use super::file::NamespaceSection;
use super::source::Source;
use super::{Config, Overrides, default_data_dir};
use crate::api::ListenAddress;
use crate::auth::{Policy, PolicyError, PolicySettings};
use crate::backend::driver::{Entry, StoreConfig};
use crate::files::check_folder;
use crate::name::Namespace;
use crate::tls::{Certificates, TlsError, TlsSettings};

impl Config {
    /// Reads a configuration like [`Config::load`], and checks the files in it without using them. A file that a server
    /// would refuse at its start is refused with the location of its key.
    ///
    /// # Errors
    /// [`ConfigError`] with the location, the key and the bound of the invalid value.
    pub fn check(overrides: Overrides, stores: &[Entry]) -> Result<Self, ConfigError> {
        let mut source = overrides.source()?;
        let config = Self::of(&mut source, overrides, stores, default_data_dir())?;
        let checks = Checks { source: &source };
        if let Some(settings) = config.tls() {
            checks.tls(settings)?;
        }
        if let Some(settings) = &config.policy {
            checks.policy(settings)?;
        }
        checks.sockets(&config)?;
        checks.data_dir(&config)?;
        for (namespace, settings) in &config.namespaces {
            checks.store(namespace, &config.file.namespaces[namespace.as_str()], &settings.store)?;
        }
        Ok(config)
    }
}

/// The checks, which report the location of a refused value.
struct Checks<'a> {
    source: &'a Source,
}

impl Checks<'_> {
    fn tls(&self, settings: &TlsSettings) -> Result<(), ConfigError> {
        let Err(error) = Certificates::read(settings.clone()) else {
            return Ok(());
        };
        let is_of = |path: &PathBuf| error.path().is_some_and(|wrong| wrong == path);
        let key = match &error {
            TlsError::NoAuthorities => "client_ca",
            _ if is_of(&settings.certificate) => "certificate",
            _ if is_of(&settings.key) => "key",
            _ => "client_ca",
        };
        Err(self.source.refuse(&["tls", key], error.to_string()))
    }

    fn policy(&self, settings: &PolicySettings) -> Result<(), ConfigError> {
        let Err(error) = Policy::open(settings) else {
            return Ok(());
        };
        let key: &[&str] = match error {
            PolicyError::BearerFile(_) => &["auth", "bearer_file"],
            PolicyError::TooMany { .. } => &["auth"],
            PolicyError::Jwt(_) => &["auth", "jwt", "jwks_file"],
        };
        Err(self.source.refuse(key, error.to_string()))
    }

    /// Checks that the directories of Unix sockets exist, and that no other file has the path of a socket.
    fn sockets(&self, config: &Config) -> Result<(), ConfigError> {
        for (number, address) in config.listen().enumerate() {
            let ListenAddress::Unix(path) = address else { continue };
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let found = fs::metadata(folder.unwrap_or(Path::new("."))).is_ok_and(|found| found.is_dir());
            let problem = if !found {
                format!(
                    "must be in a directory that is there, and that of {} is not",
                    path.display()
                )
            } else if is_other_than_socket(path) {
                format!("must be free for a socket, and {} is another file", path.display())
            } else {
                continue;
            };
            return Err(self.source.refuse(&["listen", &format!("[{number}]")], problem));
        }
        Ok(())
    }

    fn data_dir(&self, config: &Config) -> Result<(), ConfigError> {
        let Some(data_dir) = &config.file.data_dir else {
            return Ok(());
        };
        let is_used = |store: &StoreConfig| store.file().is_some_and(|file| file.starts_with(data_dir));
        if !config.namespaces.values().any(|one| is_used(&one.store)) {
            return Ok(());
        }
        let made = check_folder(data_dir);
        made.map_err(|problem| self.source.refuse(&["data_dir"], problem))
    }

    fn store(&self, namespace: &Namespace, section: &NamespaceSection, store: &StoreConfig) -> Result<(), ConfigError> {
        let checked = store.check_files();
        checked.map_err(|invalid| {
            self.source
                .refuse_setting(namespace.as_str(), &section.backend, invalid)
        })
    }
}

fn is_other_than_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket())
}
