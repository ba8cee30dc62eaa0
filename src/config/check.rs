//! What `fencepost config check` looks at beyond the text: all files that a server with a configuration would read
//! or make.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::error::ConfigError;
use super::source::Source;
use super::{BackendConfig, Config, Overrides, default_data_dir};
use crate::api::ListenAddress;
use crate::auth::{Policy, PolicyError, PolicySettings};
use crate::name::Namespace;
use crate::tls::{Certificates, TlsError, TlsSettings};

/// What every file of an embedded store begins with.
#[cfg(feature = "embedded")]
const STORE_BEGINS: &[u8] = b"redb";

impl Config {
    /// Reads a configuration as [`Config::load`] does, and then the files that it names, without using any of
    /// them: whatever of them a server would refuse at its start is refused here with the place of its key.
    ///
    /// # Errors
    /// [`ConfigError`] with the place, the key and the bound of what is wrong.
    pub fn check(mut overrides: Overrides) -> Result<Self, ConfigError> {
        let mut source = Source::read(overrides.config.take())?;
        let config = Self::of(&mut source, overrides, default_data_dir())?;
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
            checks.store(namespace, &settings.backend)?;
        }
        Ok(config)
    }
}

/// Checks that name the place of what they refuse.
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

    /// The folders of sockets, and that nothing else is where a socket is to be.
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
        let is_used = |backend: &BackendConfig| backend.file().is_some_and(|file| file.starts_with(data_dir));
        if !config.namespaces.values().any(|one| is_used(&one.backend)) {
            return Ok(());
        }
        let made = check_folder(data_dir);
        made.map_err(|problem| self.source.refuse(&["data_dir"], problem))
    }

    #[allow(unused_variables, reason = "a build without any backend has no store to look at")]
    fn store(&self, namespace: &Namespace, backend: &BackendConfig) -> Result<(), ConfigError> {
        let refuse = |table: &str, key: &str, problem: String| -> Result<(), ConfigError> {
            let path = ["namespaces", namespace.as_str(), table, key];
            Err(self.source.refuse(&path, problem))
        };
        // By value: a build without any backend has no case here.
        match *backend {
            #[cfg(feature = "embedded")]
            BackendConfig::Embedded { .. } => match backend.file().map(check_store_file) {
                Some(Err(problem)) => refuse("embedded", "path", problem),
                _ => Ok(()),
            },
            #[cfg(feature = "redis")]
            BackendConfig::Redis(ref config) => match config.access() {
                Err(error) => refuse("redis", first_key(error.key), error.to_string()),
                Ok(_) => Ok(()),
            },
            #[cfg(feature = "redlock")]
            BackendConfig::Redlock(ref config) => match config.access() {
                Err(error) => refuse("redlock", first_key(error.key), error.to_string()),
                Ok(_) => Ok(()),
            },
            #[cfg(feature = "etcd")]
            BackendConfig::Etcd(ref config) => match config.read() {
                Err(error) => {
                    use std::error::Error;
                    let cause = error.source().map_or(String::new(), |cause| format!(": {cause}"));
                    // Those that show their cause themselves do so once.
                    let text = error.to_string();
                    let text = if text.ends_with(&cause) { text } else { text + &cause };
                    refuse("etcd", config.key_of(&error), text)
                }
                Ok(_) => Ok(()),
            },
        }
    }
}

/// The first of several keys that are named together.
#[cfg(any(feature = "redis", feature = "redlock"))]
fn first_key(keys: &str) -> &str {
    keys.split([',', ' ']).next().unwrap_or(keys)
}

fn is_other_than_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket())
}

/// Whether a folder is there, or can be made, and can be written to.
fn check_folder(folder: &Path) -> Result<(), String> {
    let there = folder.ancestors().find(|path| fs::symlink_metadata(path).is_ok());
    let there = there.unwrap_or(Path::new("/"));
    if !fs::metadata(there).is_ok_and(|found| found.is_dir()) {
        return Err(format!(
            "must be a directory or free for one, and {} is not",
            there.display()
        ));
    }
    let access = Access::WRITE_OK | Access::EXEC_OK;
    rustix::fs::access(there, access).map_err(|error| format!("{}: cannot be written to: {error}", there.display()))
}

/// Whether an embedded store could use this file, or make it.
#[cfg(feature = "embedded")]
fn check_store_file(file: &Path) -> Result<(), String> {
    use std::io::Read;
    let Ok(found) = fs::metadata(file) else {
        return check_folder(file.parent().unwrap_or(file));
    };
    let path = file.display();
    if !found.is_file() {
        return Err(format!("must be the path of a file, and {path} is something else"));
    }
    let access = Access::READ_OK | Access::WRITE_OK;
    rustix::fs::access(file, access).map_err(|error| format!("{path}: cannot be read and written: {error}"))?;
    let mut begins = Vec::new();
    let opened = fs::File::open(file).map(|file| file.take(STORE_BEGINS.len() as u64));
    let read = opened.and_then(|mut file| file.read_to_end(&mut begins));
    read.map_err(|error| format!("{path}: cannot be read: {error}"))?;
    if begins.is_empty() || begins == STORE_BEGINS {
        Ok(())
    } else {
        Err(format!(
            "must be a file of an embedded store, and {path} holds something else"
        ))
    }
}
