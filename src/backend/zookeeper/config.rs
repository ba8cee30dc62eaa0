//! The ZooKeeper store's configuration table and driver.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::Store;
use super::settings::{Credentials, Settings, Tls};
use crate::backend::driver::{Apply, Driver, InvalidSetting, OpenStore, StoreError};
use crate::backend::login_files::{self, LoginFileError};
use crate::backend::{Backend, Guarantee};
use crate::name::Namespace;
use crate::schema::{Period, section};

/// The environment variable with the password, if there is no file.
const PASSWORD: &str = "FENCEPOST_ZOOKEEPER_PASSWORD";
/// A second, in milliseconds.
const SECOND: u64 = 1000;

section! {
    /// A ZooKeeper ensemble, 3.6 or newer. Each namespace has a session of its own.
    pub struct ZookeeperSection {
        /// The servers: host:port, the preferred one first.
        servers: Vec<String> = vec!["127.0.0.1:2181".to_owned()],
        /// The path that every node is under. The root of another deployment must not be below it.
        root: String = "/fencepost".to_owned(),
        /// How long a request may take.
        timeout: Period<100, { 9 * SECOND }> = Period::nearest(Duration::from_secs(3)),
        /// How long a connection may take to be established.
        connect_timeout: Period<100, { 9 * SECOND }> = Period::nearest(Duration::from_secs(2)),
        /// How long the waiting claims of a failed server stay in their queues. The servers may raise it.
        session_timeout: Period<{ 2 * SECOND }, { 8 * SECOND }> = Period::nearest(Duration::from_secs(6)),
        /// The user of the digest scheme. With a user, only that user may read and change the nodes.
        user: Option<String> = None,
        /// The file with the password. Absent: the variable FENCEPOST_ZOOKEEPER_PASSWORD.
        password_file: Option<PathBuf> = None,
        /// The file with the certificates (PEM) of the servers' authorities. Present: the connections use TLS.
        ca_file: Option<PathBuf> = None,
        /// The file with the client certificate (PEM).
        cert_file: Option<PathBuf> = None,
        /// The file with the key (PEM) of that certificate.
        key_file: Option<PathBuf> = None,
        /// The name in the servers' certificates, if it is not that of the server.
        server_name: Option<String> = None,
    }
}

/// The ZooKeeper store.
#[derive(Debug)]
pub struct ZookeeperDriver;

/// The settings of a ZooKeeper store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZookeeperConfig {
    settings: Settings,
    user: Option<String>,
    password_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    /// The certificate and its key.
    own_files: Option<(PathBuf, PathBuf)>,
    server_name: Option<String>,
}

impl Driver for ZookeeperDriver {
    const KIND: &'static str = "zookeeper";
    type Section = ZookeeperSection;
    type Settings = ZookeeperConfig;

    fn check(section: &ZookeeperSection, _: Option<&Path>) -> Result<ZookeeperConfig, InvalidSetting> {
        let refuse = |key, problem: &str| Err(InvalidSetting::new(key, problem));
        if section.servers.is_empty() || !section.servers.iter().all(|server| is_server(server)) {
            return refuse("servers", "must be at least one, each host:port");
        }
        if !is_root(&section.root) {
            let problem = "must begin with \"/\", and its parts must be letters, digits, \"-\", \"_\" and \".\"";
            return refuse("root", problem);
        }
        if section.password_file.is_some() && section.user.is_none() {
            return refuse("password_file", "must be absent where there is no user");
        }
        if section
            .user
            .as_ref()
            .is_some_and(|user| user.is_empty() || user.contains(':'))
        {
            return refuse("user", "must not be empty or hold a colon");
        }
        let own_files = match (&section.cert_file, &section.key_file) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) => return refuse("cert_file", "must come with a key_file"),
            (None, Some(_)) => return refuse("key_file", "must come with a cert_file"),
        };
        if own_files.is_some() && section.ca_file.is_none() {
            return refuse("cert_file", "must come with a ca_file");
        }
        Ok(ZookeeperConfig {
            settings: Settings {
                servers: section.servers.clone(),
                root: section.root.clone(),
                timeout: section.timeout.get(),
                connect_timeout: section.connect_timeout.get(),
                session_timeout: section.session_timeout.get(),
                ..Settings::new(Vec::new())
            },
            user: section.user.clone(),
            password_file: section.password_file.clone(),
            ca_file: section.ca_file.clone(),
            own_files,
            server_name: section.server_name.clone(),
        })
    }

    fn check_files(settings: &ZookeeperConfig) -> Result<(), InvalidSetting> {
        let Err(error) = settings.credentials() else {
            return Ok(());
        };
        let cause = error.source().map_or(String::new(), |cause| format!(": {cause}"));
        // The cause is appended unless the text already ends with it.
        let text = error.to_string();
        let text = if text.ends_with(&cause) { text } else { text + &cause };
        Err(InvalidSetting::new(settings.key_of(&error), text))
    }

    fn guarantee(_: &ZookeeperConfig) -> Guarantee {
        Guarantee::Cp
    }

    fn open(settings: &ZookeeperConfig, _: Duration) -> Result<Arc<dyn OpenStore>, StoreError> {
        let credentials = settings.credentials().map_err(unusable)?;
        Ok(Arc::new(Opened {
            store: Store::open(settings.settings.clone(), credentials),
            config: settings.clone(),
        }))
    }
}

/// An open store, with the settings that contain the paths of its files.
#[derive(Debug)]
struct Opened {
    store: Store,
    config: ZookeeperConfig,
}

impl OpenStore for Opened {
    fn namespace(&self, namespace: &Namespace, _: u32) -> Arc<dyn Backend> {
        self.store.namespace(namespace)
    }

    fn read_credentials(&self) -> Result<Option<Apply>, StoreError> {
        let (store, credentials) = (self.store.clone(), self.config.credentials().map_err(unusable)?);
        Ok(Some(Box::new(move || store.set_credentials(credentials))))
    }
}

fn unusable(error: LoginFileError) -> StoreError {
    StoreError::new("its ZooKeeper", error)
}

impl ZookeeperConfig {
    /// Reads and checks the files in the settings.
    fn credentials(&self) -> Result<Credentials, LoginFileError> {
        let password = match &self.password_file {
            Some(path) => login_files::password(path)?,
            None => std::env::var(PASSWORD).unwrap_or_default(),
        };
        let authority = self.ca_file.as_deref().map(login_files::authorities).transpose()?;
        let identity = self.own_files.as_ref().map(|(cert, key)| login_files::pair(cert, key));
        let identity = identity.transpose()?;
        Ok(Credentials {
            login: self.user.clone().map(|user| (user, password)),
            tls: authority.map(|authority| Tls {
                authority,
                identity,
                server_name: self.server_name.clone(),
            }),
        })
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

fn is_server(server: &str) -> bool {
    let parts = server.rsplit_once(':');
    parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// Whether a root is a path of ZooKeeper.
fn is_root(root: &str) -> bool {
    let is_plain = |part: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && part != "." && part != ".." && part.chars().all(plain)
    };
    let parts = root.strip_prefix('/').map(|rest| rest.split('/').collect::<Vec<_>>());
    parts.is_some_and(|parts| parts[0] != "zookeeper" && parts.into_iter().all(is_plain))
}
