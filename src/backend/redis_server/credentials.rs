//! The credentials for the servers of a store. Each new connection uses the current ones; open
//! connections continue when they change.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use redis::{ConnectionAddr, ConnectionInfo};
use rustls::ClientConfig;

use crate::tls::credentials::{CredentialsError, client_config};

/// The credentials for each new connection. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    current: Arc<ArcSwap<Access>>,
}

/// How servers are reached, in addition to what their URLs say.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// The login for the servers that store locks.
    pub login: Login,
    /// The login for the sentinels.
    pub sentinel_login: Login,
    /// The TLS settings for `rediss://`, for all of these servers.
    pub tls: Tls,
}

/// A login.
#[derive(Clone, Default)]
pub struct Login {
    /// The ACL user.
    pub user: Option<String>,
    /// Its password.
    pub password: Option<String>,
    /// The database; 0 means the URL's.
    pub database: i64,
}

/// TLS settings; by default the machine's trust roots, and no client certificate.
#[derive(Clone, Default)]
pub struct Tls {
    own: Option<Arc<ClientConfig>>,
}

/// A server together with the credentials for it. Only [`Credentials`] creates one, so that no
/// connection lacks credentials.
#[derive(Debug)]
pub struct CredentialedServer(ConnectionInfo, Tls);

// Omits the key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("own", &self.own.is_some()).finish()
    }
}

// Omits the password.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("user", &self.user)
            .field("database", &self.database)
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// Starts with these credentials.
    pub fn new(access: Access) -> Self {
        Self {
            current: Arc::new(ArcSwap::from_pointee(access)),
        }
    }

    /// Replaces the credentials for new connections. Open connections stay.
    pub fn replace(&self, access: Access) {
        self.current.store(Arc::new(access));
    }

    /// How to reach a server that stores locks.
    pub fn at_server(&self, info: &ConnectionInfo) -> CredentialedServer {
        let access = self.current.load();
        CredentialedServer(access.login.over(info.clone()), access.tls.clone())
    }

    /// How to reach a sentinel.
    pub fn at_sentinel(&self, info: &ConnectionInfo) -> CredentialedServer {
        let access = self.current.load();
        CredentialedServer(access.sentinel_login.over(info.clone()), access.tls.clone())
    }
}

impl CredentialedServer {
    /// The server with the login, and the TLS settings.
    pub fn into_parts(self) -> (ConnectionInfo, Tls) {
        (self.0, self.1)
    }
}

impl Login {
    fn over(&self, info: ConnectionInfo) -> ConnectionInfo {
        let mut redis = info.redis_settings().clone();
        if let Some(user) = &self.user {
            redis = redis.set_username(user);
        }
        if let Some(password) = &self.password {
            redis = redis.set_password(password);
        }
        if self.database != 0 {
            redis = redis.set_db(self.database);
        }
        info.set_redis_settings(redis)
    }
}

impl Tls {
    /// Creates TLS settings with the trusted root certificates, and with the client's own
    /// certificate and key, all as PEM.
    ///
    /// # Errors
    /// [`CredentialsError`] if they cannot be used.
    pub fn new(authorities: Option<Vec<u8>>, own: Option<(Vec<u8>, Vec<u8>)>) -> Result<Self, CredentialsError> {
        if authorities.is_none() && own.is_none() {
            return Ok(Self::default());
        }
        let own = own.as_ref().map(|(chain, key)| (chain.as_slice(), key.as_slice()));
        let config = client_config(authorities.as_deref(), own)?;
        Ok(Self {
            own: Some(Arc::new(config)),
        })
    }

    /// The settings of a connection.
    ///
    /// # Errors
    /// [`CredentialsError`] if the machine has no usable trust roots.
    pub fn client_config(&self) -> Result<Arc<ClientConfig>, CredentialsError> {
        match &self.own {
            Some(config) => Ok(Arc::clone(config)),
            None => client_config(None, None).map(Arc::new),
        }
    }
}

/// The address of another server with the same transport settings.
pub fn located(like: &ConnectionAddr, host: String, port: u16) -> ConnectionAddr {
    match like.clone() {
        ConnectionAddr::TcpTls {
            insecure, tls_params, ..
        } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure,
            tls_params,
        },
        _ => ConnectionAddr::Tcp(host, port),
    }
}
