//! What the configuration tables of SQL databases have in common.

use std::error::Error;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::Store;
use super::dialect::Dialect;
use super::last_used::LastUsed;
use super::settings::{Replication, Settings};
use crate::backend::Guarantee;
use crate::backend::driver::{
    InvalidSetting, OpenStore, Opened, StoreConfig, StoreError, StoreIdentity, StoreSettings, is_server,
};
use crate::backend::login::LoginConfig;
use crate::backend::record::QUEUE_LIMIT;

/// A second, in milliseconds.
pub const SECOND: u64 = 1000;

/// The settings of a store, with the paths of its files.
#[derive(Debug)]
struct SqlConfig<D> {
    settings: Settings,
    login: LoginConfig,
    data_dir: Option<PathBuf>,
    dialect: PhantomData<D>,
}

impl<D> PartialEq for SqlConfig<D> {
    fn eq(&self, other: &Self) -> bool {
        (&self.settings, &self.login) == (&other.settings, &other.login)
    }
}

impl<D> Eq for SqlConfig<D> {}

/// Checks what all databases have.
///
/// # Errors
/// [`InvalidSetting`] with the first invalid key.
pub fn checked<D: Dialect>(
    settings: Settings,
    login: LoginConfig,
    data_dir: Option<&Path>,
) -> Result<StoreConfig, InvalidSetting> {
    let refuse = |key, problem: &str| Err(InvalidSetting::new(key, problem));
    if settings.servers.is_empty() || !settings.servers.iter().all(|server| is_server(server)) {
        return refuse("servers", "must be at least one, each host:port");
    }
    if login
        .user
        .as_ref()
        .is_none_or(|user| user.is_empty() || user.contains('\0'))
    {
        return refuse("user", "must not be empty");
    }
    if login.server_name.is_some() && login.tls.ca.is_none() {
        return refuse("server_name", "must come with a ca_file");
    }
    Ok(StoreConfig::new(SqlConfig::<D> {
        settings,
        login: login.checked()?,
        data_dir: data_dir.map(Path::to_owned),
        dialect: PhantomData,
    }))
}

impl<D: Dialect> StoreSettings for SqlConfig<D> {
    fn check_files(&self) -> Result<(), InvalidSetting> {
        self.login.check_files()
    }

    fn guarantee(&self) -> Guarantee {
        self.settings.replication.guarantee()
    }

    fn check_guarantee(&self, guarantee: Guarantee) -> Result<(), InvalidSetting> {
        let Settings {
            replication, servers, ..
        } = &self.settings;
        if guarantee == Guarantee::Cp && *replication == Replication::Single && servers.len() > 1 {
            let problem = "must not be \"single\" where servers has several entries and guarantee is \"cp\": with \"single\" \
                           nothing is promoted, so name that server alone, or say what is promoted";
            return Err(InvalidSetting::new("replication", problem));
        }
        Ok(())
    }

    fn servers(&self) -> Option<&'static str> {
        Some(D::NAME)
    }

    fn can_raise_longest_ttl(&self) -> bool {
        true
    }

    fn queue_limit(&self) -> u32 {
        QUEUE_LIMIT
    }

    fn identity(&self) -> Option<StoreIdentity> {
        let Settings {
            database,
            schema,
            servers,
            ..
        } = &self.settings;
        let mut name = format!("{}, database {database}", D::KIND);
        if D::KIND == "postgres" {
            name = format!("{name}, schema {schema}");
        }
        Some(StoreIdentity::new(name, servers))
    }

    fn open(&self, longest_ttl: Duration) -> Result<Arc<dyn OpenStore>, StoreError> {
        let login = self.login.clone();
        let read = move || login.credentials().map_err(unusable::<D>);
        let own = Settings {
            longest_ttl,
            last_used: self.identity().map_or_else(LastUsed::default, |store| {
                LastUsed::new(self.data_dir.as_deref(), store)
            }),
            ..self.settings.clone()
        };
        let open = |credentials| Store::<D>::open(own, credentials).map_err(unusable::<D>);
        let (credentials, ttl) = (Store::set_credentials, Store::raise_longest_ttl);
        Opened::raising(read, open, Store::namespace, credentials, ttl)
    }
}

fn unusable<D: Dialect>(error: impl Error + Send + Sync + 'static) -> StoreError {
    StoreError::new(format!("its {}", D::NAME), error)
}

/// The replication of this name. Not every kind of database has a synchronous one.
///
/// # Errors
/// [`InvalidSetting`] for another name.
pub fn replication(name: &str, has_synchronous: bool) -> Result<Replication, InvalidSetting> {
    match name {
        "single" => Ok(Replication::Single),
        "synchronous" if has_synchronous => Ok(Replication::Synchronous),
        "asynchronous" => Ok(Replication::Asynchronous),
        other => {
            let synchronous = if has_synchronous { ", \"synchronous\"" } else { "" };
            let problem = format!("must be \"single\"{synchronous} or \"asynchronous\", not {other:?}");
            Err(InvalidSetting::new("replication", problem))
        }
    }
}
