//! A backend around the namespace's backend: it records the leases in the ledger, and measures and bounds the operations.
//!
//! It looks at every exclusive grant: a token that is not above the last one of its lock is an alert.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use parking_lot::Mutex;
use prometheus::{Histogram, IntCounter};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::NamespaceMetrics;
use super::last_tokens::{Granted, LastTokens};
use crate::backend::failure::unavailable;
use crate::backend::{
    AcquireOutcome, Backend, BackendError, Capabilities, Forced, Grant, Health, InspectLimit, LockPage, NewClaim,
    Notification, PageRequest, ReleaseOutcome, ReleaseTarget, Released, RenewOutcome, UpdateOutcome, WaitPolicy,
    WatchEvent,
};
use crate::claim::{Cause, Holder, Queue};
use crate::ledger::{Ledger, forced};
use crate::name::{FencingToken, LeaseKey, LockName, Metadata, Mode, Ttl};
use crate::telemetry::traces::Traced;

/// How long an operation may take that does not wait (G57). A store bounds each of its requests, and not how many follow each
/// other.
const ANSWERED_WITHIN: Duration = Duration::from_millis(9_500);

/// The `kind` label of errors.
const KINDS: [&str; 6] = [
    "unavailable",
    "not_sent",
    "no_quorum",
    "quarantined",
    "unsupported",
    "broken",
];
/// The `cause` label of ended leases.
const CAUSES: [&str; 5] = ["expired", "released", "forced", "taken_back", "unknown"];

/// An operation that is timed.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Acquire,
    Promote,
    Release,
    Renew,
    UpdateMetadata,
    Inspect,
    Holder,
    List,
    Admit,
}

/// The `operation` label, in the order of [`Operation`].
const OPERATIONS: [&str; 9] = [
    "acquire",
    "promote",
    "release",
    "renew",
    "update_metadata",
    "inspect",
    "holder",
    "list",
    "admit",
];

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
    series: Option<Series>,
}

/// The series of the operations.
struct Series {
    namespace: Arc<NamespaceMetrics>,
    seconds: [Histogram; OPERATIONS.len()],
    errors: [IntCounter; KINDS.len()],
    ended: [IntCounter; CAUSES.len()],
    lost: [IntCounter; CAUSES.len()],
    tokens: Mutex<LastTokens>,
}

impl fmt::Debug for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Series {
    fn of(namespace: Arc<NamespaceMetrics>) -> Self {
        let (all, kind) = (&*namespace.all.inner, namespace.capabilities.kind);
        let name = namespace.name.as_str();
        Self {
            seconds: OPERATIONS.map(|operation| all.stores.step_seconds.with_label_values(&[name, kind, operation])),
            errors: KINDS.map(|error| all.stores.step_errors.with_label_values(&[name, kind, error])),
            ended: CAUSES.map(|cause| all.leases.ended.with_label_values(&[name, cause])),
            lost: CAUSES.map(|cause| all.leases.lost.with_label_values(&[name, cause])),
            tokens: Mutex::default(),
            namespace,
        }
    }

    fn count_error(&self, error: &BackendError) {
        let kind = match error {
            BackendError::Unavailable { .. } => 0,
            BackendError::NotSent { .. } => 1,
            BackendError::NoQuorum { .. } => 2,
            BackendError::Quarantined { .. } => 3,
            BackendError::Unsupported { .. } => 4,
            BackendError::Broken { .. } => 5,
        };
        self.errors[kind].inc();
    }

    /// Counts a grant, unless its lease was known.
    fn count_grant(&self, lock: &LockName, claim: &NewClaim, grant: &Grant, sent: Instant, is_known: bool) {
        let now = Instant::now();
        let granted = Granted {
            lock,
            secret: grant.secret,
            token: grant.token,
            sent,
            arrived: claim.arrived,
            alone: claim.mode == Mode::Exclusive && !claim.reentrant,
            is_known,
        };
        let observed = self.tokens.lock().granted(&granted, now);
        if observed.regression {
            self.namespace.regressions.inc();
            let (namespace, token) = (&self.namespace.name, grant.token);
            tracing::error!(%namespace, ?lock, %token, "a fencing token did not increase");
        }
        if observed.new {
            self.namespace.granted.inc();
            self.namespace.wait_seconds.observe(grant.waited.as_secs_f64());
        }
        if let Some(released) = observed.released {
            let took = now.saturating_duration_since(released);
            self.namespace.hand_off_seconds.observe(took.as_secs_f64());
        }
    }

    fn count_release(&self, lock: &LockName, target: ReleaseTarget<'_>, released: Released, sent: Instant) {
        let is_hold = matches!(target, ReleaseTarget::Hold(_) | ReleaseTarget::Keeping(..));
        match released {
            // A claim that only waited had no lease.
            Released::Ended(Cause::Cancelled) => {}
            Released::Ended(cause) => self.ended[cause_index(Some(cause))].inc(),
            Released::EndedBefore(cause) if is_hold && cause != Cause::Released => {
                self.lost[cause_index(Some(cause))].inc();
            }
            Released::Nothing if is_hold => self.lost[cause_index(None)].inc(),
            Released::EndedBefore(_) | Released::Nothing | Released::Adopted => {}
        }
        if matches!(released, Released::Ended(_)) && matches!(target, ReleaseTarget::Hold(_) | ReleaseTarget::Forced(_))
        {
            self.tokens.lock().released(lock, sent);
        }
    }
}

fn cause_index(cause: Option<Cause>) -> usize {
    match cause {
        Some(Cause::Expired) => 0,
        Some(Cause::Released) => 1,
        Some(Cause::Forced) => 2,
        Some(Cause::Undone) => 3,
        Some(Cause::Cancelled) | None => 4,
    }
}

impl Measured {
    /// Wraps `inner`, and records its leases in `ledger`. Must be called within a tokio runtime.
    pub fn new(inner: Arc<dyn Backend>, ledger: Arc<Ledger>, metrics: Option<Arc<NamespaceMetrics>>) -> Self {
        forced::record(&inner, &ledger);
        Self {
            inner,
            ledger,
            series: metrics.map(Series::of),
        }
    }

    /// Runs an operation. With metrics, traces it, measures its duration and counts its error. Also returns when the
    /// operation was sent.
    async fn step<T: Send>(
        &self,
        operation: Operation,
        step: impl Future<Output = Result<T, BackendError>> + Send,
    ) -> (Instant, Result<T, BackendError>) {
        let sent = Instant::now();
        let Some(series) = &self.series else {
            return (sent, step.await);
        };
        let (at, namespace) = (operation as usize, &series.namespace);
        let traced = Traced::step(OPERATIONS[at], namespace.capabilities.kind, namespace.name.as_str());
        let result = Traced::around(traced, step).await;
        series.seconds[at].observe(sent.elapsed().as_secs_f64());
        if let Err(error) = &result {
            series.count_error(error);
        }
        (sent, result)
    }

    /// Records a grant, whether new or found.
    fn record_grant(&self, lock: &LockName, claim: &NewClaim, grant: &Grant, sent: Instant) {
        let is_known = self.ledger.granted(lock, grant, claim.call, sent + grant.ttl);
        if let Some(series) = &self.series {
            series.count_grant(lock, claim, grant, sent, is_known);
        }
    }

    fn record_release(&self, lock: &LockName, target: ReleaseTarget<'_>, released: Released, sent: Instant) {
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
        if let Some(series) = &self.series {
            series.count_release(lock, target, released, sent);
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
        if let Some(series) = &self.series {
            series.lost[cause_index(cause)].inc();
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
            self.record_release(lock, target, outcome.released, sent);
            if let (Some(claim), Some(grant)) = (next, &outcome.next) {
                self.record_grant(lock, claim, grant, sent);
            }
        }
        result
    }

    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError> {
        let step = self.inner.renew(lease, ttl);
        let (sent, result) = self.step(Operation::Renew, answered(step)).await;
        if let Ok(outcome) = &result {
            self.record_renewal(lease, outcome, sent);
        }
        result
    }

    async fn update_metadata(&self, lease: &LeaseKey, metadata: &Metadata) -> Result<UpdateOutcome, BackendError> {
        let step = self.inner.update_metadata(lease, metadata);
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
