//! The configuration: one TOML file, overridden by flags and environment variables.
//!
//! [`Config::load`] reads and validates it. An error names the file, line, key and bound. The tables
//! of the file, with their defaults and their documentation, are defined in [`mod@file`].

mod access_config;
mod addresses;
mod changes;
mod check;
mod error;
pub mod file;
mod listen;
mod namespace;
mod overrides;
mod show;
mod source;
mod store_tables;
#[cfg(all(test, feature = "embedded", feature = "redis", feature = "etcd"))]
mod tests;
pub mod words;

use std::collections::BTreeMap;
use std::env;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::path::{self, Path, PathBuf};
use std::time::Duration;

pub use error::{ConfigError, ValueLocation};
pub use listen::Listen;
pub use namespace::NamespaceConfig;
pub use overrides::Overrides;
pub use store_tables::StoreTables;

use crate::api::{ListenAddress, Settings};
use crate::auth::PolicySettings;
use crate::backend::driver::Entry;
use crate::name::Namespace;
use crate::quota::QuotaSettings;
use crate::schema::Period;
use crate::tls::TlsSettings;
use access_config::TlsConfig;
use file::{File, NamespaceSection, ServerSection};
use namespace::Origin;
use source::Source;

/// The name of the namespace if the configuration has none.
const DEFAULT_NAMESPACE: &str = "default";

/// A valid configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The namespaces to serve, at least one.
    pub namespaces: BTreeMap<Namespace, NamespaceConfig>,
    /// Authentication and authorization; `None` allows everything to everybody.
    pub policy: Option<PolicySettings>,
    /// The limits of namespaces and identities.
    pub quotas: QuotaSettings,
    tls: Option<TlsConfig>,
    file: File,
}

impl Config {
    /// Reads the file in `overrides`, if any, and applies the other overrides. Namespaces may use the store kinds in
    /// `stores`.
    ///
    /// # Errors
    /// [`ConfigError`] with the location, the key and the bound of the invalid value.
    pub fn load(overrides: Overrides, stores: &[Entry]) -> Result<Self, ConfigError> {
        let mut source = overrides.source()?;
        Self::of(&mut source, overrides, stores, default_data_dir())
    }

    /// Reads a text that is in no file; `name` stands for it in errors. It has a data directory only if it names one.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn of_text(name: &Path, text: String, stores: &[Entry]) -> Result<Self, ConfigError> {
        Self::of(&mut Source::new(name.into(), text), Overrides::default(), stores, None)
    }

    /// Reads this file, without overrides. Its data directory is that of a server: what a store had is known to both.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn of_file(path: &Path, stores: &[Entry]) -> Result<Self, ConfigError> {
        let mut source = Source::read(Some(path.into()))?;
        Self::of(&mut source, Overrides::default(), stores, default_data_dir())
    }

    fn of(
        source: &mut Source,
        overrides: Overrides,
        stores: &[Entry],
        data_dir: Option<PathBuf>,
    ) -> Result<Self, ConfigError> {
        let mut file = source.parse(stores)?;
        overrides.apply(&mut file, source);
        let source: &Source = source;
        let tls = access_config::tls(&file, source)?;
        addresses::check(&file, source)?;
        check_server(&file, source)?;
        check_origins(&file, source)?;
        check_traces(&file, source)?;
        file.data_dir = absolute_data_dir(&file, source)?.or(data_dir);
        let namespaces = namespaces(&mut file, stores, source)?;
        check_ready(&file, source)?;
        Ok(Self {
            namespaces,
            policy: access_config::policy(&file, source)?,
            quotas: access_config::quotas(&file, source)?,
            tls,
            file,
        })
    }

    /// The addresses to listen on, at least one.
    pub fn listen(&self) -> impl Iterator<Item = &ListenAddress> {
        self.file.listen.iter().map(|listen| &listen.0)
    }

    /// The TLS settings of the encrypted addresses.
    pub fn tls(&self) -> Option<&TlsSettings> {
        self.tls.as_ref().map(|tls| &tls.settings)
    }

    /// Whether the connections to this address are encrypted.
    pub fn is_encrypted(&self, address: &ListenAddress) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.listeners.covers(address))
    }

    /// The other files that are read and may change while the server runs: certificates, tokens, keys, and the
    /// credentials for the stores.
    pub fn files(&self) -> Vec<PathBuf> {
        let tls = self.tls().into_iter().flat_map(TlsSettings::files);
        let policy = self.policy.iter().flat_map(PolicySettings::files);
        tls.chain(policy).cloned().chain(self.store_files()).collect()
    }

    /// The address of the metrics and probes, if there is one.
    pub fn metrics_listen(&self) -> Option<&ListenAddress> {
        self.file.metrics_listen.as_ref().map(|listen| &listen.0)
    }

    /// Whether metrics and probes are served over TLS.
    pub fn metrics_are_encrypted(&self) -> bool {
        let is_covered = |address| self.is_encrypted(address);
        !self.file.metrics_insecure && self.metrics_listen().is_some_and(is_covered)
    }

    /// The address of the console, if there is one.
    pub fn console_listen(&self) -> Option<&ListenAddress> {
        self.file.console_listen.as_ref().map(|listen| &listen.0)
    }

    /// The directory of all data that the server stores, if it is known.
    pub fn data_dir(&self) -> Option<&Path> {
        self.file.data_dir.as_deref()
    }

    /// How long the server is not ready until each store has served once.
    pub fn first_contact_timeout(&self) -> Duration {
        self.file.first_contact_timeout.get()
    }

    /// The namespaces whose stores must be available for the server to be ready.
    pub fn ready_namespaces(&self) -> &[String] {
        &self.file.ready_namespaces
    }

    /// The URL of the trace collector and the fraction of sampled calls, if calls are traced.
    pub fn traces(&self) -> Option<(&str, f64)> {
        let traces = &self.file.traces;
        Some((traces.endpoint.as_deref()?, traces.sample_ratio.get()))
    }

    /// The settings of the log.
    pub fn log(&self) -> &file::LogSection {
        &self.file.log
    }

    /// How many threads serve the calls. Absent: one for each processor.
    pub fn worker_threads(&self) -> Option<usize> {
        self.file.worker_threads.map(|count| count.get() as usize)
    }

    /// The settings of the service.
    pub fn settings(&self) -> Settings {
        let server = &self.file.server;
        let size = |number: u32| number as usize;
        Settings {
            max_acquires: size(server.acquire_limit.get()),
            max_streams: size(server.stream_limit.get()),
            max_kept_leases: size(server.kept_lease_limit.get()),
            max_calls: size(server.call_limit.get()),
            max_connections: size(server.connection_limit.get()),
            max_streams_per_connection: server.connection_call_limit.get(),
            identity_share: server.identity_share.get(),
            peer_share: server.peer_share.get(),
            unsent_bytes: size(server.unsent_bytes_limit.get()),
            connection_unsent_bytes: size(server.connection_unsent_bytes_limit.get()),
            request_bytes: size(server.request_bytes_limit.get()),
            response_bytes: size(server.response_bytes_limit.get()),
            state_bytes: size(server.state_bytes_limit.get()),
            page_default: size(server.page_default.get()),
            page_limit: size(server.page_limit.get()),
            keepalive_interval: server.keepalive_interval.get(),
            keepalive_timeout: server.keepalive_timeout.get(),
            connection_age: server.connection_age.map(Period::get),
            cors_origins: server.cors_origins.clone(),
            drain_timeout: self.file.drain_timeout.get(),
        }
    }

    /// The whole configuration as TOML, each key with its documentation and default.
    pub fn show(&self) -> String {
        show::show(&self.file)
    }
}

fn check_origins(file: &File, source: &Source) -> Result<(), ConfigError> {
    match file.server.cors_origins.iter().find(|origin| !is_origin(origin)) {
        Some(other) => {
            let problem = format!(
                "must be origins as browsers send them, such as \"https://app.example\" or \"http://localhost:8080\": in \
                 lower case, without a path, a slash at the end, or a port that is the scheme's own; not {other:?}"
            );
            Err(source.refuse(&["server", "cors_origins"], problem))
        }
        None => Ok(()),
    }
}

/// Whether a browser can send this text as the origin of a page: others would never match.
fn is_origin(origin: &str) -> bool {
    let https = origin.strip_prefix("https://").map(|rest| (rest, "443"));
    let Some((authority, own_port)) = https.or_else(|| Some((origin.strip_prefix("http://")?, "80"))) else {
        return false;
    };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let is_port = |port: &str| port != own_port && port.parse::<NonZeroU16>().is_ok_and(|own| own.to_string() == port);
    is_host(host) && port.is_none_or(is_port)
}

/// Whether this is a host in the form that browsers give it.
fn is_host(host: &str) -> bool {
    if let Some(address) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return address.parse::<Ipv6Addr>().is_ok_and(|own| own.to_string() == address);
    }
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    // A host whose last part is a number is an IPv4 address.
    let is_number = host
        .rsplit('.')
        .next()
        .is_some_and(|last| last.bytes().all(|digit| digit.is_ascii_digit()));
    let is_name = host.chars().all(is_plain) && host.split('.').all(|part| !part.is_empty());
    is_name && (!is_number || host.parse::<Ipv4Addr>().is_ok())
}

fn check_traces(file: &File, source: &Source) -> Result<(), ConfigError> {
    let is_url = |url: &str| {
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let is_bad = |rest: &str| rest.is_empty() || rest.contains(|c: char| c.is_whitespace() || c.is_control());
        rest.is_some_and(|rest| !is_bad(rest))
    };
    match &file.traces.endpoint {
        Some(url) if !is_url(url) => {
            let problem = format!("must be a URL such as \"http://collector:4317\", not {url:?}");
            Err(source.refuse(&["traces", "endpoint"], problem))
        }
        _ => Ok(()),
    }
}

fn check_ready(file: &File, source: &Source) -> Result<(), ConfigError> {
    match file
        .ready_namespaces
        .iter()
        .find(|name| !file.namespaces.contains_key(*name))
    {
        Some(name) => {
            let problem = format!("must be namespaces of this configuration, and {name:?} is none");
            Err(source.refuse(&["ready_namespaces"], problem))
        }
        None => Ok(()),
    }
}

fn check_server(file: &File, source: &Source) -> Result<(), ConfigError> {
    let (default, limit) = (file.server.page_default, file.server.page_limit);
    if default > limit {
        let problem = format!("must be at most page_limit ({limit}), not {default}");
        return Err(source.refuse(&["server", "page_default"], problem));
    }
    Ok(())
}

fn absolute_data_dir(file: &File, source: &Source) -> Result<Option<PathBuf>, ConfigError> {
    let absolute = file.data_dir.as_ref().map(path::absolute).transpose();
    absolute.map_err(|wrong| source.refuse(&["data_dir"], format!("must be the path of a directory: {wrong}")))
}

/// `$XDG_DATA_HOME/fencepost`, or else `~/.local/share/fencepost`. Relative paths are ignored, as the
/// XDG Base Directory Specification requires.
fn default_data_dir() -> Option<PathBuf> {
    let directory = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || directory("HOME").map(|home| home.join(".local/share"));
    directory("XDG_DATA_HOME")
        .or_else(home)
        .map(|data| data.join("fencepost"))
}

/// The namespaces of the file. Adds the defaults of their stores to `file`.
fn namespaces(
    file: &mut File,
    stores: &[Entry],
    source: &Source,
) -> Result<BTreeMap<Namespace, NamespaceConfig>, ConfigError> {
    if file.namespaces.is_empty() {
        let section = NamespaceSection {
            stores: StoreTables::of(stores),
            ..NamespaceSection::default()
        };
        file.namespaces.insert(DEFAULT_NAMESPACE.to_owned(), section);
    }
    let (server, data_dir) = (&file.server, file.data_dir.as_deref());
    file.namespaces
        .iter_mut()
        .map(|(name, section)| named_namespace(name, section, source, server, data_dir))
        .collect()
}

fn named_namespace(
    name: &str,
    section: &mut NamespaceSection,
    source: &Source,
    server: &ServerSection,
    data_dir: Option<&Path>,
) -> Result<(Namespace, NamespaceConfig), ConfigError> {
    let namespace = Namespace::new(name).map_err(|wrong| source.refuse(&["namespaces", name], wrong.problem))?;
    let origin = Origin {
        source,
        server,
        namespace: name,
        data_dir,
    };
    Ok((namespace, origin.namespace(section)?))
}
