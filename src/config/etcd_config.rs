//! The settings of an etcd backend, checked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::ConfigError;
use super::file::EtcdSection;
use super::namespace::Origin;
use crate::files;
use crate::tls::credentials::{CredentialsError, check_authorities, check_pair};

/// Where a password is looked for that no file holds.
const PASSWORD: &str = "FENCEPOST_ETCD_PASSWORD";

/// The settings of an etcd backend. Namespaces with the same ones share its connections.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct EtcdConfig {
    /// Its members, the preferred one first.
    pub endpoints: Vec<String>,
    /// What every key begins with.
    pub root: String,
    /// How long a request may take.
    pub timeout: Duration,
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// How long the waiting claims of a server outlive it.
    pub session_ttl: Duration,
    /// The user.
    pub user: Option<String>,
    /// The name in the members' certificates, where it is not that of the endpoint.
    pub server_name: Option<String>,
    password_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    own_files: Option<(PathBuf, PathBuf)>,
}

/// What the files of an etcd backend hold.
pub struct EtcdFiles {
    /// The password of the user; empty where there is none.
    pub password: String,
    /// Who may sign for the members, as PEM; nothing without TLS.
    pub authority: Option<Vec<u8>>,
    /// This server's own certificate and key, as PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// A file that an etcd backend needs and that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EtcdFileError {
    /// It cannot be read.
    #[error("cannot read {path:?}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It holds no password.
    #[error("{path:?} is empty")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// It holds no certificates, or none that its key fits.
    #[error("{path:?}: {source}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: CredentialsError,
    },
}

impl EtcdConfig {
    /// Reads the files that it names, and checks what can be checked before they are used.
    ///
    /// # Errors
    /// [`EtcdFileError`] for the first of them that cannot be used.
    pub fn read(&self) -> Result<EtcdFiles, EtcdFileError> {
        let password = match &self.password_file {
            Some(path) => password(path)?,
            None => std::env::var(PASSWORD).unwrap_or_default(),
        };
        let own = |(certificate, key): &(PathBuf, PathBuf)| {
            let pair = (read(certificate)?, read(key)?);
            check_pair(&pair.0, &pair.1).map_err(unusable(certificate))?;
            Ok(pair)
        };
        let authority = |path: &PathBuf| {
            let certificates = read(path)?;
            check_authorities(&certificates).map_err(unusable(path))?;
            Ok(certificates)
        };
        Ok(EtcdFiles {
            password,
            authority: self.ca_file.as_ref().map(authority).transpose()?,
            identity: self.own_files.as_ref().map(own).transpose()?,
        })
    }
}

impl EtcdConfig {
    /// The key that names the file that cannot be used.
    pub(super) fn key_of(&self, error: &EtcdFileError) -> &'static str {
        let (EtcdFileError::Unreadable { path, .. }
        | EtcdFileError::Empty { path }
        | EtcdFileError::Unusable { path, .. }) = error;
        let own = self.own_files.as_ref();
        if self.password_file.as_ref() == Some(path) {
            "password_file"
        } else if self.ca_file.as_ref() == Some(path) {
            "ca_file"
        } else if own.is_some_and(|(_, key)| key == path) {
            "key_file"
        } else {
            "cert_file"
        }
    }
}

fn password(path: &Path) -> Result<String, EtcdFileError> {
    let text = String::from_utf8_lossy(&read(path)?).into_owned();
    match text.trim_end_matches(['\r', '\n']) {
        // It may be about to be written.
        "" => Err(EtcdFileError::Empty { path: path.into() }),
        password => Ok(password.to_owned()),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, EtcdFileError> {
    files::read(path).map_err(|source| EtcdFileError::Unreadable {
        path: path.into(),
        source,
    })
}

fn unusable(path: &Path) -> impl Fn(CredentialsError) -> EtcdFileError {
    move |source| EtcdFileError::Unusable {
        path: path.into(),
        source,
    }
}

impl Origin<'_> {
    /// Checks the table of an etcd backend.
    pub(super) fn etcd(&self, section: &EtcdSection) -> Result<EtcdConfig, ConfigError> {
        self.check_endpoints(section)?;
        let refuse = |key: &str, problem: &str| Err(self.refuse(&["etcd", key], problem.to_owned()));
        if !section.root.starts_with('/') || section.root.contains(char::is_control) {
            return refuse("root", "must begin with \"/\" and hold no control character");
        }
        if section.password_file.is_some() && section.user.is_none() {
            return refuse("password_file", "must be absent where there is no user");
        }
        let own_files = match (&section.cert_file, &section.key_file) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) => return refuse("cert_file", "must come with a key_file"),
            (None, Some(_)) => return refuse("key_file", "must come with a cert_file"),
        };
        if own_files.is_some() && section.ca_file.is_none() {
            return refuse("cert_file", "must come with a ca_file");
        }
        Ok(EtcdConfig {
            endpoints: section.endpoints.clone(),
            root: section.root.clone(),
            timeout: section.timeout.get(),
            connect_timeout: section.connect_timeout.get(),
            session_ttl: section.session_ttl.get(),
            user: section.user.clone(),
            password_file: section.password_file.clone(),
            ca_file: section.ca_file.clone(),
            own_files,
            server_name: section.server_name.clone(),
        })
    }

    fn check_endpoints(&self, section: &EtcdSection) -> Result<(), ConfigError> {
        let scheme = if section.ca_file.is_some() {
            "https://"
        } else {
            "http://"
        };
        let good = |endpoint: &String| endpoint.strip_prefix(scheme).is_some_and(|host| !host.is_empty());
        if !section.endpoints.is_empty() && section.endpoints.iter().all(good) {
            return Ok(());
        }
        let problem = "must be at least one, each http://, or https:// where there is a ca_file";
        Err(self.refuse(&["etcd", "endpoints"], problem.to_owned()))
    }
}
