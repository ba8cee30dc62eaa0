//! A backend around the namespace's backend: it records the leases in the ledger, and bounds and measures the operations.
//! The metrics are a trait, because their series are the program's.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::backend::failure::unavailable;
use crate::backend::{
    AcquireOutcome, Backend, BackendError, Capabilities, Forced, Grant, Health, InspectLimit, LockPage, NewClaim,
    Notification, PageRequest, ReleaseOutcome, ReleaseTarget, Released, RenewOutcome, StreamNumber, UpdateOutcome,
    WaitPolicy, WatchEvent,
};
use crate::claim::{Cause, Holder, Queue};
use crate::ledger::{Ledger, forced};
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, LockName, Metadata, Ttl};
use crate::traces::Traced;

/// How long an operation may take that does not wait (G57). A store bounds each of its requests, and not how many follow each
/// other.
const ANSWERED_WITHIN: Duration = Duration::from_millis(9_500);

/// An operation of a backend.
#[derive(Debug, Clone, Copy)]
pub enum Operation {
    /// [`Backend::acquire`].
    Acquire,
    /// [`Backend::promote`].
    Promote,
    /// [`Backend::release`].
    Release,
    /// [`Backend::renew`].
    Renew,
    /// [`Backend::update_metadata`].
    UpdateMetadata,
    /// [`Backend::inspect`].
    Inspect,
    /// [`Backend::holder`].
    Holder,
    /// [`Backend::list`].
    List,
    /// [`Backend::admit`].
    Admit,
}

/// What counts and times the operations of one namespace's backend.
pub trait OperationMetrics: Send + Sync {
    /// The span of an operation that begins now, if it is sampled.
    fn traced(&self, operation: Operation) -> Option<Traced>;

    /// An operation has taken so long, and may have failed.
    fn ended(&self, operation: Operation, took: Duration, error: Option<&BackendError>);

    /// An operation that was sent then has granted a claim. `is_known`: the ledger had its lease already.
    fn granted(&self, lock: &LockName, claim: &NewClaim, grant: &Grant, sent: Instant, is_known: bool);

    /// A release that was sent then has ended, or found, this.
    fn released(&self, lock: &LockName, target: ReleaseTarget<'_>, released: Released, sent: Instant);

    /// A lease that a call wanted to use had ended.
    fn lost(&self, cause: Option<Cause>);
}

/// An operation that is given up if it is not answered in time. It may take effect all the same.
async fn answered<T>(operation: impl Future<Output = Result<T, BackendError>>) -> Result<T, BackendError> {
    timeout(ANSWERED_WITHIN, operation).await.unwrap_or_else(|_| {
        Err(unavailable(format_args!(
            "the store did not answer within {ANSWERED_WITHIN:?}"
        )))
    })
}

/// Wraps a backend: records in the ledger each lease that it grants, renews or ends. With metrics, it times the
/// operations, counts their errors and observes the grants.
pub struct Measured {
    inner: Arc<dyn Backend>,
    ledger: Arc<Ledger>,
    metrics: Option<Arc<dyn OperationMetrics>>,
}

impl fmt::Debug for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Measured {
    /// Wraps `inner`, and records its leases in `ledger`. Must be called within a tokio runtime.
    pub fn new(inner: Arc<dyn Backend>, ledger: Arc<Ledger>, metrics: Option<Arc<dyn OperationMetrics>>) -> Self {
        forced::record(&inner, &ledger);
        Self { inner, ledger, metrics }
    }

    /// Runs an operation. With metrics, traces it, measures its duration and counts its error. Also returns when the
    /// operation was sent.
    async fn step<T: Send>(
        &self,
        operation: Operation,
        step: impl Future<Output = Result<T, BackendError>> + Send,
    ) -> (Instant, Result<T, BackendError>) {
        let sent = Instant::now();
        let Some(metrics) = &self.metrics else {
            return (sent, step.await);
        };
        let result = Traced::around(metrics.traced(operation), step).await;
        metrics.ended(operation, sent.elapsed(), result.as_ref().err());
        (sent, result)
    }

    /// Records a grant, whether new or found.
    fn record_grant(&self, lock: &LockName, claim: &NewClaim, grant: &Grant, sent: Instant) {
        let is_known = self.ledger.granted(lock, grant, claim.call, sent + grant.ttl);
        if let Some(metrics) = &self.metrics {
            metrics.granted(lock, claim, grant, sent, is_known);
        }
    }

    fn record_release(&self, lock: &LockName, target: ReleaseTarget<'_>, outcome: &ReleaseOutcome, sent: Instant) {
        let released = outcome.released;
        if let Some(secret) = outcome.cancelled {
            self.ledger.cancelled(secret);
        }
        use ReleaseTarget::{Hold, Keeping};
        match (target, released) {
            (Keeping(lease, time), Released::Ended(cause)) => self.ledger.kept(lease, cause, sent + time),
            (Hold(lease) | Keeping(lease, _), Released::Ended(cause) | Released::EndedBefore(cause)) => {
                self.ledger.ended(lease, Some(cause));
            }
            (Hold(lease) | Keeping(lease, _), Released::Nothing) => self.ledger.ended(lease, None),
            (ReleaseTarget::Call(_, call), Released::Ended(_)) => self.ledger.undone(call),
            (ReleaseTarget::Forced(token), Released::Ended(_)) => self.ledger.forced(lock, token),
            _ => {}
        }
        if let Some(metrics) = &self.metrics {
            metrics.released(lock, target, released, sent);
        }
    }

    fn record_renewal(&self, lease: &LeaseKey, outcome: &RenewOutcome, sent: Instant) {
        match outcome {
            RenewOutcome::Renewed(grant) => self.ledger.renewed(lease, sent + grant.ttl),
            RenewOutcome::Gone(cause) => self.record_lost(lease, *cause),
        }
    }

    fn record_lost(&self, lease: &LeaseKey, cause: Option<Cause>) {
        self.ledger.ended(lease, cause);
        if let Some(metrics) = &self.metrics {
            metrics.lost(cause);
        }
    }
}

#[async_trait]
impl Backend for Measured {
    async fn acquire(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let step = self.inner.acquire(lock, claim);
        let (sent, outcome) = match claim.wait_policy {
            WaitPolicy::NoWait => self.step(Operation::Acquire, answered(step)).await,
            // In a crowd it waits for its turn.
            WaitPolicy::Wait => self.step(Operation::Acquire, step).await,
        };
        if let Ok(AcquireOutcome::Held(grant)) = &outcome {
            self.record_grant(lock, claim, grant, sent);
        }
        outcome
    }

    fn orders_acquires(&self, lock: &LockName) -> bool {
        self.inner.orders_acquires(lock)
    }

    async fn promote(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let step = self.inner.promote(lock, claim);
        let (sent, outcome) = self.step(Operation::Promote, step).await;
        if let Ok(AcquireOutcome::Held(grant)) = &outcome {
            self.record_grant(lock, claim, grant, sent);
        }
        outcome
    }

    async fn release(
        &self,
        lock: &LockName,
        target: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, BackendError> {
        let _hand_over = next.map(|claim| self.ledger.hand_over(claim.call));
        let step = self.inner.release(lock, target, next);
        let (sent, result) = self.step(Operation::Release, answered(step)).await;
        if let Ok(outcome) = &result {
            self.record_release(lock, target, outcome, sent);
            if let (Some(claim), Some(grant)) = (next, &outcome.next) {
                self.record_grant(lock, claim, grant, sent);
            }
        }
        result
    }

    async fn owns(&self, lock: &LockName, claim: &ClaimId, call: CallId) -> Result<bool, BackendError> {
        self.inner.owns(lock, claim, call).await
    }

    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError> {
        let step = self.inner.renew(lease, ttl);
        let (sent, result) = self.step(Operation::Renew, answered(step)).await;
        if let Ok(outcome) = &result {
            self.record_renewal(lease, outcome, sent);
        }
        result
    }

    async fn update_metadata(
        &self,
        lease: &LeaseKey,
        metadata: &Metadata,
        stream: Option<StreamNumber>,
    ) -> Result<UpdateOutcome, BackendError> {
        let step = self.inner.update_metadata(lease, metadata, stream);
        let (_, result) = self.step(Operation::UpdateMetadata, answered(step)).await;
        if let Ok(UpdateOutcome::Gone(cause)) = &result {
            self.record_lost(lease, *cause);
        }
        result
    }

    async fn inspect(&self, lock: &LockName, most: InspectLimit) -> Result<Queue, BackendError> {
        let step = self.inner.inspect(lock, most);
        self.step(Operation::Inspect, answered(step)).await.1
    }

    async fn holder(&self, lock: &LockName, token: FencingToken) -> Result<Option<Holder>, BackendError> {
        let step = self.inner.holder(lock, token);
        self.step(Operation::Holder, answered(step)).await.1
    }

    async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, BackendError> {
        let step = self.inner.list(prefix, page);
        self.step(Operation::List, answered(step)).await.1
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
        self.step(Operation::Admit, self.inner.admit(node)).await.1
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.inner.health()
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
