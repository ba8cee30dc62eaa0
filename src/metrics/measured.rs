//! A store that is measured: every step of a namespace's backend passes here.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use prometheus::{Histogram, IntCounter};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::NamespaceMetrics;
use super::lease_observer::{Granted, LeaseObserver};
use crate::backend::{
    Backend, BackendError, ReleaseOutcome, Released, Grant, Health, ReleaseTarget, LockPage, InspectLimit, NewClaim, Capabilities, PageRequest, AcquireOutcome,
    RenewOutcome, WatchEvent, Notification,
};
use crate::claim::{Cause, Holder, Queue};
use crate::name::{FencingToken, LeaseKey, LockName, Mode, Ttl};
use crate::telemetry::traces::Traced;

/// How often leases that ran out are looked for.
const SWEEP: Duration = Duration::from_secs(1);

/// The kinds of a store's errors.
const KINDS: [&str; 6] = ["away", "unsent", "no_quorum", "quarantined", "unsupported", "broken"];
/// How a lease ended, as far as that is told apart.
const CAUSES: [&str; 5] = ["expired", "released", "forced", "taken_back", "unknown"];

/// A backend whose steps are timed, whose failures are counted, and whose grants are looked at.
pub struct Measured {
    inner: Arc<dyn Backend>,
    figures: Arc<Figures>,
    /// Ends with the backend.
    _sweeps: AbortOnDropHandle<()>,
}

/// The series of the steps.
struct Figures {
    namespace: Arc<NamespaceMetrics>,
    enter: Histogram,
    promote: Histogram,
    leave: Histogram,
    renew: Histogram,
    look: Histogram,
    holder: Histogram,
    list: Histogram,
    admit: Histogram,
    errors: [IntCounter; KINDS.len()],
    ended: [IntCounter; CAUSES.len()],
    lost: [IntCounter; CAUSES.len()],
    seen: Mutex<LeaseObserver>,
}

impl fmt::Debug for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Figures {
    fn of(namespace: Arc<NamespaceMetrics>) -> Self {
        let (all, kind) = (&*namespace.all.inner, namespace.capabilities.kind);
        let name = namespace.name.as_str();
        let step = |operation| all.step_seconds.with_label_values(&[name, kind, operation]);
        Self {
            enter: step("enter"),
            promote: step("take_up"),
            leave: step("leave"),
            renew: step("renew"),
            look: step("look"),
            holder: step("holder"),
            list: step("list"),
            admit: step("admit"),
            errors: KINDS.map(|error| all.step_errors.with_label_values(&[name, kind, error])),
            ended: CAUSES.map(|cause| all.ended.with_label_values(&[name, cause])),
            lost: CAUSES.map(|cause| all.lost.with_label_values(&[name, cause])),
            seen: Mutex::default(),
            namespace,
        }
    }

    fn seen(&self) -> MutexGuard<'_, LeaseObserver> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, error: &BackendError) {
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

    /// A claim became a holder, or was found to be one.
    fn granted(&self, lock: &LockName, claim: &NewClaim, grant: &Grant, sent: Instant) {
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
        let shown = self.seen().granted(&granted, now);
        if shown.regression {
            self.namespace.regressions.inc();
            tracing::error!(namespace = %self.namespace.name, ?lock, token = %grant.token, "a fencing token did not rise");
        }
        if shown.new {
            self.namespace.granted.inc();
            self.namespace.wait_seconds.observe(grant.waited.as_secs_f64());
        }
        if let Some(released) = shown.released {
            let took = now.saturating_duration_since(released);
            self.namespace.hand_off_seconds.observe(took.as_secs_f64());
        }
    }

    fn placed(&self, lock: &LockName, claim: &NewClaim, placed: &Result<AcquireOutcome, BackendError>, sent: Instant) {
        if let Ok(AcquireOutcome::Held(grant)) = placed {
            self.granted(lock, claim, grant, sent);
        }
    }

    fn left(&self, lock: &LockName, who: ReleaseTarget<'_>, departure: &ReleaseOutcome, next: Option<&NewClaim>, sent: Instant) {
        let mut seen = self.seen();
        match (who, departure.found) {
            (ReleaseTarget::Hold(lease), Released::Ended(_)) => {
                seen.ended(&lease.secret);
                seen.released(lock, sent);
            }
            (ReleaseTarget::Hold(lease), Released::EndedBefore(_) | Released::Nothing) => seen.ended(&lease.secret),
            (ReleaseTarget::Call(_, call), Released::Ended(_)) => seen.undone(call),
            (ReleaseTarget::Forced(token), Released::Ended(_)) => {
                seen.forced(lock, token);
                seen.released(lock, sent);
            }
            _ => {}
        }
        drop(seen);
        match (who, departure.found) {
            // A claim that only waited was no lease.
            (_, Released::Ended(Cause::Left)) => {}
            (_, Released::Ended(cause)) => self.ended[cause_index(Some(cause))].inc(),
            (ReleaseTarget::Hold(_), Released::EndedBefore(Cause::Released)) => {}
            (ReleaseTarget::Hold(_), Released::EndedBefore(cause)) => self.lost[cause_index(Some(cause))].inc(),
            (ReleaseTarget::Hold(_), Released::Nothing) => self.lost[cause_index(None)].inc(),
            _ => {}
        }
        if let (Some(claim), Some(grant)) = (next, &departure.next) {
            self.granted(lock, claim, grant, sent);
        }
    }

    fn renewed(&self, lease: &LeaseKey, renewal: &RenewOutcome, sent: Instant) {
        match renewal {
            RenewOutcome::Renewed(grant) => {
                let until = sent + grant.ttl;
                self.seen().hold(&lease.lock.name, lease.secret, grant.token, until);
            }
            RenewOutcome::Gone(cause) => {
                self.seen().ended(&lease.secret);
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
        Some(Cause::TakenBack) => 3,
        Some(Cause::Left) | None => 4,
    }
}

/// Counts the leases that run out, until the backend is gone.
async fn sweeps(figures: Weak<Figures>) {
    loop {
        sleep(SWEEP).await;
        let Some(figures) = figures.upgrade() else { return };
        let (expired, held) = figures.seen().sweep(Instant::now());
        figures.namespace.expired.inc_by(expired as u64);
        figures.namespace.held.set(i64::try_from(held).unwrap_or(i64::MAX));
    }
}

impl Measured {
    /// Measures `inner` for this namespace. Must be called within a tokio runtime: a task counts the
    /// leases that run out, until this is dropped.
    pub fn new(inner: Arc<dyn Backend>, namespace: Arc<NamespaceMetrics>) -> Self {
        let figures = Arc::new(Figures::of(namespace));
        let sweeps = tokio::spawn(sweeps(Arc::downgrade(&figures)));
        Self {
            inner,
            figures,
            _sweeps: AbortOnDropHandle::new(sweeps),
        }
    }

    /// Runs a step, times it and counts its failure. Answers when it was sent, too.
    async fn step<T: Send>(
        &self,
        operation: &'static str,
        seconds: &Histogram,
        step: impl Future<Output = Result<T, BackendError>> + Send,
    ) -> (Instant, Result<T, BackendError>) {
        let sent = Instant::now();
        let namespace = &self.figures.namespace;
        let traced = Traced::step(operation, namespace.capabilities.kind, namespace.name.as_str());
        let done = Traced::around(traced, step).await;
        seconds.observe(sent.elapsed().as_secs_f64());
        if let Err(error) = &done {
            self.figures.failed(error);
        }
        (sent, done)
    }
}

#[async_trait]
impl Backend for Measured {
    async fn acquire(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let step = self.inner.acquire(lock, claim);
        let (sent, placed) = self.step("enter", &self.figures.enter, step).await;
        self.figures.placed(lock, claim, &placed, sent);
        placed
    }

    async fn promote(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let step = self.inner.promote(lock, claim);
        let (sent, placed) = self.step("take_up", &self.figures.promote, step).await;
        self.figures.placed(lock, claim, &placed, sent);
        placed
    }

    async fn release(
        &self,
        lock: &LockName,
        who: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, BackendError> {
        let step = self.inner.release(lock, who, next);
        let (sent, left) = self.step("leave", &self.figures.leave, step).await;
        if let Ok(departure) = &left {
            self.figures.left(lock, who, departure, next, sent);
        }
        left
    }

    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError> {
        let step = self.inner.renew(lease, ttl);
        let (sent, renewed) = self.step("renew", &self.figures.renew, step).await;
        if let Ok(renewal) = &renewed {
            self.figures.renewed(lease, renewal, sent);
        }
        renewed
    }

    async fn inspect(&self, lock: &LockName, most: InspectLimit) -> Result<Queue, BackendError> {
        self.step("look", &self.figures.look, self.inner.inspect(lock, most))
            .await
            .1
    }

    async fn holder(&self, lock: &LockName, token: FencingToken) -> Result<Option<Holder>, BackendError> {
        let step = self.inner.holder(lock, token);
        self.step("holder", &self.figures.holder, step).await.1
    }

    async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, BackendError> {
        self.step("list", &self.figures.list, self.inner.list(prefix, page))
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
        self.step("admit", &self.figures.admit, self.inner.admit(node)).await.1
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
