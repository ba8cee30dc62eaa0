//! A namespace that was not served from its store before, by what this server knows: the store is recorded before its first
//! answer is given, and a namespace that was served from another one begins with a quarantine.
//!
//! The quarantine lasts for the longest TTL of both stores, from the start of this server, by its own clock. A server that
//! is restarted meanwhile begins anew, because the record still has the store before: it is replaced only when something
//! was granted in the new one. So a server that goes back to its old store meanwhile needs none.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::stream::BoxStream;
use parking_lot::Mutex;
use tokio::sync::{Notify, OnceCell, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::last_served::{Before, LastServed, NamespaceStore};
use crate::backend::driver::StoreIdentity;
use crate::backend::{
    AcquireOutcome, Backend, BackendError, Capabilities, Forced, Health, InspectLimit, LockPage, NewClaim,
    Notification, PageRequest, ReleaseOutcome, ReleaseTarget, RenewOutcome, StreamNumber, UpdateOutcome, WatchEvent,
};
use crate::claim::{Holder, Queue};
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, LockName, Metadata, Ttl};
use crate::supervisor::supervise;

/// The namespace in this store, in which no lease is longer than `ttl_max`: in quarantine if it was served from another
/// one, and recorded before its first answer. Must be called within a tokio runtime.
pub(super) fn guard(
    last_served: &LastServed,
    store: NamespaceStore,
    ttl_max: Duration,
    inner: Arc<dyn Backend>,
) -> Arc<dyn Backend> {
    let before = last_served.open(&store, ttl_max);
    if before == Before::Recorded {
        return inner;
    }
    let mut recorded = Recorded {
        inner,
        store,
        last_served: last_served.clone(),
        is_recorded: OnceCell::new(),
        quarantine: None,
    };
    if let Before::Other { store, longest_ttl } = before {
        recorded.begin_quarantine(&store, longest_ttl);
    }
    Arc::new(recorded)
}

/// See the module.
#[derive(Debug)]
struct Recorded {
    inner: Arc<dyn Backend>,
    store: NamespaceStore,
    last_served: LastServed,
    is_recorded: OnceCell<()>,
    quarantine: Option<(Arc<Quarantine>, AbortHandle)>,
}

/// The quarantine of a namespace that has moved.
#[derive(Debug)]
struct Quarantine {
    reason: String,
    /// Absent once it has ended.
    until: Mutex<Option<Instant>>,
    ended: Notify,
    health: watch::Sender<Health>,
}

impl Quarantine {
    fn left(&self) -> Option<Duration> {
        let left = (*self.until.lock())?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// The health of a store with this one of its own.
    fn over(&self, own: &Health) -> Health {
        let until = (*self.until.lock()).filter(|until| *until > Instant::now());
        match (own, until) {
            (Health::Serving, Some(until)) => Health::Quarantined {
                until,
                reason: self.reason.clone(),
            },
            (Health::Quarantined { until: own, .. }, Some(until)) if *own < until => Health::Quarantined {
                until,
                reason: self.reason.clone(),
            },
            _ => own.clone(),
        }
    }

    /// Reports the health until the store is closed.
    async fn follow(&self, own: &mut watch::Receiver<Health>) {
        loop {
            let health = self.over(&own.borrow_and_update());
            Health::report(&self.health, health);
            let until = *self.until.lock();
            let passed = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = own.changed() => if changed.is_err() { return },
                () = passed => *self.until.lock() = None,
                () = self.ended.notified() => {}
            }
        }
    }
}

impl Recorded {
    /// Begins the quarantine of a namespace that was served from the store `before`.
    fn begin_quarantine(&mut self, before: &StoreIdentity, longest_ttl: Duration) {
        let quarantine = Arc::new(Quarantine {
            reason: format!("it was served from another store before ({before}), where leases may be left"),
            until: Mutex::new(Some(Instant::now() + longest_ttl)),
            ended: Notify::new(),
            health: watch::channel(Health::unavailable("the store has not answered yet")).0,
        });
        let health = self.inner.health();
        Health::report(&quarantine.health, quarantine.over(&health.borrow()));
        let following = (Arc::clone(&quarantine), health);
        let follower = supervise("quarantine", following, |(quarantine, health)| {
            quarantine.follow(health).boxed()
        });
        let follower = follower.abort_handle();
        self.quarantine = Some((quarantine, follower));
    }

    fn may_grant(&self) -> Result<(), BackendError> {
        let quarantine = self.quarantine.as_ref().map(|(quarantine, _)| quarantine);
        match quarantine.and_then(|one| Some((one.left()?, one.reason.clone()))) {
            Some((left, reason)) => Err(BackendError::Quarantined { left, reason }),
            None => Ok(()),
        }
    }

    /// Records the store before the caller learns what it has granted, or why a lease lives on.
    async fn record<T>(&self, outcome: T) -> T {
        let write = || async {
            let Err(error) = self.last_served.record(&self.store).await else {
                return;
            };
            let namespace = &self.store.namespace;
            let problem = "the store of the namespace cannot be recorded in the data directory: after a restart of this \
                           server, a change of it will not be noticed";
            // A server without a directory of its own is the rule on Kubernetes.
            match &self.quarantine {
                None => tracing::info!(%namespace, %error, "{problem}"),
                Some(_) => tracing::warn!(%namespace, %error, "{problem}"),
            }
        };
        self.is_recorded.get_or_init(write).await;
        outcome
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if let Some((_, follower)) = &self.quarantine {
            follower.abort();
        }
    }
}

#[async_trait]
impl Backend for Recorded {
    async fn acquire(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        self.may_grant()?;
        let outcome = self.inner.acquire(lock, claim).await?;
        Ok(self.record(outcome).await)
    }

    fn orders_acquires(&self, lock: &LockName) -> bool {
        self.inner.orders_acquires(lock)
    }

    async fn promote(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        self.may_grant()?;
        let outcome = self.inner.promote(lock, claim).await?;
        Ok(self.record(outcome).await)
    }

    async fn release(
        &self,
        lock: &LockName,
        target: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, BackendError> {
        let next = next.filter(|_| self.may_grant().is_ok());
        self.inner.release(lock, target, next).await
    }

    async fn owns(&self, lock: &LockName, claim: &ClaimId, call: CallId) -> Result<bool, BackendError> {
        self.inner.owns(lock, claim, call).await
    }

    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError> {
        let outcome = self.inner.renew(lease, ttl).await?;
        Ok(match outcome {
            // In the quarantine it grants nothing new, and a record of it would end the quarantine at the next start.
            RenewOutcome::Renewed(_) if self.may_grant().is_ok() => self.record(outcome).await,
            RenewOutcome::Renewed(_) | RenewOutcome::Gone(_) => outcome,
        })
    }

    async fn update_metadata(
        &self,
        lease: &LeaseKey,
        metadata: &Metadata,
        stream: Option<StreamNumber>,
    ) -> Result<UpdateOutcome, BackendError> {
        self.inner.update_metadata(lease, metadata, stream).await
    }

    async fn inspect(&self, lock: &LockName, limit: InspectLimit) -> Result<Queue, BackendError> {
        self.inner.inspect(lock, limit).await
    }

    async fn holder(&self, lock: &LockName, token: FencingToken) -> Result<Option<Holder>, BackendError> {
        self.inner.holder(lock, token).await
    }

    async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, BackendError> {
        self.inner.list(prefix, page).await
    }

    fn notifications(&self) -> BoxStream<'static, Notification> {
        self.inner.notifications()
    }

    fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<WatchEvent, BackendError>> {
        self.inner.watch(lock)
    }

    fn forced(&self) -> Option<BoxStream<'static, Forced>> {
        self.inner.forced()
    }

    async fn admit(&self, node: Option<&str>) -> Result<(), BackendError> {
        let (Some((quarantine, _)), None) = (&self.quarantine, node) else {
            return self.inner.admit(node).await;
        };
        if quarantine.until.lock().take().is_none() {
            return self.inner.admit(node).await;
        }
        self.record(()).await;
        quarantine.ended.notify_one();
        match self.inner.admit(node).await {
            // It has no quarantine of its own.
            Err(BackendError::Unsupported { .. }) => Ok(()),
            admitted => admitted,
        }
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn health(&self) -> watch::Receiver<Health> {
        match &self.quarantine {
            Some((quarantine, _)) => quarantine.health.subscribe(),
            None => self.inner.health(),
        }
    }

    fn warning(&self) -> Option<String> {
        self.inner.warning()
    }

    fn nodes(&self) -> Vec<(String, Health)> {
        self.inner.nodes()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
