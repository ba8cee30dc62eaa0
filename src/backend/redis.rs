//! The Redis backend: locks in a standalone Redis, behind Sentinel, or in a Redis Cluster. AP.
//!
//! Each lock is one hash, and each verb is one Lua script ([`scripts`]; `prelude.lua` documents the
//! layout of the hash). The leases run on the clock of the Redis server. The scripts publish
//! messages that notify waiters, and one heartbeat per lock keeps this replica's waiters alive. If
//! Redis may have lost grants, nothing is granted for the longest TTL
//! ([`crate::backend::redis_server::marker`]).
//!
//! - [`ask`], [`answer`]: the arguments of the scripts, and their replies.
//! - [`waiting`]: this replica's waiting claims and their heartbeat.
//! - [`notifications`], [`watching`], [`forced`]: published messages for waiters, for watchers, and of forced releases.
//! - [`index`]: the names of the locks in use.

pub mod answer;
pub mod ask;
pub mod config;
pub mod forced;
pub mod index;
mod metadata;
pub mod notifications;
pub mod scripts;
pub mod waiting;
pub mod watching;

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use tokio::sync::watch;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::backend::notifications::NotificationSender;
use crate::backend::redis_server::credentials::Access;
use crate::backend::redis_server::failure::{broken, not_sent, unavailable};
use crate::backend::redis_server::script::{Answer, Script, StepRequirements};
use crate::backend::redis_server::settings::Settings;
use crate::backend::redis_server::subscriptions::Subscriptions;
use crate::backend::redis_server::topology::Topology;
use crate::backend::{
    AcquireOutcome, Backend, BackendError, Capabilities, Forced, Guarantee, Health, InspectLimit, LockPage, NewClaim,
    Notification, PageRequest, ReleaseOutcome, ReleaseTarget, RenewOutcome, UpdateOutcome, WatchEvent,
};
use crate::claim::Queue;
use crate::name::{LeaseKey, LockName, Metadata, Namespace, Ttl};
use ask::KeySpace;
use index::Index;
use waiting::Waiting;

/// How often a script is called again because it only purged; enough to purge a million expired
/// holders.
const MAX_PURGE_CALLS: usize = 130_000;
/// How often a queue is read from its start because it changed between two parts.
const INSPECT_ATTEMPTS: usize = 3;
/// How long a call waits, after its own step, until the lock's name is in the index.
const INDEX_TIMEOUT: Duration = Duration::from_millis(100);

/// A Redis store: the servers, and one set of connections that all its namespaces share.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Shared>,
}

struct Shared {
    settings: Arc<Settings>,
    topology: Arc<Topology>,
    subscriptions: Subscriptions,
}

impl Store {
    /// Opens a store and starts to connect to the servers in the background. The health of a
    /// namespace reports when they are reachable.
    ///
    /// Must be called within a tokio runtime.
    pub fn open(settings: Settings) -> Self {
        // Only the first installation in a process succeeds. Every part installs the same provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let settings = Arc::new(settings);
        let topology = Arc::new(Topology::start(&settings, scripts::ALL));
        let subscriptions = Subscriptions::start(Arc::clone(&settings), &topology);
        let inner = Arc::new(Shared {
            settings,
            topology,
            subscriptions,
        });
        Self { inner }
    }

    /// Replaces the credentials. New connections use them; open connections stay.
    pub fn set_credentials(&self, access: Access) {
        self.inner.settings.credentials.replace(access);
    }

    /// Opens one namespace of this store for one replica.
    pub fn namespace(&self, namespace: &Namespace) -> Arc<Redis> {
        let space = Arc::new(KeySpace::new(&self.inner.settings.prefix, namespace));
        let core = Arc::new(Core {
            shared: Arc::clone(&self.inner),
            waiting: Waiting::default(),
            index: Index::new(&space),
            space,
            notifications: NotificationSender::default(),
        });
        let tasks = [
            tokio::spawn(notifications::forward(Arc::downgrade(&core))),
            tokio::spawn(waiting::send_heartbeats(Arc::downgrade(&core))),
            tokio::spawn(index::tidy(Arc::downgrade(&core))),
        ];
        Arc::new(Redis {
            core,
            tasks: tasks.map(AbortOnDropHandle::new),
            closed: AtomicBool::new(false),
        })
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("prefix", &self.inner.settings.prefix)
            .finish()
    }
}

/// The state of one namespace, shared by its verbs and its background tasks.
pub struct Core {
    shared: Arc<Shared>,
    space: Arc<KeySpace>,
    waiting: Waiting,
    notifications: NotificationSender,
    index: Index,
}

impl Core {
    async fn call(
        &self,
        script: &'static Script,
        lock: &LockName,
        args: &[Vec<u8>],
        needs: StepRequirements,
    ) -> Result<Answer, BackendError> {
        let key = self.space.key(lock);
        for _ in 0..MAX_PURGE_CALLS {
            let answer = self.shared.topology.call(script, &key, args, needs).await?;
            if !answer::is_word(&answer.value, "again") {
                return Ok(answer);
            }
        }
        Err(not_sent("the lock is being purged"))
    }

    fn may_grant(&self, lock: &LockName) -> bool {
        let key = self.space.key(lock);
        self.shared.topology.may_grant(&key).is_ok()
    }

    /// Runs a step on a lock and concurrently adds the lock's name to the index. In a Cluster the
    /// index may be on another server, so the call waits for it at most [`INDEX_TIMEOUT`].
    async fn with_index_entry<T>(&self, lock: &LockName, step: impl Future<Output = T>) -> T {
        let (mut step, mut naming) = (pin!(step), pin!(self.index.record_use(self, lock)));
        let both = async {
            tokio::select! {
                answer = &mut step => {
                    let _ = timeout(INDEX_TIMEOUT, naming).await;
                    answer
                }
                () = &mut naming => step.await,
            }
        };
        // Without `unconstrained`, tokio's cooperative budget may delay the step, and later calls
        // would overtake it.
        unconstrained(both).await
    }

    /// Reads the queue of a lock. A long queue is read in parts. If the queue changes during each of
    /// the [`INSPECT_ATTEMPTS`], the first part and the counts are returned.
    async fn inspect(
        &self,
        lock: &LockName,
        limit: InspectLimit,
        watching: Duration,
    ) -> Result<answer::InspectAnswer, BackendError> {
        let mut first_part = None;
        for _ in 0..INSPECT_ATTEMPTS {
            let mut answer = self.inspect_part(lock, limit, watching, None).await?;
            while let Some(known) = answer.as_mut() {
                let missing = known.missing(limit);
                if missing == (InspectLimit { holders: 0, waiters: 0 }) {
                    return answer.ok_or_else(|| broken("no queue"));
                }
                first_part.get_or_insert_with(|| known.clone());
                match self.inspect_part(lock, missing, watching, Some(known)).await? {
                    Some(more) if more.is_empty() => return Err(broken("a queue has fewer claims than it counts")),
                    Some(more) => known.extend(more),
                    None => answer = None,
                }
            }
        }
        first_part.ok_or_else(|| broken("no queue"))
    }

    /// Reads the part of the queue after the claims in `known`; `None` if the queue has changed since
    /// `known` was read.
    async fn inspect_part(
        &self,
        lock: &LockName,
        limit: InspectLimit,
        watching: Duration,
        known: Option<&answer::InspectAnswer>,
    ) -> Result<Option<answer::InspectAnswer>, BackendError> {
        let args = self.space.inspect(lock, limit, watching, known);
        let answer = self
            .call(&scripts::INSPECT, lock, &args, StepRequirements::Nothing)
            .await?;
        if answer::is_word(&answer.value, "moved") {
            return Ok(None);
        }
        answer::inspect(answer.value).map(Some)
    }
}

/// One namespace in Redis.
pub struct Redis {
    core: Arc<Core>,
    tasks: [AbortOnDropHandle<()>; 3],
    closed: AtomicBool,
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("space", &self.core.space).finish()
    }
}

impl Redis {
    fn open(&self) -> Result<&Core, BackendError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(not_sent("the namespace is closed"));
        }
        Ok(&self.core)
    }

    async fn step(
        &self,
        script: &'static Script,
        lock: &LockName,
        claim: &NewClaim,
        args: Vec<Vec<u8>>,
    ) -> Result<AcquireOutcome, BackendError> {
        let core = self.open()?;
        let sent = Instant::now();
        let answer = core.call(script, lock, &args, StepRequirements::Grant).await?;
        let (outcome, state) = answer::acquired(answer.value, claim, sent)?;
        // A grant that too few replicas confirmed is not returned, because a failover may lose it.
        // The caller undoes it or retries.
        if let (AcquireOutcome::Held(_), Some(reason)) = (&outcome, answer.unconfirmed) {
            return Err(unavailable(reason));
        }
        match (&outcome, state) {
            (AcquireOutcome::Waiting(position), Some(state)) => core.waiting.add(lock, claim, *position, state),
            _ => core.waiting.remove(lock, &claim.id, claim.call),
        }
        Ok(outcome)
    }
}

#[async_trait]
impl Backend for Redis {
    async fn acquire(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let core = self.open()?;
        let args = core.space.acquire(lock, claim);
        let _acquiring = core.waiting.start_acquire(claim.id);
        let step = self.step(&scripts::ACQUIRE, lock, claim, args);
        core.with_index_entry(lock, step).await
    }

    /// A step is sent when it begins, and one server executes what it is sent in this order. Steps that replicas confirm
    /// wait for a batch.
    fn orders_acquires(&self, _lock: &LockName) -> bool {
        let shared = &self.core.shared;
        shared.settings.replicas.is_none() && matches!(*shared.topology, Topology::Single(_))
    }

    async fn promote(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let args = self.core.space.promote(lock, claim);
        self.step(&scripts::PROMOTE, lock, claim, args).await
    }

    async fn release(
        &self,
        lock: &LockName,
        who: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, BackendError> {
        let core = self.open()?;
        if let ReleaseTarget::Call(id, call) = who {
            core.waiting.remove(lock, id, call);
        }
        // A store that may not grant can still release. The next waiter then has to promote itself.
        let next = next.filter(|_| core.may_grant(lock));
        let sent = Instant::now();
        let args = core.space.release(lock, who, next);
        let needs = next.map_or(StepRequirements::Nothing, |_| StepRequirements::Replicas);
        let answer = core.call(&scripts::RELEASE, lock, &args, needs).await?;
        let (mut outcome, is_unknown) = answer::released(answer.value, next, sent)?;
        if let Some(next) = next.filter(|_| is_unknown) {
            core.notifications.send(Notification::Next(lock.clone(), next.id));
        }
        if let (Some(next), Some(_), Some(_)) = (next, &outcome.next, answer.unconfirmed) {
            // The notified waiter promotes itself: it gets the same grant, and the replicas are asked to
            // confirm it again.
            outcome.next = None;
            core.notifications.send(Notification::Next(lock.clone(), next.id));
        }
        if let (Some(next), Some(_)) = (next, &outcome.next) {
            core.waiting.remove(lock, &next.id, next.call);
        }
        Ok(outcome)
    }

    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError> {
        let core = self.open()?;
        let lock = &lease.lock.name;
        let args = core.space.renew(lease, ttl);
        let call = core.call(&scripts::RENEW, lock, &args, StepRequirements::Grant);
        let answer = core.with_index_entry(lock, call).await?;
        let outcome = answer::renewed(answer.value, lease)?;
        match (outcome, answer.unconfirmed) {
            // The server has renewed the lease, but too few replicas have confirmed it.
            (RenewOutcome::Renewed(_), Some(reason)) => Err(unavailable(reason)),
            (outcome, _) => Ok(outcome),
        }
    }

    async fn update_metadata(&self, lease: &LeaseKey, metadata: &Metadata) -> Result<UpdateOutcome, BackendError> {
        self.open()?.update_metadata(lease, metadata).await
    }

    async fn inspect(&self, lock: &LockName, limit: InspectLimit) -> Result<Queue, BackendError> {
        Ok(self.open()?.inspect(lock, limit, Duration::ZERO).await?.queue)
    }

    async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, BackendError> {
        let core = self.open()?;
        core.index.list(core, prefix, &page).await
    }

    fn notifications(&self) -> BoxStream<'static, Notification> {
        self.core.notifications.open()
    }

    fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<WatchEvent, BackendError>> {
        watching::watch(Arc::clone(&self.core), lock.clone())
    }

    async fn admit(&self, node: Option<&str>) -> Result<(), BackendError> {
        self.open()?.shared.topology.admit(node).await
    }

    fn forced(&self) -> Option<BoxStream<'static, Forced>> {
        let subscriptions = self.core.shared.subscriptions.clone();
        Some(forced::forced(subscriptions, self.core.space.forced()))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kind: "redis",
            guarantee: Guarantee::Ap,
            sharing: true,
            reentry: true,
            remembers_requests: true,
            updates_metadata: true,
            global_order: true,
            recheck: None,
        }
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.core.shared.topology.health()
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.core.notifications.close();
        self.tasks.iter().for_each(AbortOnDropHandle::abort);
    }
}
