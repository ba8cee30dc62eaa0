//! Which servers, and how to reach them.

use std::fmt;
use std::time::Duration;

use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisResult,
    TlsCertificates,
};

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

/// How many replicas of a server must have a grant before it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replicas {
    /// How many, at least one.
    pub count: u32,
    /// How long they have.
    pub timeout: Duration,
}

impl Replicas {
    /// Why it is not enough that so many have it.
    pub fn too_few(&self, took: u32) -> String {
        let (count, timeout) = (self.count, self.timeout);
        format!("only {took} of {count} replicas of the server confirmed within {timeout:?}")
    }
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
    /// The longest TTL that any namespace of this store grants: for so long at least a store that
    /// may have lost what was granted is not trusted.
    pub longest_ttl: Duration,
    /// The replicas that must have a grant, where that is asked for.
    pub replicas: Option<Replicas>,
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
            replicas: None,
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_secs(1),
        }
    }
}

/// Several masters that know nothing of each other, of which a majority decides.
#[derive(Debug, Clone)]
pub struct Quorum {
    /// The masters: 3, 5 or 7.
    pub nodes: Vec<ConnectionInfo>,
    /// What every key begins with.
    pub prefix: String,
    /// What a node without a marker means.
    pub first_start: FirstStart,
    /// The longest TTL that any namespace of this store grants.
    pub longest_ttl: Duration,
    /// How long a node has for a vote.
    pub node_timeout: Duration,
}

impl Quorum {
    /// These nodes, with the defaults.
    pub fn new(nodes: Vec<ConnectionInfo>) -> Self {
        Self {
            nodes,
            prefix: "fencepost".into(),
            first_start: FirstStart::default(),
            longest_ttl: Duration::from_secs(24 * 3600),
            node_timeout: Duration::from_millis(200),
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

/// How TLS is spoken.
#[derive(Clone, Default)]
pub struct Tls {
    /// Who may sign the servers' certificates, in PEM; absent: whom this machine trusts.
    pub ca: Option<Vec<u8>>,
    /// The certificate and the key of this client, in PEM.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

// Without the key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("ca", &self.ca.is_some())
            .field("client", &self.client.is_some())
            .finish()
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
    fn over(&self, info: ConnectionInfo) -> RedisResult<ConnectionInfo> {
        let encrypted = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        if !encrypted || (self.ca.is_none() && self.client.is_none()) {
            return Ok(info);
        }
        let certificates = TlsCertificates {
            client_tls: self.client.clone().map(|(client_cert, client_key)| ClientTlsConfig {
                client_cert,
                client_key,
            }),
            root_cert: self.ca.clone(),
        };
        let client = Client::build_with_tls(info, certificates)?;
        Ok(client.get_connection_info().clone())
    }
}

impl Access {
    /// One server.
    ///
    /// # Errors
    /// What the client says about the URL or a certificate.
    pub fn server(&self, url: &str) -> RedisResult<ConnectionInfo> {
        self.tls.over(self.login.over(connection_info(url)?))
    }

    fn sentinel(&self, url: &str) -> RedisResult<ConnectionInfo> {
        self.tls.over(self.sentinel_login.over(connection_info(url)?))
    }
}

impl Servers {
    /// One server.
    ///
    /// # Errors
    /// What the client says about the URL or a certificate.
    pub fn standalone(url: &str, access: &Access) -> RedisResult<Self> {
        Ok(Self::Standalone(access.server(url)?))
    }

    /// The master that these sentinels know by this name, reached over TLS where the first sentinel
    /// is.
    ///
    /// # Errors
    /// What the client says about a URL or a certificate.
    pub fn sentinel(master: &str, urls: &[String], access: &Access) -> RedisResult<Self> {
        let sentinels: Vec<_> = urls
            .iter()
            .map(|url| access.sentinel(url))
            .collect::<RedisResult<_>>()?;
        let bare = connection_info("redis://localhost")?;
        let bare = match sentinels.first() {
            Some(first) => bare.set_addr(first.addr().clone()),
            None => bare,
        };
        Ok(Self::Sentinel {
            master: master.to_owned(),
            sentinels,
            login: access.login.over(bare),
        })
    }

    /// The Cluster that these nodes belong to.
    ///
    /// # Errors
    /// What the client says about a URL or a certificate.
    pub fn cluster(urls: &[String], access: &Access) -> RedisResult<Self> {
        let seeds = urls.iter().map(|url| access.server(url));
        Ok(Self::Cluster(seeds.collect::<RedisResult<_>>()?))
    }
}
