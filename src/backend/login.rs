//! How this server logs in to a store: user, password and TLS, and the keys of a store's table for them.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;

use crate::backend::driver::InvalidSetting;
use crate::backend::login_files::{self, LoginFileError, Pair};

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
    /// The certificates of the authorities.
    pub ca_file: Option<PathBuf>,
    /// The client certificate.
    pub cert_file: Option<PathBuf>,
    /// The key of the client certificate.
    pub key_file: Option<PathBuf>,
    /// The name in the servers' certificates.
    pub server_name: Option<String>,
}

/// The [`LoginConfig`] of a section, unchecked.
macro_rules! login_config {
    ($section:ident, $password_variable:expr) => {
        $crate::backend::login::LoginConfig {
            user: $section.user.clone().into(),
            password_file: $section.password_file.clone(),
            password_variable: $password_variable,
            ca_file: $section.ca_file.clone(),
            cert_file: $section.cert_file.clone(),
            key_file: $section.key_file.clone(),
            server_name: $section.server_name.clone(),
        }
    };
}
pub(crate) use login_config;

impl LoginConfig {
    /// These settings, if they are valid.
    ///
    /// # Errors
    /// [`InvalidSetting`] for the first key that is set without another that it needs.
    pub fn checked(self) -> Result<Self, InvalidSetting> {
        let refuse = |key, problem: &str| Err(InvalidSetting::new(key, problem));
        match (&self.cert_file, &self.key_file) {
            _ if self.password_file.is_some() && self.user.is_none() => {
                refuse("password_file", "must be absent where there is no user")
            }
            (Some(_), None) => refuse("cert_file", "must come with a key_file"),
            (None, Some(_)) => refuse("key_file", "must come with a cert_file"),
            (Some(_), Some(_)) if self.ca_file.is_none() => refuse("cert_file", "must come with a ca_file"),
            _ => Ok(self),
        }
    }

    /// Reads and checks the files.
    ///
    /// # Errors
    /// [`LoginFileError`] for the first file that cannot be used.
    pub fn credentials(&self) -> Result<Credentials, LoginFileError> {
        let password = match &self.password_file {
            Some(path) => login_files::password(path)?,
            None => std::env::var(self.password_variable).unwrap_or_default(),
        };
        let authority = self.ca_file.as_deref().map(login_files::authorities).transpose()?;
        let own_files = self.cert_file.as_ref().zip(self.key_file.as_ref());
        let identity = own_files.map(|(cert, key)| login_files::pair(cert, key)).transpose()?;
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
        let Err(error) = self.credentials() else {
            return Ok(());
        };
        let cause = error.source().map_or(String::new(), |cause| format!(": {cause}"));
        // The cause is appended unless the text already ends with it.
        let text = error.to_string();
        let text = if text.ends_with(&cause) { text } else { text + &cause };
        Err(InvalidSetting::new(self.key_of(&error), text))
    }

    /// The key of the file that cannot be used.
    fn key_of(&self, error: &LoginFileError) -> &'static str {
        let files = [
            ("password_file", &self.password_file),
            ("ca_file", &self.ca_file),
            ("key_file", &self.key_file),
        ];
        let is_its_file = |(_, file): &&(_, &Option<PathBuf>)| file.as_deref() == Some(error.path());
        files.iter().find(is_its_file).map_or("cert_file", |(key, _)| key)
    }
}
