//! Reads and checks the files with which this server logs in to a store: password, certificates and key.

use std::path::{Path, PathBuf};

use crate::backend::driver::InvalidSetting;
use crate::files;
use crate::tls::credentials::{check_authorities, check_pair};

/// A file or an environment variable in the settings that cannot be used. The error does not reveal the contents.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct SettingError {
    /// The key of the setting.
    pub key: &'static str,
    /// The problem.
    pub problem: String,
}

impl SettingError {
    /// The error of a setting that cannot be used.
    pub fn new(key: &'static str, problem: impl ToString) -> Self {
        Self {
            key,
            problem: problem.to_string(),
        }
    }
}

impl From<SettingError> for InvalidSetting {
    fn from(error: SettingError) -> Self {
        Self::new(error.key, error.problem)
    }
}

/// A certificate and its key, as PEM.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Reads a password without its trailing line break.
///
/// # Errors
/// [`SettingError`] with the file's key if there is none; another process may be about to write the file.
pub fn password(key: &'static str, path: &Path) -> Result<String, SettingError> {
    let refuse = |problem| SettingError::new(key, format!("{path:?} {problem}"));
    let text = String::from_utf8(read(key, path)?).map_err(|_| refuse("holds no UTF-8 text"))?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(refuse("is empty")),
        password => Ok(password.to_owned()),
    }
}

/// The files with certificates and keys, which have the keys `ca_file`, `cert_file` and `key_file` in each table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificates of the authorities.
    pub ca: Option<PathBuf>,
    /// The client certificate and its key.
    own: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    /// Those of a table.
    ///
    /// # Errors
    /// [`InvalidSetting`] for a certificate without its key, or a key without its certificate.
    pub fn new(
        ca: &Option<PathBuf>,
        certificate: &Option<PathBuf>,
        key: &Option<PathBuf>,
    ) -> Result<Self, InvalidSetting> {
        let (ca, own) = (ca.clone(), certificate.clone().zip(key.clone()));
        match (&own, certificate, key) {
            (None, Some(_), _) => Err(InvalidSetting::new("cert_file", "must come with a key_file")),
            (None, _, Some(_)) => Err(InvalidSetting::new("key_file", "must come with a cert_file")),
            _ => Ok(Self { ca, own }),
        }
    }

    /// Whether there is a client certificate.
    pub fn has_own(&self) -> bool {
        self.own.is_some()
    }

    /// Reads the certificates of the authorities.
    ///
    /// # Errors
    /// [`SettingError`] if there is none in the file, or one that cannot be used.
    pub fn authorities(&self) -> Result<Option<Vec<u8>>, SettingError> {
        let read = |path: &PathBuf| {
            let certificates = read("ca_file", path)?;
            let checked = check_authorities(&certificates);
            checked.map_err(|error| SettingError::new("ca_file", format!("{path:?}: {error}")))?;
            Ok(certificates)
        };
        self.ca.as_ref().map(read).transpose()
    }

    /// Reads the client certificate and its key.
    ///
    /// # Errors
    /// [`SettingError`] if they cannot be used together.
    pub fn own(&self) -> Result<Option<Pair>, SettingError> {
        let read = |(certificate, key): &(PathBuf, PathBuf)| {
            let pair = (read("cert_file", certificate)?, read("key_file", key)?);
            let checked = check_pair(&pair.0, &pair.1);
            checked.map_err(|error| SettingError::new("cert_file", format!("{certificate:?} and {key:?}: {error}")))?;
            Ok(pair)
        };
        self.own.as_ref().map(read).transpose()
    }
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, SettingError> {
    files::read(path).map_err(|error| SettingError::new(key, format!("cannot read {path:?}: {error}")))
}
