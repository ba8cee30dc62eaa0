//! What the tables of stores over Redis servers share: where servers are, how to log in, TLS.

use std::path::PathBuf;

use super::credentials::{self, Access};
use super::settings::OnEmptyStore;
use super::url::connection_info;
use crate::backend::driver::{InvalidSetting, StoreError};
use crate::backend::login_files::{self, LoginFileError};

/// What the servers are called; see [`crate::backend::driver::Driver::SERVERS`].
pub const SERVERS: &str = "Redis";

/// A user, and where the password is: neither a config file nor a log shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Login {
    user: Option<String>,
    password: Option<Password>,
}

/// Where a password is, and the key that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Password {
    File(&'static str, PathBuf),
    Env(&'static str, String),
}

/// The files of certificates and keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    ca: Option<PathBuf>,
    /// The certificate and its key.
    client: Option<(PathBuf, PathBuf)>,
}

/// A file or a variable that a setting names cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct SettingError {
    /// The key of the setting; of several the first is blamed.
    key: &'static str,
    problem: String,
}

impl From<SettingError> for StoreError {
    fn from(error: SettingError) -> Self {
        Self::new("its Redis", error)
    }
}

impl From<SettingError> for InvalidSetting {
    fn from(error: SettingError) -> Self {
        let first = error.key.split([',', ' ']).next();
        Self::new(first.unwrap_or(error.key), error.to_string())
    }
}

/// Why the setting at a key cannot be used.
pub fn unusable(key: &'static str, problem: impl ToString) -> SettingError {
    SettingError {
        key,
        problem: problem.to_string(),
    }
}

fn of_file(key: &'static str) -> impl Fn(LoginFileError) -> SettingError {
    move |error| match error {
        LoginFileError::Unreadable { path, source } => unusable(key, format!("{path:?}: {source}")),
        other => unusable(key, other),
    }
}

impl Password {
    fn read(&self) -> Result<String, SettingError> {
        match self {
            Self::File(key, path) => login_files::password(path).map_err(of_file(key)),
            Self::Env(key, name) => {
                std::env::var(name).map_err(|error| unusable(key, format!("the variable {name:?}: {error}")))
            }
        }
    }
}

impl Login {
    /// A user, and where the password is said to be, each with its key.
    ///
    /// # Errors
    /// [`InvalidSetting`] where it is said to be in two places.
    pub fn new(
        user: &Option<String>,
        (file_key, file): (&'static str, &Option<PathBuf>),
        (env_key, env): (&'static str, &Option<String>),
    ) -> Result<Self, InvalidSetting> {
        let password = match (file, env) {
            (None, None) => None,
            (Some(path), None) => Some(Password::File(file_key, path.clone())),
            (None, Some(name)) => Some(Password::Env(env_key, name.clone())),
            (Some(_), Some(_)) => {
                let problem = format!("must be absent where {file_key} is set");
                return Err(InvalidSetting::new(env_key, problem));
            }
        };
        Ok(Self {
            user: user.clone(),
            password,
        })
    }

    /// The key that gives it: that of the password, else that of the user; none where both are absent.
    pub fn key(&self, user_key: &'static str) -> Option<&'static str> {
        match &self.password {
            Some(Password::File(key, _) | Password::Env(key, _)) => Some(key),
            None => self.user.as_ref().map(|_| user_key),
        }
    }

    fn read(&self, database: u32) -> Result<credentials::Login, SettingError> {
        Ok(credentials::Login {
            user: self.user.clone(),
            password: self.password.as_ref().map(Password::read).transpose()?,
            database: database.into(),
        })
    }
}

impl Tls {
    fn read(&self) -> Result<credentials::Tls, SettingError> {
        let ca = self.ca.as_deref().map(login_files::authorities).transpose();
        let ca = ca.map_err(of_file("ca_file"))?;
        let own = |(certificate, key): &(PathBuf, PathBuf)| {
            login_files::pair(certificate, key).map_err(|error| match error {
                LoginFileError::Unusable { source, .. } => unusable(
                    "cert_file and key_file",
                    format!("{certificate:?} and {key:?}: {source}"),
                ),
                other if other.path() == certificate => of_file("cert_file")(other),
                other => of_file("key_file")(other),
            })
        };
        let client = self.client.as_ref().map(own).transpose()?;
        credentials::Tls::new(ca, client).map_err(|error| unusable("ca_file, cert_file or key_file", error))
    }
}

/// Reads the credentials for the servers, of which `sentinel_login` is for the sentinels.
///
/// # Errors
/// [`SettingError`] for the first file or variable that cannot be used.
pub fn credentials(login: &Login, database: u32, sentinel_login: &Login, tls: &Tls) -> Result<Access, SettingError> {
    Ok(Access {
        login: login.read(database)?,
        sentinel_login: sentinel_login.read(0)?,
        tls: tls.read()?,
    })
}

/// What an empty server means.
pub fn on_empty_store(admit: bool) -> OnEmptyStore {
    match admit {
        true => OnEmptyStore::Admit,
        false => OnEmptyStore::Quarantine,
    }
}

/// The keys of a table that say how its servers are reached.
pub struct Keys<'a> {
    /// The key of the servers, and their URLs.
    pub servers: (&'static str, &'a [String]),
    /// The ACL user.
    pub user: &'a Option<String>,
    /// Where the password is.
    pub password_file: &'a Option<PathBuf>,
    /// Where else.
    pub password_env: &'a Option<String>,
    /// Who may sign certificates.
    pub ca_file: &'a Option<PathBuf>,
    /// The own certificate.
    pub cert_file: &'a Option<PathBuf>,
    /// Its key.
    pub key_file: &'a Option<PathBuf>,
    /// What every key in the servers begins with.
    pub prefix: &'a str,
    /// What an empty server means.
    pub on_empty_store: &'a str,
}

impl Keys<'_> {
    /// Checks where the servers are said to be, and what their keys begin with.
    ///
    /// # Errors
    /// [`InvalidSetting`] for the first that is wrong.
    pub fn check_urls(&self) -> Result<(), InvalidSetting> {
        if self.prefix.is_empty() || self.prefix.contains(['{', '}']) {
            let problem = "must be at least one character, and no brace";
            return Err(InvalidSetting::new("prefix", problem));
        }
        // A URL may hold a password: it is not repeated.
        let (key, urls) = self.servers;
        let refuse = |problem: &str| Err(InvalidSetting::new(key, problem));
        for url in urls {
            let Ok(info) = connection_info(url) else {
                return refuse("must each be redis://, rediss:// or unix://");
            };
            let login = info.redis_settings();
            if login.username().is_some() || login.password().is_some() {
                return refuse("must each be without user and password, which have keys of their own");
            }
        }
        Ok(())
    }

    /// The login at the servers.
    ///
    /// # Errors
    /// As [`Login::new`].
    pub fn login(&self) -> Result<Login, InvalidSetting> {
        Login::new(
            self.user,
            ("password_file", self.password_file),
            ("password_env", self.password_env),
        )
    }

    /// Where certificates and keys are said to be.
    ///
    /// # Errors
    /// [`InvalidSetting`] for a file that is spare, or misses the other of a pair.
    pub fn tls(&self) -> Result<Tls, InvalidSetting> {
        let files = [
            ("ca_file", self.ca_file),
            ("cert_file", self.cert_file),
            ("key_file", self.key_file),
        ];
        let encrypted = self.servers.1.iter().any(|url| url.starts_with("rediss://"));
        let spare = files.iter().find(|(_, file)| file.is_some() && !encrypted);
        if let Some((key, _)) = spare {
            return Err(InvalidSetting::new(key, "must be absent where no URL is rediss://"));
        }
        let alone =
            |key: &'static str, other: &str| Err(InvalidSetting::new(key, format!("must be absent where {other} is")));
        let client = match (self.cert_file, self.key_file) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) => return alone("cert_file", "key_file"),
            (None, Some(_)) => return alone("key_file", "cert_file"),
        };
        Ok(Tls {
            ca: self.ca_file.clone(),
            client,
        })
    }

    /// Whether an empty server is a new one.
    ///
    /// # Errors
    /// [`InvalidSetting`] for another word than "admit" and "quarantine".
    pub fn admits_first(&self) -> Result<bool, InvalidSetting> {
        match self.on_empty_store {
            "admit" => Ok(true),
            "quarantine" => Ok(false),
            other => Err(InvalidSetting::new(
                "on_empty_store",
                format!("must be \"admit\" or \"quarantine\", not {other:?}"),
            )),
        }
    }
}
