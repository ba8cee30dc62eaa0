//! The configuration keys that the stores on Redis servers share: URLs, login and TLS.

use std::path::{Path, PathBuf};

use super::credentials::{self, Access, Tls};
use super::settings::OnEmptyStore;
use super::store_record::StoreRecord;
use super::url::connection_info;
use crate::backend::driver::{InvalidSetting, StoreError, StoreIdentity};
use crate::backend::login_files::{self, SettingError, TlsFiles};

/// The kind of the servers; see [`crate::backend::driver::StoreSettings::servers`].
pub const SERVERS: &str = "Redis";

/// A user, and the source of the password. The password itself is in no configuration file and no log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Login {
    user: Option<String>,
    password: Option<Password>,
}

/// The source of a password, and its key in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Password {
    File(&'static str, PathBuf),
    Env(&'static str, String),
}

impl From<SettingError> for StoreError {
    fn from(error: SettingError) -> Self {
        Self::new("its Redis", error)
    }
}

impl Password {
    fn read(&self) -> Result<String, SettingError> {
        match self {
            Self::File(key, path) => login_files::password(key, path),
            Self::Env(key, name) => {
                std::env::var(name).map_err(|error| SettingError::new(key, format!("the variable {name:?}: {error}")))
            }
        }
    }
}

impl Login {
    /// A user, and the file or the environment variable with the password, each with its key.
    ///
    /// # Errors
    /// [`InvalidSetting`] if both a file and a variable are set.
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

    /// The key of the password, or else of the user; `None` if both are absent.
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

/// The checked settings of the connection to the servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    login: Login,
    sentinel_login: Login,
    database: u32,
    tls: TlsFiles,
    /// The prefix of every key on the servers.
    pub prefix: String,
    /// How an empty server is treated.
    pub on_empty_store: OnEmptyStore,
    /// The server's data directory, if it is known.
    data_dir: Option<PathBuf>,
}

impl ServerConfig {
    /// Whether this server has granted leases in the store that is described so.
    pub fn record(&self, store: &str) -> StoreRecord {
        let name = format!("{store} {} {}", self.database, self.prefix);
        StoreRecord::new(self.data_dir.as_deref(), name)
    }

    /// The store of this kind that these settings name.
    pub fn identity(&self, kind: &str, servers: &[String]) -> StoreIdentity {
        let name = format!("{kind}, database {}, prefix {}", self.database, self.prefix);
        StoreIdentity::new(name, servers)
    }

    /// Reads the credentials for the servers and the sentinels.
    ///
    /// # Errors
    /// [`SettingError`] for the first file or variable that cannot be used.
    pub fn credentials(&self) -> Result<Access, SettingError> {
        let tls = Tls::new(self.tls.authorities()?, self.tls.own()?);
        Ok(Access {
            login: self.login.read(self.database)?,
            sentinel_login: self.sentinel_login.read(0)?,
            tls: tls.map_err(|error| SettingError::new("ca_file", error))?,
        })
    }
}

/// The keys of a store's table for the connection to its servers.
pub struct Keys<'a> {
    /// The key of the servers, and their URLs.
    pub servers: (&'static str, &'a [String]),
    /// The ACL user.
    pub user: &'a Option<String>,
    /// The file with the password.
    pub password_file: &'a Option<PathBuf>,
    /// The environment variable with the password.
    pub password_env: &'a Option<String>,
    /// The certificates of the authorities.
    pub ca_file: &'a Option<PathBuf>,
    /// The client certificate.
    pub cert_file: &'a Option<PathBuf>,
    /// The key of the client certificate.
    pub key_file: &'a Option<PathBuf>,
    /// The number of the database.
    pub database: u32,
    /// The prefix of every key on the servers.
    pub prefix: &'a str,
    /// How an empty server is treated.
    pub on_empty_store: &'a str,
}

/// The [`Keys`] of a section, with the name of its key of the servers.
macro_rules! keys {
    ($section:ident.$servers:ident) => {
        $crate::backend::redis_server::config::Keys {
            servers: (stringify!($servers), &$section.$servers),
            user: &$section.user,
            password_file: &$section.password_file,
            password_env: &$section.password_env,
            ca_file: &$section.ca_file,
            cert_file: &$section.cert_file,
            key_file: &$section.key_file,
            database: $section.database.get(),
            prefix: &$section.prefix,
            on_empty_store: &$section.on_empty_store,
        }
    };
}
pub(crate) use keys;

impl Keys<'_> {
    /// Checks the keys, and after the login that for the sentinels. `data_dir` is the server's data directory, if it is
    /// known.
    ///
    /// # Errors
    /// [`InvalidSetting`] for the first invalid value.
    pub fn check(
        &self,
        data_dir: Option<&Path>,
        sentinel_login: impl FnOnce() -> Result<Login, InvalidSetting>,
    ) -> Result<ServerConfig, InvalidSetting> {
        self.check_urls()?;
        let password_file = ("password_file", self.password_file);
        Ok(ServerConfig {
            login: Login::new(self.user, password_file, ("password_env", self.password_env))?,
            sentinel_login: sentinel_login()?,
            tls: self.tls()?,
            database: self.database,
            prefix: self.prefix.to_owned(),
            on_empty_store: self.on_empty_store()?,
            data_dir: data_dir.map(Path::to_owned),
        })
    }

    fn check_urls(&self) -> Result<(), InvalidSetting> {
        if self.prefix.is_empty() || self.prefix.contains(['{', '}']) {
            let problem = "must be at least one character, and no brace";
            return Err(InvalidSetting::new("prefix", problem));
        }
        // The errors do not contain the URL, because it may contain a password.
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

    /// The files with certificates and keys. Refuses one that would not be used, and one of a pair without the other.
    fn tls(&self) -> Result<TlsFiles, InvalidSetting> {
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
        TlsFiles::new(self.ca_file, self.cert_file, self.key_file)
    }

    fn on_empty_store(&self) -> Result<OnEmptyStore, InvalidSetting> {
        match self.on_empty_store {
            "admit" => Ok(OnEmptyStore::Admit),
            "quarantine" => Ok(OnEmptyStore::Quarantine),
            other => Err(InvalidSetting::new(
                "on_empty_store",
                format!("must be \"admit\" or \"quarantine\", not {other:?}"),
            )),
        }
    }
}
