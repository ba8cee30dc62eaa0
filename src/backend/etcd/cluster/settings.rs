//! The settings of the connection to a cluster.

use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

pub use crate::backend::login::{Credentials, Login, Tls};

/// The interval and the timeout of HTTP/2 keep-alives on an idle connection.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(2));

/// How a cluster is reached, and the prefix of the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    pub credentials: Credentials,
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
            credentials: Credentials::default(),
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

/// Adds the credentials to the options of a client.
pub(super) fn with_credentials(credentials: &Credentials, mut options: ConnectOptions) -> ConnectOptions {
    if let Some(login) = &credentials.login {
        options = options.with_user(&login.user, &login.password);
    }
    match &credentials.tls {
        Some(tls) => options.with_tls(tls_options(tls)),
        None => options,
    }
}

fn tls_options(tls: &Tls) -> TlsOptions {
    let mut options = TlsOptions::new().ca_certificate(Certificate::from_pem(&tls.authority));
    if let Some((certificate, key)) = &tls.identity {
        options = options.identity(Identity::from_pem(certificate, key));
    }
    match &tls.server_name {
        Some(name) => options.domain_name(name),
        None => options,
    }
}
