//! What proves this server to the servers of a store, put over each new connection as it is then: it may
//! change while others are open, which go on.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, RedisResult, TlsCertificates};

use super::settings::connection_info;

/// What each new connection shows from now on. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    current: Arc<ArcSwap<Access>>,
}

/// How servers are reached, beside what their URLs say.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// How to log in where the locks are.
    pub login: Login,
    /// How to log in at the sentinels.
    pub sentinel_login: Login,
    /// How `rediss://` is spoken, to all of them.
    pub tls: Tls,
}

/// How to log in.
#[derive(Clone, Default)]
pub struct Login {
    /// The ACL user.
    pub user: Option<String>,
    /// Its password.
    pub password: Option<String>,
    /// The database; 0 leaves it to the URL.
    pub database: i64,
}

/// How TLS is spoken; by default as this machine does, and without a certificate of one's own.
#[derive(Clone, Default)]
pub struct Tls {
    /// An address that is reached so: the client shows what it has read of PEM nowhere else.
    like: Option<ConnectionAddr>,
}

/// A server together with what proves this one to it. Only a [`Credentials`] makes one, so that no connection goes
/// without.
#[derive(Debug)]
pub struct CredentialedServer(ConnectionInfo);

// Without the key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("own", &self.like.is_some()).finish()
    }
}

// Without the password.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("user", &self.user)
            .field("database", &self.database)
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// This one, until it is replaced.
    pub fn new(access: Access) -> Self {
        Self {
            current: Arc::new(ArcSwap::from_pointee(access)),
        }
    }

    /// Goes by `access` from now on. Open connections stay.
    pub fn replace(&self, access: Access) {
        self.current.store(Arc::new(access));
    }

    /// How to reach a server where locks are.
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
    /// What the client connects with.
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
    /// With those who may sign the servers' certificates, and with the certificate and the key of this
    /// client, all as PEM.
    ///
    /// # Errors
    /// What the client says about them.
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

/// The address of another server that is reached in the same way.
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
