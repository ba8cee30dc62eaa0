//! The settings of a Redis backend, checked.

use std::time::Duration;

use super::error::ConfigError;
use super::file::RedisSection;
use super::namespace::Origin;
use super::redis_access::{Keys, LoginFrom, PasswordFrom, RedisSettingsError, TlsFrom, read_access, unusable};
use crate::backend::redis_server::credentials::{Access, Credentials};
use crate::backend::redis_server::settings::{FirstStart, Replicas, Servers, Settings};

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

impl RedisConfig {
    /// What proves this server to the store: the files and variables are read here.
    ///
    /// # Errors
    /// When one of them cannot be read, or does not hold what it should.
    pub fn access(&self) -> Result<Access, RedisSettingsError> {
        read_access(&self.login, self.database, &self.sentinel_login, &self.tls)
    }

    /// What the store is opened with.
    ///
    /// # Errors
    /// As [`Self::access`].
    pub fn settings(&self, longest_ttl: Duration) -> Result<Settings, RedisSettingsError> {
        let servers = match &self.mode {
            Mode::Standalone => Servers::standalone(&self.urls[0]),
            Mode::Sentinel(master) => Servers::sentinel(master, &self.urls),
            Mode::Cluster => Servers::cluster(&self.urls),
        };
        // They have been checked before.
        let servers = servers.map_err(|error| unusable("urls", error))?;
        let mut settings = Settings::new(servers);
        settings.proof = Credentials::new(self.access()?);
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

fn keys_of(section: &RedisSection) -> Keys<'_> {
    Keys {
        table: "redis",
        servers: ("urls", &section.urls),
        user: &section.user,
        password_file: &section.password_file,
        password_env: &section.password_env,
        ca_file: &section.ca_file,
        cert_file: &section.cert_file,
        key_file: &section.key_file,
        prefix: &section.prefix,
        first_start: &section.first_start,
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
        let keys = keys_of(section);
        self.check_urls(&keys)?;
        Ok(RedisConfig {
            urls: section.urls.clone(),
            login: self.login(&keys)?,
            sentinel_login: self.sentinel_login(section, &mode)?,
            mode,
            database: section.database.get(),
            tls: self.tls(&keys)?,
            prefix: section.prefix.clone(),
            admit_first: self.admits_first(&keys)?,
            replicas: section.wait_replicas.get(),
            replicas_timeout: section.wait_replicas_timeout.get(),
        })
    }

    fn sentinel_login(&self, section: &RedisSection, mode: &Mode) -> Result<LoginFrom, ConfigError> {
        let login = LoginFrom {
            user: section.sentinel_user.clone(),
            password: self.password(
                "redis",
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
}
