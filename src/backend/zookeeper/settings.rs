//! The settings of the connection to an ensemble.

use std::time::Duration;

pub use crate::backend::login::{Credentials, Login, Tls};

/// How an ensemble is reached, and the root of the nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The servers, as `host:port`, the preferred one first; at least one.
    pub servers: Vec<String>,
    /// The path under which all nodes are.
    pub root: String,
    /// The timeout of a request.
    pub timeout: Duration,
    /// The timeout of a connection attempt.
    pub connect_timeout: Duration,
    /// The session timeout that is asked for: how long this replica's waiting claims outlive the replica.
    pub session_timeout: Duration,
    /// The largest request, in bytes: at most the servers' `jute.maxbuffer`.
    pub max_request: usize,
}

impl Settings {
    /// The default settings for these servers.
    pub fn new(servers: Vec<String>) -> Self {
        Self {
            servers,
            root: "/fencepost".into(),
            timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(2),
            session_timeout: Duration::from_secs(6),
            max_request: 512 * 1024,
        }
    }
}
