//! The Redis store's configuration table and settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::Store;
use crate::backend::Guarantee;
use crate::backend::driver::{
    InvalidSetting, OpenStore, Opened, StoreConfig, StoreError, StoreIdentity, StoreSettings, StoreTable,
};
use crate::backend::login_files::SettingError;
use crate::backend::record::QUEUE_LIMIT;
use crate::backend::redis_server::config::{self, Login, ServerConfig};
use crate::backend::redis_server::credentials::{Access, Credentials};
use crate::backend::redis_server::settings::{Replicas, Servers, Settings};
use crate::schema::{Count, Period, section};

/// A second, in milliseconds.
const SECOND: u64 = 1000;

section! {
    /// A Redis: standalone, behind Sentinel, or a Cluster. Namespaces with the same settings
    /// share its connections.
    pub struct RedisSection {
        /// The URLs: redis://, rediss:// or unix://, without user and password. One server, or the
        /// sentinels, or some nodes of the cluster.
        urls: Vec<String> = vec!["redis://127.0.0.1:6379".to_owned()],
        /// What the URLs refer to: "standalone", "sentinel" or "cluster".
        mode: String = "standalone".to_owned(),
        /// The master's name at the sentinels.
        master: Option<String> = None,
        /// The ACL user. Absent: the default user.
        user: Option<String> = None,
        /// The file with the password. A trailing line break is ignored.
        password_file: Option<PathBuf> = None,
        /// The environment variable with the password.
        password_env: Option<String> = None,
        /// The ACL user for the sentinels.
        sentinel_user: Option<String> = None,
        /// The file with the password for the sentinels.
        sentinel_password_file: Option<PathBuf> = None,
        /// The environment variable with the password for the sentinels.
        sentinel_password_env: Option<String> = None,
        /// The file with the certificates (PEM) of the authorities of rediss:// servers. Absent:
        /// the authorities that this machine trusts.
        ca_file: Option<PathBuf> = None,
        /// The file with the client certificate (PEM) for rediss:// servers.
        cert_file: Option<PathBuf> = None,
        /// The file with the key (PEM) of that certificate.
        key_file: Option<PathBuf> = None,
        /// The number of the database.
        database: Count<0, 1_000_000> = Count::nearest(0),
        /// The prefix of every key.
        prefix: String = "fencepost".to_owned(),
        /// How an empty Redis is treated when a server starts: "quarantine" grants nothing for the
        /// longest ttl_max or until `Admit`, because Redis may have lost its data; "admit" treats
        /// it as a new one. A server that has granted leases there, as data_dir or another server
        /// says, does not treat it as new.
        on_empty_store: String = "quarantine".to_owned(),
        /// How many replicas of the Redis master must confirm a grant or a renewal before it is
        /// answered. If fewer confirm it, a grant is undone, and the call fails with
        /// BACKEND_UNAVAILABLE. This makes the loss of a lease in a failover unlikely, but not
        /// impossible: the guarantee stays AP.
        wait_replicas: Count<0, 16> = Count::nearest(0),
        /// How long the replicas may take to confirm it.
        wait_replicas_timeout: Period<10, { 2 * SECOND }> = Period::nearest(Duration::from_secs(1)),
    }
}

/// The settings of a Redis store. Namespaces with the same settings share its connections.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RedisConfig {
    urls: Vec<String>,
    mode: Mode,
    servers: ServerConfig,
    replicas: u32,
    replicas_timeout: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Mode {
    Standalone,
    Sentinel(String),
    Cluster,
}

impl StoreTable for RedisSection {
    fn check(&self, data_dir: Option<&Path>) -> Result<StoreConfig, InvalidSetting> {
        let mode = mode(self)?;
        let one = mode == Mode::Standalone;
        if self.urls.is_empty() || (one && self.urls.len() > 1) {
            let problem = "must be one URL, or several where mode is \"sentinel\" or \"cluster\"";
            return Err(InvalidSetting::new("urls", problem));
        }
        Ok(StoreConfig::new(RedisConfig {
            urls: self.urls.clone(),
            servers: config::keys!(self.urls).check(data_dir, || sentinel_login(self, &mode))?,
            mode,
            replicas: self.wait_replicas.get(),
            replicas_timeout: self.wait_replicas_timeout.get(),
        }))
    }
}

impl StoreSettings for RedisConfig {
    fn check_files(&self) -> Result<(), InvalidSetting> {
        self.servers.credentials().map(drop).map_err(InvalidSetting::from)
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::Ap
    }

    fn identity(&self) -> Option<StoreIdentity> {
        let mode = match &self.mode {
            Mode::Standalone => "standalone".to_owned(),
            Mode::Sentinel(master) => format!("sentinel master {master}"),
            Mode::Cluster => "cluster".to_owned(),
        };
        Some(self.servers.identity(&format!("redis {mode}"), &self.urls))
    }

    fn open(&self, longest_ttl: Duration) -> Result<Arc<dyn OpenStore>, StoreError> {
        let servers = self.servers.clone();
        let read = move || Ok(servers.credentials()?);
        let open = |access| {
            let opened = Store::open(self.settings(longest_ttl, access)?);
            opened.map_err(|error| StoreError::new("its Redis", error))
        };
        Opened::with(read, open, Store::namespace, Store::set_credentials)
    }

    fn servers(&self) -> Option<&'static str> {
        Some(config::SERVERS)
    }

    fn queue_limit(&self) -> u32 {
        QUEUE_LIMIT
    }
}

impl RedisConfig {
    /// The servers, for the record of this server's stores.
    fn description(&self) -> String {
        let mode = match &self.mode {
            Mode::Standalone => "standalone".to_owned(),
            Mode::Sentinel(master) => format!("sentinel {master}"),
            // Each master is recorded by itself, because masters are added.
            Mode::Cluster => return "redis cluster".to_owned(),
        };
        let mut urls = self.urls.clone();
        urls.sort_unstable();
        format!("redis {mode} {}", urls.join(" "))
    }

    fn settings(&self, longest_ttl: Duration, access: Access) -> Result<Settings, SettingError> {
        let servers = match &self.mode {
            Mode::Standalone => Servers::standalone(&self.urls[0]),
            Mode::Sentinel(master) => Servers::sentinel(master, &self.urls),
            Mode::Cluster => Servers::cluster(&self.urls),
        };
        // The URLs have been checked in `check`.
        let servers = servers.map_err(|error| SettingError::new("urls", error))?;
        let mut settings = Settings::new(servers);
        settings.credentials = Credentials::new(access);
        settings.prefix.clone_from(&self.servers.prefix);
        settings.longest_ttl = longest_ttl;
        settings.on_empty_store = self.servers.on_empty_store;
        settings.record = self.servers.record(&self.description());
        settings.replicas = (self.replicas > 0).then_some(Replicas {
            count: self.replicas,
            timeout: self.replicas_timeout,
        });
        Ok(settings)
    }
}

fn sentinel_login(section: &RedisSection, mode: &Mode) -> Result<Login, InvalidSetting> {
    let login = Login::new(
        &section.sentinel_user,
        ("sentinel_password_file", &section.sentinel_password_file),
        ("sentinel_password_env", &section.sentinel_password_env),
    )?;
    match (login.key("sentinel_user"), mode) {
        (Some(key), Mode::Standalone | Mode::Cluster) => Err(InvalidSetting::new(
            key,
            "must be absent where mode is not \"sentinel\"",
        )),
        _ => Ok(login),
    }
}

fn mode(section: &RedisSection) -> Result<Mode, InvalidSetting> {
    match (section.mode.as_str(), &section.master) {
        ("standalone", None) => Ok(Mode::Standalone),
        ("cluster", None) if section.database.get() == 0 => Ok(Mode::Cluster),
        ("sentinel", Some(master)) => Ok(Mode::Sentinel(master.clone())),
        ("standalone" | "cluster" | "sentinel", _) => Err(InvalidSetting::new(
            "master",
            "must be set where mode is \"sentinel\", and only there; a cluster has only database 0",
        )),
        (other, _) => Err(InvalidSetting::new(
            "mode",
            format!("must be \"standalone\", \"sentinel\" or \"cluster\", not {other:?}"),
        )),
    }
}
