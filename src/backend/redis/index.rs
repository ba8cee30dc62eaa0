//! The index: one sorted set per namespace with the names of the locks in use.
//!
//! A name is added with a commit on its lock, at most once per [`FRESH`] and server, and removed with the lock's root.
//! Both are commands of their own, because the index of a Cluster may be on another server. If a removal races with a use,
//! the name is added again.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, from_redis_value};
use tokio::time::Instant;

use crate::backend::BackendError;
use crate::backend::redis_server::failure::broken;
use crate::backend::redis_server::reply::name_range;
use crate::backend::redis_server::topology::Topology;
use crate::name::LockName;

/// How long after its addition a server does not add a name again.
const FRESH: Duration = Duration::from_secs(20);
/// How many recently added names a server remembers at most.
const RECENT_NAMES: usize = 50_000;

/// The index of one namespace, and the names that this server added recently.
#[derive(Debug)]
pub struct Index {
    key: Vec<u8>,
    recent: Mutex<RecentNames>,
}

#[derive(Debug, Default)]
struct RecentNames {
    added: HashMap<LockName, Instant>,
    /// When the names older than [`FRESH`] were last dropped.
    pruned: Option<Instant>,
}

impl RecentNames {
    fn has(&self, lock: &LockName, now: Instant) -> bool {
        self.added.get(lock).is_some_and(|at| now - *at < FRESH)
    }

    /// Remembers a name unless [`RECENT_NAMES`] is reached. Old names are dropped at most once per
    /// [`FRESH`], because the scan of all names takes long.
    fn add(&mut self, lock: &LockName, now: Instant) {
        if self.added.len() >= RECENT_NAMES && self.pruned.is_none_or(|pruned| now - pruned >= FRESH) {
            self.pruned = Some(now);
            self.added.retain(|_, at| now - *at < FRESH);
        }
        if self.added.len() < RECENT_NAMES {
            self.added.insert(lock.clone(), now);
        }
    }
}

impl Index {
    /// The index at a key.
    pub fn new(key: Vec<u8>) -> Self {
        Self {
            key,
            recent: Mutex::default(),
        }
    }

    /// Adds the name of a lock after a commit on it. An error is ignored: the lock is missing from lists until a later
    /// commit, and without one its root expires.
    pub async fn record_use(&self, topology: &Topology, lock: &LockName) {
        let now = Instant::now();
        if self.recent.lock().has(lock, now) {
            return;
        }
        if self.add(topology, lock).await.is_ok() {
            self.recent.lock().add(lock, now);
        }
    }

    /// Adds a name.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn add(&self, topology: &Topology, lock: &LockName) -> Result<(), BackendError> {
        let mut add = self.command("ZADD");
        add.arg(0).arg(lock.as_str());
        topology.command(&self.key, &add).await.map(drop)
    }

    /// Removes names.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn remove(&self, topology: &Topology, names: &[&str]) -> Result<(), BackendError> {
        let mut remove = self.command("ZREM");
        remove.arg(names);
        topology.command(&self.key, &remove).await.map(drop)
    }

    /// At most `limit` names with this prefix, after a name, in their order. Other clients of the store may have added any
    /// bytes.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn names(
        &self,
        topology: &Topology,
        prefix: &str,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Vec<u8>>, BackendError> {
        let (from, to) = name_range(prefix, after);
        let mut range = self.command("ZRANGEBYLEX");
        range.arg(from).arg(to).arg("LIMIT").arg(0).arg(limit);
        let answer = topology.command(&self.key, &range).await?;
        from_redis_value(answer).map_err(broken)
    }

    fn command(&self, name: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(&self.key);
        command
    }
}
