//! The settings of a Redis backend, checked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::ConfigError;
use super::file::RedisSection;
use super::namespace::Origin;
use crate::backend::redis_server::settings::{
    Access, FirstStart, Login, Replicas, Servers, Settings, Tls, connection_info,
};

/// The settings of a Redis backend. Namespaces with the same ones share its connections.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RedisConfig {
    urls: Vec<String>,
    mode: Mode,
    login: LoginFrom,
    sentinel_login: LoginFrom,
    database: u32,
    tls: TlsFrom,
    prefix: String,
    admit_first: bool,
    replicas: u32,
    replicas_timeout: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    Standalone,
    Sentinel(String),
    Cluster,
}

/// A user, and where the password is: neither a config file nor a log shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct LoginFrom {
    user: Option<String>,
    password: Option<PasswordFrom>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum PasswordFrom {
    File(&'static str, PathBuf),
    Env(&'static str, String),
}

/// The files of certificates and keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct TlsFrom {
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

fn unusable(key: &'static str, problem: impl ToString) -> RedisSettingsError {
    RedisSettingsError {
        key,
        problem: problem.to_string(),
    }
}

fn file(key: &'static str, path: &Path) -> Result<Vec<u8>, RedisSettingsError> {
    std::fs::read(path).map_err(|error| unusable(key, format!("{path:?}: {error}")))
}

impl PasswordFrom {
    fn read(&self) -> Result<String, RedisSettingsError> {
        match self {
            Self::File(key, path) => {
                let text = String::from_utf8(file(key, path)?);
                let text = text.map_err(|_| unusable(key, format!("{path:?} holds no UTF-8 text")))?;
                Ok(text.trim_end_matches(['\r', '\n']).to_owned())
            }
            Self::Env(key, name) => {
                std::env::var(name).map_err(|error| unusable(key, format!("the variable {name:?}: {error}")))
            }
        }
    }
}

impl LoginFrom {
    fn read(&self) -> Result<Login, RedisSettingsError> {
        Ok(Login {
            user: self.user.clone(),
            password: self.password.as_ref().map(PasswordFrom::read).transpose()?,
            database: 0,
        })
    }
}

impl TlsFrom {
    fn read(&self) -> Result<Tls, RedisSettingsError> {
        let client =
            |(certificate, key): &(PathBuf, PathBuf)| Ok((file("cert_file", certificate)?, file("key_file", key)?));
        Ok(Tls {
            ca: self.ca.as_ref().map(|path| file("ca_file", path)).transpose()?,
            client: self.client.as_ref().map(client).transpose()?,
        })
    }
}

impl RedisConfig {
    /// What the store is opened with: the files and variables are read here.
    ///
    /// # Errors
    /// When one of them cannot be read, or holds no certificate.
    pub fn settings(&self, longest_ttl: Duration) -> Result<Settings, RedisSettingsError> {
        let access = Access {
            login: Login {
                database: self.database.into(),
                ..self.login.read()?
            },
            sentinel_login: self.sentinel_login.read()?,
            tls: self.tls.read()?,
        };
        let servers = match &self.mode {
            Mode::Standalone => Servers::standalone(&self.urls[0], &access),
            Mode::Sentinel(master) => Servers::sentinel(master, &self.urls, &access),
            Mode::Cluster => Servers::cluster(&self.urls, &access),
        };
        // The URLs have been checked before.
        let servers = servers.map_err(|error| unusable("ca_file, cert_file or key_file", error))?;
        let mut settings = Settings::new(servers);
        settings.prefix.clone_from(&self.prefix);
        settings.longest_ttl = longest_ttl;
        if self.admit_first {
            settings.first_start = FirstStart::Admit;
        }
        settings.replicas = (self.replicas > 0).then_some(Replicas {
            count: self.replicas,
            timeout: self.replicas_timeout,
        });
        Ok(settings)
    }
}

impl Origin<'_> {
    /// Checks the table of a Redis backend.
    pub(super) fn redis(&self, section: &RedisSection) -> Result<RedisConfig, ConfigError> {
        let mode = self.redis_mode(section)?;
        let one = mode == Mode::Standalone;
        if section.urls.is_empty() || (one && section.urls.len() > 1) {
            let problem = "must be one URL, or several where mode is \"sentinel\" or \"cluster\"";
            return Err(self.refuse(&["redis", "urls"], problem.to_owned()));
        }
        if section.prefix.is_empty() || section.prefix.contains(['{', '}']) {
            let problem = "must be at least one character, and no brace";
            return Err(self.refuse(&["redis", "prefix"], problem.to_owned()));
        }
        self.check_urls(section)?;
        Ok(RedisConfig {
            urls: section.urls.clone(),
            login: LoginFrom {
                user: section.user.clone(),
                password: self.password(
                    ("password_file", &section.password_file),
                    ("password_env", &section.password_env),
                )?,
            },
            sentinel_login: self.sentinel_login(section, &mode)?,
            mode,
            database: section.database.get(),
            tls: self.redis_tls(section)?,
            prefix: section.prefix.clone(),
            admit_first: self.admits_first(section)?,
            replicas: section.wait_replicas.get(),
            replicas_timeout: section.wait_replicas_timeout.get(),
        })
    }

    fn check_urls(&self, section: &RedisSection) -> Result<(), ConfigError> {
        // A URL may hold a password: it is not repeated.
        let refuse = |problem: &str| Err(self.refuse(&["redis", "urls"], problem.to_owned()));
        for url in &section.urls {
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

    fn password(
        &self,
        (file_key, file): (&'static str, &Option<PathBuf>),
        (env_key, env): (&'static str, &Option<String>),
    ) -> Result<Option<PasswordFrom>, ConfigError> {
        match (file, env) {
            (None, None) => Ok(None),
            (Some(path), None) => Ok(Some(PasswordFrom::File(file_key, path.clone()))),
            (None, Some(name)) => Ok(Some(PasswordFrom::Env(env_key, name.clone()))),
            (Some(_), Some(_)) => {
                let problem = format!("must be absent where {file_key} is set");
                Err(self.refuse(&["redis", env_key], problem))
            }
        }
    }

    fn sentinel_login(&self, section: &RedisSection, mode: &Mode) -> Result<LoginFrom, ConfigError> {
        let login = LoginFrom {
            user: section.sentinel_user.clone(),
            password: self.password(
                ("sentinel_password_file", &section.sentinel_password_file),
                ("sentinel_password_env", &section.sentinel_password_env),
            )?,
        };
        let key = match &login {
            LoginFrom {
                password: Some(PasswordFrom::File(key, _) | PasswordFrom::Env(key, _)),
                ..
            } => key,
            LoginFrom { user: Some(_), .. } => "sentinel_user",
            _ => return Ok(login),
        };
        match mode {
            Mode::Sentinel(_) => Ok(login),
            _ => Err(self.refuse(
                &["redis", key],
                "must be absent where mode is not \"sentinel\"".to_owned(),
            )),
        }
    }

    fn redis_tls(&self, section: &RedisSection) -> Result<TlsFrom, ConfigError> {
        let files = [
            ("ca_file", &section.ca_file),
            ("cert_file", &section.cert_file),
            ("key_file", &section.key_file),
        ];
        let encrypted = section.urls.iter().any(|url| url.starts_with("rediss://"));
        let spare = files.iter().find(|(_, file)| file.is_some() && !encrypted);
        if let Some((key, _)) = spare {
            let problem = "must be absent where no URL is rediss://";
            return Err(self.refuse(&["redis", key], problem.to_owned()));
        }
        let alone = |key: &str, other: &str| {
            let problem = format!("must be absent where {other} is");
            Err(self.refuse(&["redis", key], problem))
        };
        let client = match (&section.cert_file, &section.key_file) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) => return alone("cert_file", "key_file"),
            (None, Some(_)) => return alone("key_file", "cert_file"),
        };
        Ok(TlsFrom {
            ca: section.ca_file.clone(),
            client,
        })
    }

    fn redis_mode(&self, section: &RedisSection) -> Result<Mode, ConfigError> {
        match (section.mode.as_str(), &section.master) {
            ("standalone", None) => Ok(Mode::Standalone),
            ("cluster", None) if section.database.get() == 0 => Ok(Mode::Cluster),
            ("sentinel", Some(master)) => Ok(Mode::Sentinel(master.clone())),
            ("standalone" | "cluster" | "sentinel", _) => Err(self.refuse(
                &["redis", "master"],
                "must be set where mode is \"sentinel\", and only there; a cluster has only database 0".to_owned(),
            )),
            (other, _) => Err(self.refuse(
                &["redis", "mode"],
                format!("must be \"standalone\", \"sentinel\" or \"cluster\", not {other:?}"),
            )),
        }
    }

    fn admits_first(&self, section: &RedisSection) -> Result<bool, ConfigError> {
        match section.first_start.as_str() {
            "admit" => Ok(true),
            "quarantine" => Ok(false),
            other => Err(self.refuse(
                &["redis", "first_start"],
                format!("must be \"admit\" or \"quarantine\", not {other:?}"),
            )),
        }
    }
}
