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

/// The keys of a store's table for the login.
pub struct LoginKeys<'a> {
    /// The user.
    pub user: &'a Option<String>,
    /// The file with the password.
    pub password_file: &'a Option<PathBuf>,
    /// The certificates of the authorities.
    pub ca_file: &'a Option<PathBuf>,
    /// The client certificate.
    pub cert_file: &'a Option<PathBuf>,
    /// The key of the client certificate.
    pub key_file: &'a Option<PathBuf>,
    /// The name in the servers' certificates.
    pub server_name: &'a Option<String>,
}

/// The [`LoginKeys`] of a section.
macro_rules! login_keys {
    ($section:ident) => {
        $crate::backend::login::LoginKeys {
            user: &$section.user,
            password_file: &$section.password_file,
            ca_file: &$section.ca_file,
            cert_file: &$section.cert_file,
            key_file: &$section.key_file,
            server_name: &$section.server_name,
        }
    };
}
pub(crate) use login_keys;

impl LoginKeys<'_> {
    /// Checks the keys. `password_variable` is the environment variable with the password, if there is no file.
    ///
    /// # Errors
    /// [`InvalidSetting`] for the first key that is set without another that it needs.
    pub fn check(&self, password_variable: &'static str) -> Result<LoginConfig, InvalidSetting> {
        let refuse = |key, problem: &str| Err(InvalidSetting::new(key, problem));
        if self.password_file.is_some() && self.user.is_none() {
            return refuse("password_file", "must be absent where there is no user");
        }
        let own_files = match (self.cert_file, self.key_file) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) => return refuse("cert_file", "must come with a key_file"),
            (None, Some(_)) => return refuse("key_file", "must come with a cert_file"),
        };
        if own_files.is_some() && self.ca_file.is_none() {
            return refuse("cert_file", "must come with a ca_file");
        }
        Ok(LoginConfig {
            user: self.user.clone(),
            password_file: self.password_file.clone(),
            password_variable,
            ca_file: self.ca_file.clone(),
            own_files,
            server_name: self.server_name.clone(),
        })
    }
}

/// The checked settings of the login, with the paths of its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginConfig {
    user: Option<String>,
    password_file: Option<PathBuf>,
    password_variable: &'static str,
    ca_file: Option<PathBuf>,
    /// The certificate and its key.
    own_files: Option<(PathBuf, PathBuf)>,
    server_name: Option<String>,
}

impl LoginConfig {
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
        let identity = self.own_files.as_ref().map(|(cert, key)| login_files::pair(cert, key));
        let identity = identity.transpose()?;
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
        let is = |file: Option<&PathBuf>| file.is_some_and(|file| file == error.path());
        if is(self.password_file.as_ref()) {
            "password_file"
        } else if is(self.ca_file.as_ref()) {
            "ca_file"
        } else if is(self.own_files.as_ref().map(|(_, key)| key)) {
            "key_file"
        } else {
            "cert_file"
        }
    }
}
