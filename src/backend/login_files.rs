//! Reads and checks the files with which this server logs in to a store: password, certificates and key.

use std::io;
use std::path::{Path, PathBuf};

use crate::files;
use crate::tls::credentials::{CredentialsError, check_authorities, check_pair};

/// A file that cannot be used. The error does not reveal the contents.
#[derive(Debug, thiserror::Error)]
pub enum LoginFileError {
    /// The file cannot be read.
    #[error("cannot read {path:?}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The password is not UTF-8 text.
    #[error("{path:?} holds no UTF-8 text")]
    NoText {
        /// The file.
        path: PathBuf,
    },
    /// The file is empty.
    #[error("{path:?} is empty")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file has no usable certificates, or the key does not match.
    #[error("{path:?}: {source}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: CredentialsError,
    },
}

impl LoginFileError {
    /// The file.
    pub fn path(&self) -> &Path {
        let (Self::Unreadable { path, .. }
        | Self::NoText { path }
        | Self::Empty { path }
        | Self::Unusable { path, .. }) = self;
        path
    }
}

/// A certificate and its key, as PEM.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Reads a password without its trailing line break.
///
/// # Errors
/// [`LoginFileError`] if there is none; another process may be about to write the file.
pub fn password(path: &Path) -> Result<String, LoginFileError> {
    let text = String::from_utf8(read(path)?).map_err(|_| LoginFileError::NoText { path: path.into() })?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(LoginFileError::Empty { path: path.into() }),
        password => Ok(password.to_owned()),
    }
}

/// Reads the certificates of authorities.
///
/// # Errors
/// [`LoginFileError`] if there is none, or one that cannot be used.
pub fn authorities(path: &Path) -> Result<Vec<u8>, LoginFileError> {
    let certificates = read(path)?;
    check_authorities(&certificates).map_err(unusable(path))?;
    Ok(certificates)
}

/// Reads a certificate and its key.
///
/// # Errors
/// [`LoginFileError`] with the path of the certificate if they cannot be used together.
pub fn pair(certificate: &Path, key: &Path) -> Result<Pair, LoginFileError> {
    let pair = (read(certificate)?, read(key)?);
    check_pair(&pair.0, &pair.1).map_err(unusable(certificate))?;
    Ok(pair)
}

fn read(path: &Path) -> Result<Vec<u8>, LoginFileError> {
    files::read(path).map_err(|source| LoginFileError::Unreadable {
        path: path.into(),
        source,
    })
}

fn unusable(path: &Path) -> impl Fn(CredentialsError) -> LoginFileError {
    move |source| LoginFileError::Unusable {
        path: path.into(),
        source,
    }
}
