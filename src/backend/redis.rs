//! The Redis backend: locks in a standalone Redis, behind Sentinel, or in a Redis Cluster. AP.
//!
//! Each lock is one hash, which a Lua script replaces by compare-and-set (`record.lua` documents its layout), on the clock
//! of the Redis server. What it says is decided by the record engine ([`super::record`]). If Redis may have lost grants,
//! nothing is granted for the longest TTL ([`super::redis_server::marker`]).
//!
//! - [`wire`]: the arguments of the scripts, their replies, and messages.
//! - [`scripts`]: the scripts.
//! - [`index`]: the names of the locks in use.
//!
//! A lock is one key, because a Cluster refuses commands on several keys of a slot while it moves that slot. The
//! script writes after all checks, first with one HSET, so a script that fails has changed nothing; then it publishes
//! messages. The body is a field of its own: a commit does not read it, and a read does not send it to a server that
//! knows its version.
//!
//! A root that is idle is found by the index of names. The index is another key, on another server in a Cluster, so a
//! name is added after its commit and can be lost. A root whose name was lost expires: each commit keeps its key for
//! at least 4 days behind the last lease. The key also keeps the largest token for 4 days when its root is removed.
//!
//! Each server beats every 1.5 s in one hash of the namespace, and reads the locks on which it waits every 5 s,
//! because messages may be lost.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use futures::stream::{self, BoxStream, StreamExt};
use parking_lot::Mutex;
use redis::{Value, from_redis_value};
use tokio::sync::watch;
use tokio::time::timeout;

use self::index::Index;
use super::failure::{broken, not_sent};
use super::record::store::{Commit, Committed, Found, FoundRoot, Heard, RecordStore, Root, ServerId, Stamp, Version};
use super::record::{Engine, EngineSettings};
use super::redis_server::credentials::Access;
use super::redis_server::failure::is_of_record;
use super::redis_server::reply::lock_name;
use super::redis_server::script::{Script, StepRequirements};
use super::redis_server::settings::Settings;
use super::redis_server::subscriptions::{Events, SubscriptionEvent, Subscriptions};
use super::redis_server::topology::Topology;
use super::unreadable::Unreadable;
use super::{Backend, BackendError, Guarantee, Health};
use crate::name::{LockName, Namespace};

pub mod config;
mod index;
pub mod scripts;
mod wire;

/// How long a commit that took effect waits until the lock's name is in the index.
const INDEX_TIMEOUT: Duration = Duration::from_millis(100);
/// How long a lost message may stay unnoticed.
const POLL: Duration = Duration::from_secs(5);
/// How many names of the index are read at once, at most.
const PAGE: usize = 256;
/// How many locks are looked at for idle ones at a time, unless most are.
const SWEPT: usize = 2_048;
/// How many parts are read at once.
const PARTS: u64 = 32;

/// An open store: the servers, and one set of connections that all its namespaces share. Clones share them too.
#[derive(Clone)]
pub struct Store(Arc<Shared>);

struct Shared {
    settings: Arc<Settings>,
    topology: Arc<Topology>,
    subscriptions: Subscriptions,
    /// The id of the next namespace's server. Each has its own, because messages are sent to it.
    next_server: AtomicU64,
}

impl Store {
    /// Opens a store and starts to connect to the servers in the background. The health of a
    /// namespace reports when they are reachable. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`BackendError::Broken`] without random numbers.
    pub fn open(settings: Settings) -> Result<Self, BackendError> {
        // Only the first installation in a process succeeds. Every part installs the same provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let next_server = ServerId::random()?.0.get().into();
        let settings = Arc::new(settings);
        let topology = Arc::new(Topology::start(&settings, scripts::ALL));
        Ok(Self(Arc::new(Shared {
            subscriptions: Subscriptions::start(Arc::clone(&settings), &topology),
            settings,
            topology,
            next_server,
        })))
    }

    /// Replaces the credentials. New connections use them; open connections stay.
    pub fn set_credentials(&self, access: Access) {
        self.0.settings.credentials.replace(access);
    }

    /// The records of a namespace.
    pub fn records(&self, namespace: &Namespace) -> Arc<dyn RecordStore> {
        let space = KeySpace(format!("{}:{namespace}:", self.0.settings.prefix));
        Arc::new(Records {
            shared: Arc::clone(&self.0),
            index: Index::new(space.key("names", "")),
            servers: space.key("servers", ""),
            space,
            swept: Mutex::default(),
            unreadable: Unreadable::default(),
            is_closed: AtomicBool::new(false),
        })
    }

    /// The locks of a namespace. Must be called within a tokio runtime.
    pub fn namespace(&self, namespace: &Namespace) -> Arc<dyn Backend> {
        let server = self.0.next_server.fetch_add(1, Ordering::Relaxed) & (u64::MAX >> 1);
        let settings = EngineSettings {
            kind: "redis",
            guarantee: Guarantee::Ap,
            server: ServerId(NonZeroU64::new(server).unwrap_or(NonZeroU64::MIN)),
        };
        Engine::open(self.records(namespace), settings)
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("prefix", &self.0.settings.prefix)
            .finish()
    }
}

/// The keys and channels of one namespace, by what they begin with.
#[derive(Debug)]
struct KeySpace(String);

impl KeySpace {
    fn key(&self, kind: &str, name: &str) -> Vec<u8> {
        [self.0.as_bytes(), kind.as_bytes(), name.as_bytes()].concat()
    }

    fn lock(&self, lock: &LockName) -> Vec<u8> {
        self.key("l:", &lock.encoded())
    }

    /// The channel of a server.
    fn channel(&self, server: ServerId) -> String {
        format!("{}w:{:016x}", self.0, server.0)
    }
}

/// One namespace's records.
struct Records {
    shared: Arc<Shared>,
    space: KeySpace,
    index: Index,
    /// The key of the servers' counters.
    servers: Vec<u8>,
    /// After which name idle locks are looked for.
    swept: Mutex<Option<Vec<u8>>>,
    unreadable: Unreadable,
    is_closed: AtomicBool,
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records").field("space", &self.space).finish()
    }
}

impl Records {
    fn topology(&self) -> Result<&Topology, BackendError> {
        match self.is_closed.load(Ordering::Acquire) {
            true => Err(not_sent("the namespace is closed")),
            false => Ok(&self.shared.topology),
        }
    }

    async fn call(&self, script: &'static Script, key: &[u8], args: &[Vec<u8>]) -> Result<Value, BackendError> {
        let answer = self.topology()?.call(script, key, args, StepRequirements::Nothing);
        Ok(answer.await?.value)
    }

    async fn find(&self, lock: &LockName, known: Option<Version>, with_body: bool) -> Result<Found, BackendError> {
        let args = wire::read(known, with_body);
        wire::found(self.call(&scripts::READ, &self.space.lock(lock), &args).await?)
    }

    /// The locks with these names. Leaves out those that are no names.
    fn locks(&self, names: &[Vec<u8>]) -> Vec<LockName> {
        let locks = names.iter().filter_map(|name| {
            let name = lock_name(name);
            name.map_err(|(text, problem)| self.unreadable.note(&text, &problem))
                .ok()
        });
        locks.collect()
    }

    /// The roots of these locks; absent for those that have none. Leaves out those that cannot be read.
    async fn roots(
        &self,
        locks: Vec<LockName>,
        with_body: bool,
    ) -> Result<Vec<(LockName, Option<(Root, Stamp)>)>, BackendError> {
        let reads = locks.into_iter().map(|lock| async move {
            match self.find(&lock, None, with_body).await {
                Err(error) if is_of_record(&error) => {
                    self.unreadable.note(lock.as_str(), &error);
                    Ok(None)
                }
                Err(error) => Err(error),
                Ok(found) => Ok(Some((lock, root_of(found)))),
            }
        });
        let roots: Result<Vec<_>, _> = join_all(reads).await.into_iter().collect();
        Ok(roots?.into_iter().flatten().collect())
    }

    /// Removes the names of locks without a root from the index, and adds those again that were used in the meantime.
    async fn forget(&self, locks: &[&LockName]) -> Result<(), BackendError> {
        if locks.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = locks.iter().map(|lock| lock.as_str()).collect();
        self.index.remove(self.topology()?, &names).await?;
        let locks = locks.iter().copied().cloned().collect();
        for (lock, root) in self.roots(locks, false).await? {
            if root.is_some() {
                self.index.add(self.topology()?, &lock).await?;
            }
        }
        Ok(())
    }
}

fn root_of(found: Found) -> Option<(Root, Stamp)> {
    match found.root {
        FoundRoot::Root(root) => Some((root, found.now)),
        FoundRoot::Absent | FoundRoot::Known => None,
    }
}

#[async_trait]
impl RecordStore for Records {
    async fn commit(&self, commit: Commit) -> Result<Committed, BackendError> {
        let topology = self.topology()?;
        let (script, needs) = match (commit.grants, commit.extends) {
            (true, _) => (&scripts::GRANT, StepRequirements::Grant),
            (false, true) => (&scripts::COMMIT, StepRequirements::Replicas),
            (false, false) => (&scripts::COMMIT, StepRequirements::Nothing),
        };
        let (key, args) = (self.space.lock(&commit.lock), wire::commit(&self.space, &commit));
        let committed = match topology.call(script, &key, &args, needs).await {
            Ok(answer) => wire::committed(answer),
            Err(error) => Err(error),
        };
        // The name follows the root: were it first, a sweep could take it away in between.
        if !matches!(committed, Ok(Committed::Refused(_)) | Err(BackendError::NotSent { .. })) {
            let name = self.index.record_use(topology, &commit.lock);
            let _ = timeout(INDEX_TIMEOUT, name).await;
        }
        committed
    }

    async fn read(&self, lock: &LockName, known: Option<Version>) -> Result<Found, BackendError> {
        self.find(lock, known, true).await
    }

    async fn parts(&self, lock: &LockName, parts: Range<u64>) -> Result<Vec<(u64, Vec<u8>)>, BackendError> {
        let key = self.space.lock(lock);
        let mut found = Vec::new();
        for first in parts.clone().step_by(PARTS as usize) {
            let numbers = first..parts.end.min(first.saturating_add(PARTS));
            let args: Vec<_> = numbers.clone().map(wire::part).collect();
            let bodies = self.call(&scripts::PARTS, &key, &args).await?;
            let bodies: Vec<Option<Vec<u8>>> = from_redis_value(bodies).map_err(broken)?;
            let existing = numbers.zip(bodies).filter_map(|(number, body)| Some((number, body?)));
            found.extend(existing);
        }
        Ok(found)
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(LockName, Root, Stamp)>, BackendError> {
        let mut after = after.map(|after| after.as_bytes().to_vec());
        let (mut listed, size) = (Vec::new(), limit.min(PAGE));
        loop {
            let names = self
                .index
                .names(self.topology()?, prefix, after.as_deref(), size)
                .await?;
            for (lock, root) in self.roots(self.locks(&names), true).await? {
                listed.extend(root.map(|(root, now)| (lock, root, now)));
            }
            if names.len() < size || listed.len() >= limit {
                listed.truncate(limit);
                return Ok(listed);
            }
            after = names.into_iter().last();
        }
    }

    /// Goes on behind the locks that it has looked at when it was called before.
    async fn idle(
        &self,
        unused_for: Duration,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(LockName, Root)>, BackendError> {
        let unused_for = u64::try_from(unused_for.as_micros()).unwrap_or(u64::MAX);
        let after = after.map(|after| after.as_bytes().to_vec());
        let mut after = after.or_else(|| self.swept.lock().take());
        let (mut idle, mut looked, size) = (Vec::new(), 0, limit.min(PAGE));
        while looked < SWEPT {
            let names = self.index.names(self.topology()?, "", after.as_deref(), size).await?;
            let roots = self.roots(self.locks(&names), false).await?;
            let gone = roots.iter().filter(|(_, root)| root.is_none());
            self.forget(&gone.map(|(lock, _)| lock).collect::<Vec<_>>()).await?;
            let is_idle = |(root, now): &(Root, Stamp)| now.time.0.saturating_sub(root.stamp.time.0) > unused_for;
            let found = roots
                .into_iter()
                .filter_map(|(lock, root)| root.filter(is_idle).map(|_| lock));
            let found = self.roots(found.collect(), true).await?;
            let found = found
                .into_iter()
                .filter_map(|(lock, root)| Some((lock, root.filter(is_idle)?.0)));
            idle.extend(found);
            if names.len() < size || idle.len() >= limit {
                idle.truncate(limit);
                return Ok(idle);
            }
            looked += names.len();
            after = names.into_iter().last();
        }
        *self.swept.lock() = after;
        Ok(idle)
    }

    async fn remove(&self, roots: &[(LockName, Version)], floor: u64) -> Result<(), BackendError> {
        let removals = roots.iter().map(|(lock, version)| async move {
            let (key, args) = (self.space.lock(lock), wire::remove(*version, floor));
            let removed: bool = from_redis_value(self.call(&scripts::REMOVE, &key, &args).await?).map_err(broken)?;
            Ok(removed.then_some(lock))
        });
        let removed: Result<Vec<_>, BackendError> = join_all(removals).await.into_iter().collect();
        let removed: Vec<_> = removed?.into_iter().flatten().collect();
        self.forget(&removed).await
    }

    async fn beat(&self, server: ServerId) -> Result<Vec<(ServerId, u64)>, BackendError> {
        let args = [server.0.get().to_be_bytes().to_vec()];
        wire::counters(self.call(&scripts::BEAT, &self.servers, &args).await?)
    }

    async fn leave(&self, server: ServerId) -> Result<(), BackendError> {
        let mut remove = redis::cmd("HDEL");
        remove.arg(&self.servers).arg(&server.0.get().to_be_bytes());
        self.topology()?.command(&self.servers, &remove).await.map(drop)
    }

    fn messages(&self, server: ServerId) -> BoxStream<'static, Heard> {
        let (subscriptions, channel) = (self.shared.subscriptions.clone(), self.space.channel(server));
        let next = |mut events: Events| async move { Some((events.recv().await?, events)) };
        stream::once(async move { subscriptions.listen(channel).await.ok() })
            .filter_map(|events| async { events })
            .flat_map(move |events| stream::unfold(events, next))
            .map(|event| match event {
                SubscriptionEvent::Message(message) => wire::heard(&message),
                SubscriptionEvent::Gap => Heard::Gap,
            })
            .boxed()
    }

    fn poll(&self) -> Duration {
        POLL
    }

    fn confirms(&self) -> bool {
        self.shared.settings.replicas.is_some()
    }

    async fn admit(&self) -> Result<(), BackendError> {
        self.topology()?.admit(None).await
    }

    async fn admit_node(&self, node: &str) -> Result<(), BackendError> {
        self.topology()?.admit(Some(node)).await
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.shared.topology.health()
    }

    async fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }
}
