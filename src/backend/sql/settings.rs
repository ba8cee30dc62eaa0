//! The settings of the store.

use std::time::Duration;

pub use super::last_used::LastUsed;
use crate::backend::Guarantee;
pub use crate::backend::login::{Credentials, Login, Tls};

/// What stands by for the primary, and when it has what a commit wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replication {
    /// Nothing is ever promoted in its place.
    Single,
    /// A standby has each commit before it is answered, and only such a standby is promoted.
    Synchronous,
    /// A standby may lack the last commits when it is promoted.
    Asynchronous,
}

impl Replication {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Synchronous => "synchronous",
            Self::Asynchronous => "asynchronous",
        }
    }

    /// What a store with it guarantees.
    pub fn guarantee(self) -> Guarantee {
        match self {
            Self::Single | Self::Synchronous => Guarantee::Cp,
            Self::Asynchronous => Guarantee::Ap,
        }
    }
}

/// What a store is used with, alike for all servers, because exclusion rests on it. The store keeps what the first one has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// The name of the replication.
    pub replication: String,
    /// The guarantee.
    pub guarantee: String,
}

impl Terms {
    /// What is wrong with a store that was opened with others.
    pub fn problem(&self, kept: &Self) -> Option<String> {
        (self != kept).then(|| {
            format!(
                "was opened with replication = {:?} and the guarantee {}, and this server has {:?} and {}: see docs/reload.md",
                kept.replication, kept.guarantee, self.replication, self.guarantee
            )
        })
    }
}

/// How the database is reached, and how it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The servers, as `host:port`, the preferred one first; at least one. The one that is the primary is used.
    pub servers: Vec<String>,
    /// The database.
    pub database: String,
    /// The schema of the tables, in PostgreSQL: lower-case letters, digits and `_`.
    pub schema: String,
    /// What stands by.
    pub replication: Replication,
    /// Whether a pooler that shares connections between transactions is in between. PostgreSQL only.
    pub pooler: bool,
    /// Whether missing tables are created.
    pub create_tables: bool,
    /// How many connections send batches.
    pub connections: usize,
    /// The timeout of a statement.
    pub timeout: Duration,
    /// The timeout of a connection attempt.
    pub connect_timeout: Duration,
    /// The longest TTL of all namespaces at the start.
    pub longest_ttl: Duration,
    /// What is known of the database from before the start.
    pub last_used: LastUsed,
}

impl Settings {
    /// The default settings for these servers.
    pub fn new(servers: Vec<String>) -> Self {
        Self {
            servers,
            database: "fencepost".into(),
            schema: "public".into(),
            replication: Replication::Single,
            pooler: false,
            create_tables: true,
            connections: 2,
            timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(2),
            longest_ttl: Duration::from_secs(24 * 3600),
            last_used: LastUsed::default(),
        }
    }

    /// What the store guarantees. With several servers of which none is ever promoted, nobody knows which one has the leases.
    pub fn guarantee(&self) -> Guarantee {
        match self.replication {
            Replication::Single if self.servers.len() > 1 => Guarantee::Ap,
            replication => replication.guarantee(),
        }
    }

    /// What the store is used with.
    pub fn terms(&self) -> Terms {
        Terms {
            replication: self.replication.name().into(),
            guarantee: self.guarantee().as_str().into(),
        }
    }
}
