//! The credentials for the servers of a store. Each new connection uses the current ones; open
//! connections continue when they change.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, RedisResult, TlsCertificates};

use super::url::connection_info;

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
    /// An address with these settings: the client exposes parsed PEM only as part of an address.
    like: Option<ConnectionAddr>,
}

/// A server together with the credentials for it. Only [`Credentials`] creates one, so that no
/// connection lacks credentials.
#[derive(Debug)]
pub struct CredentialedServer(ConnectionInfo);

// Omits the key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("own", &self.like.is_some()).finish()
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
        access.tls.over(access.login.over(info.clone()))
    }

    /// How to reach a sentinel.
    pub fn at_sentinel(&self, info: &ConnectionInfo) -> CredentialedServer {
        let access = self.current.load();
        access.tls.over(access.sentinel_login.over(info.clone()))
    }
}

impl CredentialedServer {
    /// The connection info for the client.
    pub fn into_info(self) -> ConnectionInfo {
        self.0
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
    /// The client's error, if it cannot parse them.
    pub fn new(root_cert: Option<Vec<u8>>, own: Option<(Vec<u8>, Vec<u8>)>) -> RedisResult<Self> {
        if root_cert.is_none() && own.is_none() {
            return Ok(Self::default());
        }
        let client_tls = own.map(|(client_cert, client_key)| ClientTlsConfig {
            client_cert,
            client_key,
        });
        let certificates = TlsCertificates { client_tls, root_cert };
        let client = Client::build_with_tls(connection_info("rediss://localhost")?, certificates)?;
        Ok(Self {
            like: Some(client.get_connection_info().addr().clone()),
        })
    }

    fn over(&self, info: ConnectionInfo) -> CredentialedServer {
        let mut addr = info.addr().clone();
        if let (ConnectionAddr::TcpTls { tls_params, .. }, Some(ConnectionAddr::TcpTls { tls_params: own, .. })) =
            (&mut addr, &self.like)
        {
            tls_params.clone_from(own);
        }
        CredentialedServer(info.set_addr(addr))
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
