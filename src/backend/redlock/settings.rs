//! The settings of a quorum of masters.

use std::time::Duration;

use redis::ConnectionInfo;

use crate::backend::redis_server::credentials::Credentials;
use crate::backend::redis_server::settings::OnEmptyStore;
use crate::backend::redis_server::store_record::StoreRecord;

/// Several independent masters, of which a majority decides.
#[derive(Debug, Clone)]
pub struct Quorum {
    /// The masters: 3, 5 or 7.
    pub nodes: Vec<ConnectionInfo>,
    /// The credentials for them.
    pub credentials: Credentials,
    /// The prefix of every key.
    pub prefix: String,
    /// What a node without a marker means.
    pub on_empty_store: OnEmptyStore,
    /// Whether this server has granted leases on the nodes.
    pub record: StoreRecord,
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
            credentials: Credentials::default(),
            prefix: "fencepost".into(),
            on_empty_store: OnEmptyStore::default(),
            record: StoreRecord::default(),
            longest_ttl: Duration::from_secs(24 * 3600),
            node_timeout: Duration::from_millis(200),
        }
    }
}
