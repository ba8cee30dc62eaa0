//! How a cluster is reached.

use std::fmt;
use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

/// How often a silent connection is asked for a sign of life, and how long that may take.
const SIGN_OF_LIFE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(2));

/// How a cluster is reached, and where in it the locks lie.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// The members, as `http://host:port` or `https://host:port`; at least one.
    pub endpoints: Vec<String>,
    /// What all keys begin with.
    pub root: String,
    /// How long a request may take.
    pub timeout: Duration,
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// How long this replica's waiting claims outlive it.
    pub session_ttl: Duration,
    /// What proves this server to the members, until it is replaced.
    pub proof: Credentials,
}

/// What proves this server to the members, and them to it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Credentials {
    /// Who this server is to etcd.
    pub login: Option<Login>,
    /// How the members are recognised.
    pub tls: Option<Tls>,
}

/// A user of etcd.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The user.
    pub user: String,
    /// Its password.
    pub password: String,
}

/// Certificates, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Tls {
    /// Who may sign for the members.
    pub authority: Vec<u8>,
    /// This server's own certificate and key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in the members' certificates, where it is not that of the endpoint.
    pub server_name: Option<String>,
}

impl Settings {
    /// The usual settings for these members.
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

    /// How a connection is made, but for what proves this server.
    pub(super) fn options(&self) -> ConnectOptions {
        let (interval, wait_policy) = SIGN_OF_LIFE;
        ConnectOptions::new()
            .with_connect_timeout(self.connect_timeout)
            .with_keep_alive(interval, wait_policy)
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
    /// Without what is secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proof")
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
            .field("proof", &self.proof)
            .finish_non_exhaustive()
    }
}
