//! The settings of a Redis backend, checked.

use std::path::PathBuf;
use std::time::Duration;

use super::error::ConfigError;
use super::file::RedisSection;
use super::namespace::Origin;
use crate::backend::BackendError;
use crate::backend::redis_server::failure::away;
use crate::backend::redis_server::settings::{FirstStart, Login, Servers, Settings};

/// The settings of a Redis backend. Namespaces with the same ones share its connections.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RedisConfig {
    urls: Vec<String>,
    mode: Mode,
    login: FileLogin,
    prefix: String,
    admit_first: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    Standalone,
    Sentinel(String),
    Cluster,
}

/// A user, and the file with the password: neither a config file nor a log shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct FileLogin {
    user: Option<String>,
    password_file: Option<PathBuf>,
    database: u32,
}

impl FileLogin {
    fn read(&self) -> Result<Login, BackendError> {
        let read = |path: &PathBuf| std::fs::read_to_string(path).map_err(|error| away(format!("{path:?}: {error}")));
        let password = self.password_file.as_ref().map(read).transpose()?;
        Ok(Login {
            user: self.user.clone(),
            password: password.map(|password| password.trim_end_matches(['\r', '\n']).to_owned()),
            database: self.database.into(),
        })
    }
}

impl RedisConfig {
    /// What the store is opened with: the password files are read here.
    ///
    /// # Errors
    /// Away when a file or a URL cannot be read.
    pub fn settings(&self, longest_ttl: Duration) -> Result<Settings, BackendError> {
        let login = self.login.read()?;
        let servers = match &self.mode {
            Mode::Standalone => Servers::standalone(&self.urls[0], &login),
            Mode::Sentinel(master) => Servers::sentinel(master, &self.urls, &login),
            Mode::Cluster => Servers::cluster(&self.urls, &login),
        };
        let mut settings = Settings::new(servers.map_err(away)?);
        settings.prefix.clone_from(&self.prefix);
        settings.longest_ttl = longest_ttl;
        if self.admit_first {
            settings.first_start = FirstStart::Admit;
        }
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
        let config = RedisConfig {
            urls: section.urls.clone(),
            mode,
            login: FileLogin {
                user: section.user.clone(),
                password_file: section.password_file.clone(),
                database: section.database.get(),
            },
            prefix: section.prefix.clone(),
            admit_first: self.admits_first(section)?,
        };
        self.check_urls(&config)?;
        Ok(config)
    }

    fn check_urls(&self, config: &RedisConfig) -> Result<(), ConfigError> {
        let none = Login::default();
        let wrong = config.urls.iter().find(|url| Servers::standalone(url, &none).is_err());
        match wrong {
            // The URL may hold a password: it is not repeated.
            Some(_) => Err(self.refuse(
                &["redis", "urls"],
                "must each be redis://, rediss:// or unix://".to_owned(),
            )),
            None => Ok(()),
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
