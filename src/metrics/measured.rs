//! A backend that measures the operations of the namespace's backend.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use parking_lot::{Mutex, MutexGuard};
use prometheus::{Histogram, IntCounter};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::NamespaceMetrics;
use super::lease_observer::{Granted, LeaseObserver};
use crate::backend::{
    AcquireOutcome, Backend, BackendError, Capabilities, Grant, Health, InspectLimit, LockPage, NewClaim, Notification,
    PageRequest, ReleaseOutcome, ReleaseTarget, Released, RenewOutcome, WatchEvent,
};
use crate::claim::{Cause, Holder, Queue};
use crate::name::{FencingToken, LeaseKey, LockName, Mode, Ttl};
use crate::telemetry::traces::Traced;

/// The interval between searches for expired leases.
const SWEEP: Duration = Duration::from_secs(1);

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

/// Wraps a backend: times its operations, counts their errors and observes the grants.
pub struct Measured {
    inner: Arc<dyn Backend>,
    series: Arc<Series>,
    /// Stops with the backend.
    _sweep_task: AbortOnDropHandle<()>,
}

/// The series of the operations.
struct Series {
    namespace: Arc<NamespaceMetrics>,
    acquire: Histogram,
    promote: Histogram,
    release: Histogram,
    renew: Histogram,
    inspect: Histogram,
    holder: Histogram,
    list: Histogram,
    admit: Histogram,
    errors: [IntCounter; KINDS.len()],
    ended: [IntCounter; CAUSES.len()],
    lost: [IntCounter; CAUSES.len()],
    observer: Mutex<LeaseObserver>,
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
        let step = |operation| all.step_seconds.with_label_values(&[name, kind, operation]);
        Self {
            acquire: step("acquire"),
            promote: step("promote"),
            release: step("release"),
            renew: step("renew"),
            inspect: step("inspect"),
            holder: step("holder"),
            list: step("list"),
            admit: step("admit"),
            errors: KINDS.map(|error| all.step_errors.with_label_values(&[name, kind, error])),
            ended: CAUSES.map(|cause| all.ended.with_label_values(&[name, cause])),
            lost: CAUSES.map(|cause| all.lost.with_label_values(&[name, cause])),
            observer: Mutex::default(),
            namespace,
        }
    }

    fn observer(&self) -> MutexGuard<'_, LeaseObserver> {
        self.observer.lock()
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

    /// Records a grant, whether new or found.
    fn record_grant(&self, lock: &LockName, claim: &NewClaim, grant: &Grant, sent: Instant) {
        let now = Instant::now();
        let granted = Granted {
            lock,
            call: claim.call,
            secret: grant.secret,
            token: grant.token,
            sent,
            arrived: claim.arrived,
            until: sent + grant.ttl,
            alone: claim.mode == Mode::Exclusive && !claim.reentrant,
        };
        let observed = self.observer().granted(&granted, now);
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

    fn record_outcome(
        &self,
        lock: &LockName,
        claim: &NewClaim,
        outcome: &Result<AcquireOutcome, BackendError>,
        sent: Instant,
    ) {
        if let Ok(AcquireOutcome::Held(grant)) = outcome {
            self.record_grant(lock, claim, grant, sent);
        }
    }

    fn record_release(
        &self,
        lock: &LockName,
        target: ReleaseTarget<'_>,
        outcome: &ReleaseOutcome,
        next: Option<&NewClaim>,
        sent: Instant,
    ) {
        let mut observer = self.observer();
        match (target, outcome.released) {
            (ReleaseTarget::Hold(lease), Released::Ended(_)) => {
                observer.ended(&lease.secret);
                observer.released(lock, sent);
            }
            (ReleaseTarget::Hold(lease), Released::EndedBefore(_) | Released::Nothing) => observer.ended(&lease.secret),
            (ReleaseTarget::Call(_, call), Released::Ended(_)) => observer.undone(call),
            (ReleaseTarget::Forced(token), Released::Ended(_)) => {
                observer.forced(lock, token);
                observer.released(lock, sent);
            }
            _ => {}
        }
        drop(observer);
        match (target, outcome.released) {
            // A claim that only waited had no lease.
            (_, Released::Ended(Cause::Cancelled)) => {}
            (_, Released::Ended(cause)) => self.ended[cause_index(Some(cause))].inc(),
            (ReleaseTarget::Hold(_), Released::EndedBefore(Cause::Released)) => {}
            (ReleaseTarget::Hold(_), Released::EndedBefore(cause)) => self.lost[cause_index(Some(cause))].inc(),
            (ReleaseTarget::Hold(_), Released::Nothing) => self.lost[cause_index(None)].inc(),
            _ => {}
        }
        if let (Some(claim), Some(grant)) = (next, &outcome.next) {
            self.record_grant(lock, claim, grant, sent);
        }
    }

    fn record_renewal(&self, lease: &LeaseKey, outcome: &RenewOutcome, sent: Instant) {
        match outcome {
            RenewOutcome::Renewed(grant) => {
                let until = sent + grant.ttl;
                self.observer().hold(&lease.lock.name, lease.secret, grant.token, until);
            }
            RenewOutcome::Gone(cause) => {
                self.observer().ended(&lease.secret);
                self.lost[cause_index(*cause)].inc();
            }
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

/// Counts expired leases until the backend is dropped.
async fn sweep_task(series: Weak<Series>) {
    loop {
        sleep(SWEEP).await;
        let Some(series) = series.upgrade() else { return };
        let (expired, held) = series.observer().sweep(Instant::now());
        series.namespace.expired.inc_by(expired as u64);
        series.namespace.held.set(i64::try_from(held).unwrap_or(i64::MAX));
    }
}

impl Measured {
    /// Wraps `inner` for this namespace. Must be called within a tokio runtime: a task counts expired leases until this
    /// is dropped.
    pub fn new(inner: Arc<dyn Backend>, namespace: Arc<NamespaceMetrics>) -> Self {
        let series = Arc::new(Series::of(namespace));
        let sweep_task = tokio::spawn(sweep_task(Arc::downgrade(&series)));
        Self {
            inner,
            series,
            _sweep_task: AbortOnDropHandle::new(sweep_task),
        }
    }

    /// Runs an operation, measures its duration and counts its error. Also returns when the operation was sent.
    async fn step<T: Send>(
        &self,
        operation: &'static str,
        seconds: &Histogram,
        step: impl Future<Output = Result<T, BackendError>> + Send,
    ) -> (Instant, Result<T, BackendError>) {
        let sent = Instant::now();
        let namespace = &self.series.namespace;
        let traced = Traced::step(operation, namespace.capabilities.kind, namespace.name.as_str());
        let result = Traced::around(traced, step).await;
        seconds.observe(sent.elapsed().as_secs_f64());
        if let Err(error) = &result {
            self.series.count_error(error);
        }
        (sent, result)
    }
}

#[async_trait]
impl Backend for Measured {
    async fn acquire(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let step = self.inner.acquire(lock, claim);
        let (sent, outcome) = self.step("acquire", &self.series.acquire, step).await;
        self.series.record_outcome(lock, claim, &outcome, sent);
        outcome
    }

    async fn promote(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let step = self.inner.promote(lock, claim);
        let (sent, outcome) = self.step("promote", &self.series.promote, step).await;
        self.series.record_outcome(lock, claim, &outcome, sent);
        outcome
    }

    async fn release(
        &self,
        lock: &LockName,
        target: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, BackendError> {
        let step = self.inner.release(lock, target, next);
        let (sent, result) = self.step("release", &self.series.release, step).await;
        if let Ok(outcome) = &result {
            self.series.record_release(lock, target, outcome, next, sent);
        }
        result
    }

    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError> {
        let step = self.inner.renew(lease, ttl);
        let (sent, result) = self.step("renew", &self.series.renew, step).await;
        if let Ok(outcome) = &result {
            self.series.record_renewal(lease, outcome, sent);
        }
        result
    }

    async fn inspect(&self, lock: &LockName, most: InspectLimit) -> Result<Queue, BackendError> {
        self.step("inspect", &self.series.inspect, self.inner.inspect(lock, most))
            .await
            .1
    }

    async fn holder(&self, lock: &LockName, token: FencingToken) -> Result<Option<Holder>, BackendError> {
        let step = self.inner.holder(lock, token);
        self.step("holder", &self.series.holder, step).await.1
    }

    async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, BackendError> {
        self.step("list", &self.series.list, self.inner.list(prefix, page))
            .await
            .1
    }

    fn notifications(&self) -> BoxStream<'static, Notification> {
        self.inner.notifications()
    }

    fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<WatchEvent, BackendError>> {
        self.inner.watch(lock)
    }

    async fn admit(&self, node: Option<&str>) -> Result<(), BackendError> {
        self.step("admit", &self.series.admit, self.inner.admit(node)).await.1
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.inner.health()
    }

    fn nodes(&self) -> Vec<(String, Health)> {
        self.inner.nodes()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
