//! The settings of the connection to an ensemble.

use std::fmt;
use std::time::Duration;

/// How an ensemble is reached, and the root of the nodes.
#[derive(Clone, PartialEq, Eq)]
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

/// The credentials of this server, and the authority that verifies the servers' certificates.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Credentials {
    /// The user of the digest scheme and the password, if any.
    pub login: Option<(String, String)>,
    /// TLS, if the connections use it.
    pub tls: Option<Tls>,
}

/// Certificates, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Tls {
    /// The certificates of the authorities that sign the servers' certificates.
    pub authority: Vec<u8>,
    /// This server's own certificate and key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in the servers' certificates, if it differs from the host.
    pub server_name: Option<String>,
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

impl fmt::Debug for Credentials {
    /// Without the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.login.as_ref().map(|(user, _)| user))
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("servers", &self.servers)
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}
