//! The settings of a RedLock backend, checked.

use std::collections::BTreeSet;
use std::time::Duration;

use super::error::ConfigError;
use super::file::RedlockSection;
use super::namespace::Origin;
use super::redis_access::{Keys, LoginFrom, RedisSettingsError, TlsFrom, unusable};
use crate::backend::redis_server::settings::{Access, FirstStart, Login, Quorum};

/// The settings of a RedLock backend. Namespaces with the same ones share its connections.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RedlockConfig {
    nodes: Vec<String>,
    login: LoginFrom,
    database: u32,
    tls: TlsFrom,
    prefix: String,
    admit_first: bool,
    node_timeout: Duration,
}

impl RedlockConfig {
    /// What the store is opened with: the files and variables are read here.
    ///
    /// # Errors
    /// When one of them cannot be read, or holds no certificate.
    pub fn quorum(&self, longest_ttl: Duration) -> Result<Quorum, RedisSettingsError> {
        let access = Access {
            login: Login {
                database: self.database.into(),
                ..self.login.read()?
            },
            sentinel_login: Login::default(),
            tls: self.tls.read()?,
        };
        // The URLs have been checked before.
        let nodes = self
            .nodes
            .iter()
            .map(|node| access.server(node))
            .collect::<Result<_, _>>();
        let nodes = nodes.map_err(|error| unusable("ca_file, cert_file or key_file", error))?;
        let mut quorum = Quorum::new(nodes);
        quorum.prefix.clone_from(&self.prefix);
        quorum.longest_ttl = longest_ttl;
        quorum.node_timeout = self.node_timeout;
        if self.admit_first {
            quorum.first_start = FirstStart::Admit;
        }
        Ok(quorum)
    }
}

impl Origin<'_> {
    /// Checks the table of a RedLock backend.
    pub(super) fn redlock(&self, section: &RedlockSection) -> Result<RedlockConfig, ConfigError> {
        let refuse = |problem: &str| Err(self.refuse(&["redlock", "nodes"], problem.to_owned()));
        if !matches!(section.nodes.len(), 3 | 5 | 7) {
            return refuse("must be 3, 5 or 7 URLs");
        }
        if section.nodes.iter().collect::<BTreeSet<_>>().len() < section.nodes.len() {
            return refuse("must be different servers: a node must not vote twice");
        }
        let keys = Keys {
            table: "redlock",
            servers: ("nodes", &section.nodes),
            user: &section.user,
            password_file: &section.password_file,
            password_env: &section.password_env,
            ca_file: &section.ca_file,
            cert_file: &section.cert_file,
            key_file: &section.key_file,
            prefix: &section.prefix,
            first_start: &section.first_start,
        };
        self.check_urls(&keys)?;
        Ok(RedlockConfig {
            nodes: section.nodes.clone(),
            login: self.login(&keys)?,
            database: section.database.get(),
            tls: self.tls(&keys)?,
            prefix: section.prefix.clone(),
            admit_first: self.admits_first(&keys)?,
            node_timeout: section.node_timeout.get(),
        })
    }
}
