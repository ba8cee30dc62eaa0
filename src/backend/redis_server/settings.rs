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
    /// The longest TTL that any namespace of this store grants: for so long at least a store that
    /// may have lost what was granted is not trusted.
    pub longest_ttl: Duration,
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

/// How to log in, beside what a URL says.
#[derive(Debug, Clone, Default)]
pub struct Login {
    /// The ACL user.
    pub user: Option<String>,
    /// Its password.
    pub password: Option<String>,
    /// The database.
    pub database: i64,
}

impl Login {
    /// Puts the login over what a URL says.
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

impl Servers {
    /// One server.
    ///
    /// # Errors
    /// What the client says about the URL.
    pub fn standalone(url: &str, login: &Login) -> RedisResult<Self> {
        Ok(Self::Standalone(login.over(connection_info(url)?)))
    }

    /// The master that these sentinels know by this name. What the URLs say of users and passwords
    /// is for the sentinels; `login` is for the master, reached over TLS where the sentinels are.
    ///
    /// # Errors
    /// What the client says about a URL.
    pub fn sentinel(master: &str, urls: &[String], login: &Login) -> RedisResult<Self> {
        let sentinels: Vec<_> = urls
            .iter()
            .map(|url| connection_info(url))
            .collect::<RedisResult<_>>()?;
        let like = sentinels.first().map(|one| one.addr().clone());
        let bare = connection_info("redis://localhost")?;
        let bare = like.map_or_else(|| bare.clone(), |addr| bare.clone().set_addr(addr));
        Ok(Self::Sentinel {
            master: master.to_owned(),
            sentinels,
            login: login.over(bare),
        })
    }

    /// The Cluster that these nodes belong to.
    ///
    /// # Errors
    /// What the client says about a URL.
    pub fn cluster(urls: &[String], login: &Login) -> RedisResult<Self> {
        let seed = |url: &String| connection_info(url).map(|info| login.over(info));
        Ok(Self::Cluster(urls.iter().map(seed).collect::<RedisResult<_>>()?))
    }
}
