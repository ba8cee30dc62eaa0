//! The etcd store's configuration table and settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::Store;
use crate::backend::Guarantee;
use crate::backend::driver::{
    InvalidSetting, OpenStore, Opened, StoreConfig, StoreError, StoreIdentity, StoreSettings, StoreTable,
};
use crate::backend::etcd::cluster::settings::Settings;
use crate::backend::login::{Credentials, LoginConfig, login_config};
use crate::schema::{Period, section};

/// The environment variable with the password, if there is no file.
const PASSWORD: &str = "FENCEPOST_ETCD_PASSWORD";
/// A second, in milliseconds.
const SECOND: u64 = 1000;

section! {
    /// An etcd cluster. Namespaces with the same settings share its connections.
    pub struct EtcdSection {
        /// The URLs of the members: http:// or https://, the preferred one first.
        endpoints: Vec<String> = vec!["http://127.0.0.1:2379".to_owned()],
        /// The prefix of every key. The root of another deployment must not be below it.
        root: String = "/fencepost".to_owned(),
        /// How long a request may take.
        timeout: Period<100, { 9 * SECOND }> = Period::nearest(Duration::from_secs(3)),
        /// How long a connection may take to be established.
        connect_timeout: Period<100, { 9 * SECOND }> = Period::nearest(Duration::from_secs(2)),
        /// How long the waiting claims of a failed server stay in their queues.
        session_ttl: Period<{ 2 * SECOND }, { 8 * SECOND }> = Period::nearest(Duration::from_secs(5)),
        /// The etcd user.
        user: Option<String> = None,
        /// The file with the password. Absent: the variable FENCEPOST_ETCD_PASSWORD.
        password_file: Option<PathBuf> = None,
        /// The file with the certificates (PEM) of the members' authorities.
        ca_file: Option<PathBuf> = None,
        /// The file with the client certificate (PEM).
        cert_file: Option<PathBuf> = None,
        /// The file with the key (PEM) of that certificate.
        key_file: Option<PathBuf> = None,
        /// The name in the members' certificates, if it is not that of the endpoint.
        server_name: Option<String> = None,
    }
}

/// The settings of an etcd store. Namespaces with the same settings share its connections.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EtcdConfig {
    /// The settings without credentials, which are read from the files.
    settings: Settings,
    login: LoginConfig,
}

impl StoreTable for EtcdSection {
    fn check(&self, _: Option<&Path>) -> Result<StoreConfig, InvalidSetting> {
        check_endpoints(self)?;
        let refuse = |key, problem: &str| Err(InvalidSetting::new(key, problem));
        if !self.root.starts_with('/') || self.root.contains(char::is_control) {
            return refuse("root", "must begin with \"/\" and hold no control character");
        }
        Ok(StoreConfig::new(EtcdConfig {
            settings: Settings {
                endpoints: self.endpoints.clone(),
                root: self.root.clone(),
                timeout: self.timeout.get(),
                connect_timeout: self.connect_timeout.get(),
                session_ttl: self.session_ttl.get(),
                credentials: Credentials::default(),
            },
            login: login_config!(self, PASSWORD).checked()?,
        }))
    }
}

impl StoreSettings for EtcdConfig {
    fn check_files(&self) -> Result<(), InvalidSetting> {
        self.login.check_files()
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::Cp
    }

    fn identity(&self) -> Option<StoreIdentity> {
        let Settings { root, endpoints, .. } = &self.settings;
        Some(StoreIdentity::new(format!("etcd, root {root}"), endpoints))
    }

    fn open(&self, _: Duration) -> Result<Arc<dyn OpenStore>, StoreError> {
        let login = self.login.clone();
        let read = move || login.credentials().map_err(|error| StoreError::new("its etcd", error));
        let open = |credentials| {
            Ok(Store::open(Settings {
                credentials,
                ..self.settings.clone()
            }))
        };
        Opened::with(read, open, Store::namespace, Store::set_credentials)
    }
}

fn check_endpoints(section: &EtcdSection) -> Result<(), InvalidSetting> {
    let scheme = if section.ca_file.is_some() {
        "https://"
    } else {
        "http://"
    };
    let good = |endpoint: &String| endpoint.strip_prefix(scheme).is_some_and(|host| !host.is_empty());
    if !section.endpoints.is_empty() && section.endpoints.iter().all(good) {
        return Ok(());
    }
    let problem = "must be at least one, each http://, or https:// where there is a ca_file";
    Err(InvalidSetting::new("endpoints", problem))
}
