//! How this server logs in to a store: user, password and TLS, and the keys of a store's table for them.

use std::fmt;
use std::path::PathBuf;

use crate::backend::driver::InvalidSetting;
use crate::backend::login_files::{self, Pair, SettingError, TlsFiles};

/// The credentials of this server, and the authority that verifies the certificates of a store's servers.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Credentials {
    /// The user, if any.
    pub login: Option<Login>,
    /// TLS, if the connections use it.
    pub tls: Option<Tls>,
}

/// A user of a store.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The user's name.
    pub user: String,
    /// The user's password.
    pub password: String,
}

/// Certificates, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Tls {
    /// The certificates of the authorities that sign the servers' certificates.
    pub authority: Vec<u8>,
    /// This server's own certificate and key.
    pub identity: Option<Pair>,
    /// The name in the servers' certificates, if it differs from the host.
    pub server_name: Option<String>,
}

impl fmt::Debug for Credentials {
    /// Without the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.login.as_ref().map(|login| &login.user))
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

/// The settings of the login, with the paths of its files. Checked once it is in the settings of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginConfig {
    /// The user.
    pub user: Option<String>,
    /// The file with the password.
    pub password_file: Option<PathBuf>,
    /// The environment variable with the password, if there is no file.
    pub password_variable: &'static str,
    /// The files with certificates and keys.
    pub tls: TlsFiles,
    /// The name in the servers' certificates.
    pub server_name: Option<String>,
}

/// The [`LoginConfig`] of a section.
#[cfg(any(feature = "etcd", feature = "mysql", feature = "postgres", feature = "zookeeper"))]
macro_rules! login_config {
    ($section:ident, $password_variable:expr) => {
        $crate::backend::login::LoginConfig {
            user: $section.user.clone().into(),
            password_file: $section.password_file.clone(),
            password_variable: $password_variable,
            tls: $crate::backend::login_files::TlsFiles::new(
                &$section.ca_file,
                &$section.cert_file,
                &$section.key_file,
            )?,
            server_name: $section.server_name.clone(),
        }
    };
}
#[cfg(any(feature = "etcd", feature = "mysql", feature = "postgres", feature = "zookeeper"))]
pub(crate) use login_config;

impl LoginConfig {
    /// These settings, if they are valid.
    ///
    /// # Errors
    /// [`InvalidSetting`] for the first key that is set without another that it needs.
    pub fn checked(self) -> Result<Self, InvalidSetting> {
        let refuse = |key, problem: &str| Err(InvalidSetting::new(key, problem));
        match (&self.user, &self.tls.ca) {
            (None, _) if self.password_file.is_some() => {
                refuse("password_file", "must be absent where there is no user")
            }
            (_, None) if self.tls.has_own() => refuse("cert_file", "must come with a ca_file"),
            _ => Ok(self),
        }
    }

    /// Reads and checks the files.
    ///
    /// # Errors
    /// [`SettingError`] for the first file that cannot be used.
    pub fn credentials(&self) -> Result<Credentials, SettingError> {
        let password = match &self.password_file {
            Some(path) => login_files::password("password_file", path)?,
            None => std::env::var(self.password_variable).unwrap_or_default(),
        };
        let (authority, identity) = (self.tls.authorities()?, self.tls.own()?);
        Ok(Credentials {
            login: self.user.clone().map(|user| Login { user, password }),
            tls: authority.map(|authority| Tls {
                authority,
                identity,
                server_name: self.server_name.clone(),
            }),
        })
    }

    /// Checks the files.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the key of the first file that cannot be used.
    pub fn check_files(&self) -> Result<(), InvalidSetting> {
        self.credentials().map(drop).map_err(InvalidSetting::from)
    }
}
