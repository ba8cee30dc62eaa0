//! The settings of a RedLock backend, checked.

use std::collections::BTreeSet;
use std::time::Duration;

use super::error::ConfigError;
use super::file::RedlockSection;
use super::namespace::Origin;
use super::redis_access::{Keys, LoginFrom, RedisSettingsError, TlsFrom, read_access, unusable};
use crate::backend::redis_server::credentials::{Access, Credentials};
use crate::backend::redis_server::settings::{FirstStart, Quorum, connection_info};

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
    /// What proves this server to the nodes: the files and variables are read here.
    ///
    /// # Errors
    /// When one of them cannot be read, or does not hold what it should.
    pub fn access(&self) -> Result<Access, RedisSettingsError> {
        read_access(&self.login, self.database, &LoginFrom::default(), &self.tls)
    }

    /// What the store is opened with.
    ///
    /// # Errors
    /// As [`Self::access`].
    pub fn quorum(&self, longest_ttl: Duration) -> Result<Quorum, RedisSettingsError> {
        let nodes = self.nodes.iter().map(|node| connection_info(node));
        // They have been checked before.
        let nodes = nodes
            .collect::<Result<_, _>>()
            .map_err(|error| unusable("nodes", error))?;
        let mut quorum = Quorum::new(nodes);
        quorum.proof = Credentials::new(self.access()?);
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
