//! Which servers, and how to reach them.

use std::time::Duration;

use redis::{ConnectionInfo, RedisResult};

use super::credentials::Credentials;
use super::store_record::StoreRecord;
pub use super::url::connection_info;

/// Which servers hold the locks.
#[derive(Debug, Clone)]
pub enum Servers {
    /// One server.
    Standalone(ConnectionInfo),
    /// A master that sentinels watch and replace.
    Sentinel {
        /// The name by which the sentinels know it.
        master: String,
        /// The sentinels.
        sentinels: Vec<ConnectionInfo>,
        /// How to log in at the master; its address is the sentinels' to say.
        login: ConnectionInfo,
    },
    /// A Cluster, reached through any of these nodes.
    Cluster(Vec<ConnectionInfo>),
}

/// What a store without a marker means to a server that has just started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnEmptyStore {
    /// It may have lost its memory: nothing is granted for the longest TTL.
    #[default]
    Quarantine,
    /// It is new, unless a server that has granted leases in it says otherwise.
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
    /// The credentials that they are given.
    pub credentials: Credentials,
    /// What every key begins with.
    pub prefix: String,
    /// What a store without a marker means.
    pub on_empty_store: OnEmptyStore,
    /// Whether this server has granted leases in the store.
    pub record: StoreRecord,
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
            credentials: Credentials::default(),
            prefix: "fencepost".into(),
            on_empty_store: OnEmptyStore::default(),
            record: StoreRecord::default(),
            longest_ttl: Duration::from_secs(24 * 3600),
            replicas: None,
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_secs(1),
        }
    }
}

impl Servers {
    /// One server.
    ///
    /// # Errors
    /// What the client says about the URL.
    pub fn standalone(url: &str) -> RedisResult<Self> {
        Ok(Self::Standalone(connection_info(url)?))
    }

    /// The master that these sentinels know by this name, reached over TLS where the first sentinel
    /// is.
    ///
    /// # Errors
    /// What the client says about a URL.
    pub fn sentinel(master: &str, urls: &[String]) -> RedisResult<Self> {
        let sentinels: Vec<_> = urls
            .iter()
            .map(|url| connection_info(url))
            .collect::<RedisResult<_>>()?;
        let bare = connection_info("redis://localhost")?;
        let login = match sentinels.first() {
            Some(first) => bare.set_addr(first.addr().clone()),
            None => bare,
        };
        Ok(Self::Sentinel {
            master: master.to_owned(),
            sentinels,
            login,
        })
    }

    /// The Cluster that these nodes belong to.
    ///
    /// # Errors
    /// What the client says about a URL.
    pub fn cluster(urls: &[String]) -> RedisResult<Self> {
        let seeds = urls.iter().map(|url| connection_info(url));
        Ok(Self::Cluster(seeds.collect::<RedisResult<_>>()?))
    }
}
