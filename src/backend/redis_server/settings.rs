//! Which servers, and how to reach them.

use std::time::Duration;

use redis::{ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisResult};

/// Which servers hold the locks.
#[derive(Debug, Clone)]
pub enum Servers {
    /// One server.
    Standalone(ConnectionInfo),
    /// A master that sentinels watch and replace.
    Sentinel {
        /// The name by which the sentinels know it.
        master: String,
        /// The sentinels, with credentials of their own.
        sentinels: Vec<ConnectionInfo>,
        /// How to log in at the master; its address is the sentinels' to say.
        login: ConnectionInfo,
    },
    /// A Cluster, reached through any of these nodes.
    Cluster(Vec<ConnectionInfo>),
}

/// What a store without a marker means to a server that has just started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FirstStart {
    /// It may have lost its memory: nothing is granted for the longest TTL.
    #[default]
    Quarantine,
    /// It is new.
    Admit,
}

/// How to reach and to use the servers.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Which ones.
    pub servers: Servers,
    /// What every key begins with.
    pub prefix: String,
    /// What a store without a marker means.
    pub first_start: FirstStart,
    /// The longest TTL that any namespace of this store grants: how long a store that lost even its
    /// marker is not trusted.
    pub longest_ttl: Duration,
    /// How many replicas must have a grant before it is answered; 0 asks nobody.
    pub wait_replicas: u32,
    /// How long to wait for them.
    pub wait_timeout: Duration,
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// How long an answer may take.
    pub response_timeout: Duration,
}

impl Settings {
    /// Settings with the defaults.
    pub fn new(servers: Servers) -> Self {
        Self {
            servers,
            prefix: "fencepost".into(),
            first_start: FirstStart::default(),
            longest_ttl: Duration::from_secs(24 * 3600),
            wait_replicas: 0,
            wait_timeout: Duration::from_millis(500),
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_secs(1),
        }
    }
}

/// Reads a URL (`redis://`, `rediss://`, `unix://`); RESP3 is spoken whatever it says.
///
/// # Errors
/// What the client says about a URL that it cannot read.
pub fn connection_info(url: &str) -> RedisResult<ConnectionInfo> {
    let info = url.into_connection_info()?;
    let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Ok(info.set_redis_settings(redis))
}
