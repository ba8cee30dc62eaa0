//! The settings of the connection to a cluster.

use std::fmt;
use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

/// The interval and the timeout of HTTP/2 keep-alives on an idle connection.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(2));

/// How a cluster is reached, and the prefix of the keys.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// The members, as `http://host:port` or `https://host:port`; at least one.
    pub endpoints: Vec<String>,
    /// The prefix of all keys.
    pub root: String,
    /// The timeout of a request.
    pub timeout: Duration,
    /// The timeout of a connection attempt.
    pub connect_timeout: Duration,
    /// The TTL of a session: how long this replica's waiting claims outlive the replica.
    pub session_ttl: Duration,
    /// The first credentials; they can be replaced.
    pub proof: Credentials,
}

/// The credentials of this server, and the authority that verifies the members' certificates.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Credentials {
    /// The etcd user, if any.
    pub login: Option<Login>,
    /// TLS, if the connections use it.
    pub tls: Option<Tls>,
}

/// A user of etcd.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The user's name.
    pub user: String,
    /// The user's password.
    pub password: String,
}

/// Certificates, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Tls {
    /// The certificates of the authorities that sign the members' certificates.
    pub authority: Vec<u8>,
    /// This server's own certificate and key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in the members' certificates, if it differs from the endpoint's host.
    pub server_name: Option<String>,
}

impl Settings {
    /// The default settings for these members.
    pub fn new(endpoints: Vec<String>) -> Self {
        Self {
            endpoints,
            root: "/fencepost".into(),
            timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(2),
            session_ttl: Duration::from_secs(5),
            proof: Credentials::default(),
        }
    }

    /// The options of a client, without the credentials.
    pub(super) fn options(&self) -> ConnectOptions {
        let (interval, timeout) = KEEP_ALIVE;
        ConnectOptions::new()
            .with_connect_timeout(self.connect_timeout)
            .with_keep_alive(interval, timeout)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true)
            .with_auto_token_refresh(true)
    }
}

impl Credentials {
    pub(super) fn over(&self, mut options: ConnectOptions) -> ConnectOptions {
        if let Some(login) = &self.login {
            options = options.with_user(&login.user, &login.password);
        }
        if let Some(tls) = &self.tls {
            options = options.with_tls(tls.options());
        }
        options
    }
}

impl Tls {
    fn options(&self) -> TlsOptions {
        let mut options = TlsOptions::new().ca_certificate(Certificate::from_pem(&self.authority));
        if let Some((certificate, key)) = &self.identity {
            options = options.identity(Identity::from_pem(certificate, key));
        }
        match &self.server_name {
            Some(name) => options.domain_name(name),
            None => options,
        }
    }
}

impl fmt::Debug for Credentials {
    /// Without the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.login.as_ref().map(|login| &login.user))
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("endpoints", &self.endpoints)
            .field("root", &self.root)
            .field("credentials", &self.proof)
            .finish_non_exhaustive()
    }
}
