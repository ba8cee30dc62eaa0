//! The etcd store's configuration table and driver.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::Store;
use crate::backend::driver::{Apply, Driver, InvalidSetting, OpenStore, StoreError};
use crate::backend::etcd::cluster::settings::{Credentials, Login, Settings, Tls};
use crate::backend::login_files::{self, LoginFileError};
use crate::backend::{Backend, Guarantee};
use crate::name::Namespace;
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

/// The etcd store.
#[derive(Debug)]
pub struct EtcdDriver;

/// The settings of an etcd store. Namespaces with the same settings share its connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    /// The settings without credentials, which are read from the files.
    settings: Settings,
    user: Option<String>,
    password_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    /// The certificate and its key.
    own_files: Option<(PathBuf, PathBuf)>,
    server_name: Option<String>,
}

impl Driver for EtcdDriver {
    const KIND: &'static str = "etcd";
    type Section = EtcdSection;
    type Settings = EtcdConfig;

    fn check(section: &EtcdSection, _: Option<&Path>) -> Result<EtcdConfig, InvalidSetting> {
        check_endpoints(section)?;
        let refuse = |key, problem: &str| Err(InvalidSetting::new(key, problem));
        if !section.root.starts_with('/') || section.root.contains(char::is_control) {
            return refuse("root", "must begin with \"/\" and hold no control character");
        }
        if section.password_file.is_some() && section.user.is_none() {
            return refuse("password_file", "must be absent where there is no user");
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
        Ok(EtcdConfig {
            settings: Settings {
                endpoints: section.endpoints.clone(),
                root: section.root.clone(),
                timeout: section.timeout.get(),
                connect_timeout: section.connect_timeout.get(),
                session_ttl: section.session_ttl.get(),
                proof: Credentials::default(),
            },
            user: section.user.clone(),
            password_file: section.password_file.clone(),
            ca_file: section.ca_file.clone(),
            own_files,
            server_name: section.server_name.clone(),
        })
    }

    fn check_files(settings: &EtcdConfig) -> Result<(), InvalidSetting> {
        let Err(error) = settings.credentials() else {
            return Ok(());
        };
        let cause = error.source().map_or(String::new(), |cause| format!(": {cause}"));
        // The cause is appended unless the text already ends with it.
        let text = error.to_string();
        let text = if text.ends_with(&cause) { text } else { text + &cause };
        Err(InvalidSetting::new(settings.key_of(&error), text))
    }

    fn guarantee(_: &EtcdConfig) -> Guarantee {
        Guarantee::Cp
    }

    fn open(settings: &EtcdConfig, _: Duration) -> Result<Arc<dyn OpenStore>, StoreError> {
        let proof = settings.credentials().map_err(unusable)?;
        let store = Store::open(Settings {
            proof,
            ..settings.settings.clone()
        });
        Ok(Arc::new(Opened {
            store,
            config: settings.clone(),
        }))
    }
}

/// An open store, with the settings that contain the paths of its files.
#[derive(Debug)]
struct Opened {
    store: Store,
    config: EtcdConfig,
}

impl OpenStore for Opened {
    fn namespace(&self, namespace: &Namespace, _: u32) -> Arc<dyn Backend> {
        self.store.namespace(namespace)
    }

    fn read_credentials(&self) -> Result<Option<Apply>, StoreError> {
        let (store, proof) = (self.store.clone(), self.config.credentials().map_err(unusable)?);
        Ok(Some(Box::new(move || store.set_credentials(proof))))
    }
}

fn unusable(error: LoginFileError) -> StoreError {
    StoreError::new("its etcd", error)
}

impl EtcdConfig {
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
            login: self.user.clone().map(|user| Login { user, password }),
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
