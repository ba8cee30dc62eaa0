//! What the tables of backends over Redis servers share: where servers are, how to log in, TLS.

use std::path::{Path, PathBuf};

use super::error::ConfigError;
use super::namespace::Origin;
use crate::backend::redis_server::credentials::{Access, Login, Tls};
use crate::backend::redis_server::settings::connection_info;
use crate::files;
use crate::tls::credentials::{check_authorities, check_pair};

/// A user, and where the password is: neither a config file nor a log shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LoginFrom {
    /// The user.
    pub user: Option<String>,
    /// Its password.
    pub password: Option<PasswordFrom>,
}

/// Where a password is, and the key that says so.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PasswordFrom {
    /// In a file.
    File(&'static str, PathBuf),
    /// In a variable.
    Env(&'static str, String),
}

/// The files of certificates and keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TlsFrom {
    ca: Option<PathBuf>,
    client: Option<(PathBuf, PathBuf)>,
}

/// A file or a variable that a setting names cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct RedisSettingsError {
    /// The key of the setting.
    pub key: &'static str,
    /// What is wrong.
    pub problem: String,
}

/// Why the setting at a key cannot be used.
pub(super) fn unusable(key: &'static str, problem: impl ToString) -> RedisSettingsError {
    RedisSettingsError {
        key,
        problem: problem.to_string(),
    }
}

fn file(key: &'static str, path: &Path) -> Result<Vec<u8>, RedisSettingsError> {
    files::read(path).map_err(|error| unusable(key, format!("{path:?}: {error}")))
}

impl PasswordFrom {
    fn read(&self) -> Result<String, RedisSettingsError> {
        match self {
            Self::File(key, path) => {
                let text = String::from_utf8(file(key, path)?);
                let text = text.map_err(|_| unusable(key, format!("{path:?} holds no UTF-8 text")))?;
                match text.trim_end_matches(['\r', '\n']) {
                    // It may be about to be written.
                    "" => Err(unusable(key, format!("{path:?} is empty"))),
                    password => Ok(password.to_owned()),
                }
            }
            Self::Env(key, name) => {
                std::env::var(name).map_err(|error| unusable(key, format!("the variable {name:?}: {error}")))
            }
        }
    }
}

impl LoginFrom {
    /// Reads the password.
    fn read(&self) -> Result<Login, RedisSettingsError> {
        Ok(Login {
            user: self.user.clone(),
            password: self.password.as_ref().map(PasswordFrom::read).transpose()?,
            database: 0,
        })
    }
}

impl TlsFrom {
    /// Reads the files, and checks what can be checked before they are used.
    fn read(&self) -> Result<Tls, RedisSettingsError> {
        let ca = self.ca.as_ref().map(|path| file("ca_file", path)).transpose()?;
        if let (Some(ca), Some(path)) = (&ca, &self.ca) {
            check_authorities(ca).map_err(|error| unusable("ca_file", format!("{path:?}: {error}")))?;
        }
        let client = self.client.as_ref().map(own).transpose()?;
        Tls::new(ca, client).map_err(|error| unusable("ca_file, cert_file or key_file", error))
    }
}

fn own((certificate, key): &(PathBuf, PathBuf)) -> Result<(Vec<u8>, Vec<u8>), RedisSettingsError> {
    let pair = (file("cert_file", certificate)?, file("key_file", key)?);
    let unfit = |error| {
        unusable(
            "cert_file and key_file",
            format!("{certificate:?} and {key:?}: {error}"),
        )
    };
    check_pair(&pair.0, &pair.1).map_err(unfit)?;
    Ok(pair)
}

/// Reads all that proves this server to servers, of which `sentinel_login` is for the sentinels.
pub(super) fn read_access(
    login: &LoginFrom,
    database: u32,
    sentinel_login: &LoginFrom,
    tls: &TlsFrom,
) -> Result<Access, RedisSettingsError> {
    Ok(Access {
        login: Login {
            database: database.into(),
            ..login.read()?
        },
        sentinel_login: sentinel_login.read()?,
        tls: tls.read()?,
    })
}

/// The keys of a table that say how its servers are reached.
pub(super) struct Keys<'a> {
    /// The table's name.
    pub table: &'static str,
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
    pub first_start: &'a str,
}

impl Origin<'_> {
    /// Checks where the servers are said to be, and what their keys begin with.
    pub(super) fn check_urls(&self, keys: &Keys<'_>) -> Result<(), ConfigError> {
        if keys.prefix.is_empty() || keys.prefix.contains(['{', '}']) {
            let problem = "must be at least one character, and no brace";
            return Err(self.refuse(&[keys.table, "prefix"], problem.to_owned()));
        }
        // A URL may hold a password: it is not repeated.
        let (key, urls) = keys.servers;
        let refuse = |problem: &str| Err(self.refuse(&[keys.table, key], problem.to_owned()));
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

    /// Where a password is said to be.
    pub(super) fn password(
        &self,
        table: &str,
        (file_key, file): (&'static str, &Option<PathBuf>),
        (env_key, env): (&'static str, &Option<String>),
    ) -> Result<Option<PasswordFrom>, ConfigError> {
        match (file, env) {
            (None, None) => Ok(None),
            (Some(path), None) => Ok(Some(PasswordFrom::File(file_key, path.clone()))),
            (None, Some(name)) => Ok(Some(PasswordFrom::Env(env_key, name.clone()))),
            (Some(_), Some(_)) => {
                let problem = format!("must be absent where {file_key} is set");
                Err(self.refuse(&[table, env_key], problem))
            }
        }
    }

    /// The login at the servers.
    pub(super) fn login(&self, keys: &Keys<'_>) -> Result<LoginFrom, ConfigError> {
        Ok(LoginFrom {
            user: keys.user.clone(),
            password: self.password(
                keys.table,
                ("password_file", keys.password_file),
                ("password_env", keys.password_env),
            )?,
        })
    }

    /// Where certificates and keys are said to be.
    pub(super) fn tls(&self, keys: &Keys<'_>) -> Result<TlsFrom, ConfigError> {
        let files = [
            ("ca_file", keys.ca_file),
            ("cert_file", keys.cert_file),
            ("key_file", keys.key_file),
        ];
        let encrypted = keys.servers.1.iter().any(|url| url.starts_with("rediss://"));
        let spare = files.iter().find(|(_, file)| file.is_some() && !encrypted);
        if let Some((key, _)) = spare {
            let problem = "must be absent where no URL is rediss://";
            return Err(self.refuse(&[keys.table, key], problem.to_owned()));
        }
        let alone = |key: &str, other: &str| {
            let problem = format!("must be absent where {other} is");
            Err(self.refuse(&[keys.table, key], problem))
        };
        let client = match (keys.cert_file, keys.key_file) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) => return alone("cert_file", "key_file"),
            (None, Some(_)) => return alone("key_file", "cert_file"),
        };
        Ok(TlsFrom {
            ca: keys.ca_file.clone(),
            client,
        })
    }

    /// Whether an empty server is a new one.
    pub(super) fn admits_first(&self, keys: &Keys<'_>) -> Result<bool, ConfigError> {
        match keys.first_start {
            "admit" => Ok(true),
            "quarantine" => Ok(false),
            other => Err(self.refuse(
                &[keys.table, "first_start"],
                format!("must be \"admit\" or \"quarantine\", not {other:?}"),
            )),
        }
    }
}
