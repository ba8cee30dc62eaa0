//! The lock operations of one namespace, independent of the backend: acquire, wait, renew, release, watch.
//!
//! [`Locks`] works on any [`Backend`]. [`acquire`] runs an Acquire call, [`undo`] undoes a call that was dropped, and
//! [`local_waiters`] knows which calls of this replica wait for which lock.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::acquire::AcquireCall;
use self::grant_log::GrantLog;
pub use self::grant_log::{Applicant, GRANTS, log_grants, logs_grants};
use self::local_waiters::{LocalWaiters, Waiter};
use self::outage::NotServingSince;
pub use self::outage::{OUTAGE_TOLERANCE, RETRY_DELAY};
pub use self::session_stream::{LONGEST_GRACE, SessionStream};
pub use self::undelivered_grant::UndeliveredGrant;
use self::undo::{KeptPlaces, Undo};
pub use self::wait_control::{WaitControl, WaitProgress};
use crate::backend::{
    Backend, Capabilities, Grant, Guarantee, InspectLimit, LockPage, NewClaim, Notification, PageRequest, RenewOutcome,
    WatchEvent,
};
use crate::claim::{Holder, Queue};
use crate::error::Error;
use crate::ledger::Ledger;
use crate::limits::Limits;
use crate::measured::{Measured, OperationMetrics};
use crate::name::{
    ClaimId, FencingToken, Identity, LeaseKey, LockKey, LockName, Metadata, Mode, Namespace, Owner, RequestId,
};
use crate::supervisor::supervise;

mod acquire;
mod grant_log;
mod ids;
mod in_use;
mod local_waiters;
mod metadata;
mod new_claim;
mod outage;
mod release;
mod session_stream;
mod store;
#[cfg(all(test, feature = "embedded"))]
pub(crate) mod tests;
mod undelivered_grant;
mod undo;
mod wait_control;
mod waiting_bytes;
mod watching;

/// How long [`Locks::close`] waits for running undos. An unfinished undo leaves a lease until its TTL ends.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// How long the end of the process waits for undos and the store, because a hanging disk never answers.
const END_WITHIN: Duration = Duration::from_secs(7);

/// The locks of one namespace. Clones share everything.
#[derive(Debug, Clone)]
pub struct Locks {
    state: Arc<NamespaceState>,
}

/// The state that all calls of a namespace share.
#[derive(Debug)]
struct NamespaceState {
    namespace: Namespace,
    limits: ArcSwap<Limits>,
    capabilities: Capabilities,
    backend: Arc<dyn Backend>,
    ledger: Arc<Ledger>,
    grant_log: GrantLog,
    waiters: Arc<LocalWaiters>,
    not_serving_since: NotServingSince,
    draining: CancellationToken,
    places: Mutex<KeptPlaces>,
    /// The end of the drain, once it is known: no place is kept longer.
    drain_end: watch::Sender<Option<Instant>>,
    undos: TaskTracker,
    /// How many of them have failed at least once, and are retried.
    failed_undos: AtomicUsize,
    /// Ends the undos that still run.
    closed: CancellationToken,
    /// Runs the undos, whatever thread drops the call.
    runtime: Handle,
}

/// The parameters of an Acquire.
#[derive(Debug, Clone)]
pub struct Acquire {
    /// The lock to acquire.
    pub lock: LockName,
    /// The owner label that the caller chose.
    pub owner: Owner,
    /// The authenticated identity of the caller.
    pub identity: Identity,
    /// The lock mode.
    pub mode: Mode,
    /// The TTL; absent: the namespace's default.
    pub ttl: Option<Duration>,
    /// How long to wait; zero tries once.
    pub wait: Duration,
    /// Identifies a retry of the same request.
    pub request_id: Option<RequestId>,
    /// Whether the claim shares its hold with reentrant claims of the same owner.
    pub reentrant: bool,
    /// Displayed to operators.
    pub metadata: Metadata,
}

impl Acquire {
    /// The claim id that the request id determines, if there is a request id.
    pub fn claim(&self) -> Option<ClaimId> {
        let owner = (&self.lock, &self.owner);
        let request_id = self.request_id.as_ref();
        request_id.map(|request_id| ids::of_request(owner, &self.identity, request_id))
    }
}

/// A lease as it is returned to its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The content of the lease id.
    pub key: LeaseKey,
    /// The TTL granted or, for an existing lease, the time left.
    pub ttl: Duration,
    /// The time from the call's arrival until the granting step was sent.
    pub waited: Duration,
    /// The owner label of the holder.
    pub owner: Owner,
    /// What the namespace's store guarantees.
    pub guarantee: Guarantee,
    /// The number of holds of the claim.
    pub holds: u32,
}

impl Locks {
    /// Creates the locks of `namespace` over `backend`. Must be called within a tokio runtime: a task delivers the
    /// backend's notifications until the backend is closed.
    pub fn new(namespace: Namespace, limits: Limits, backend: Arc<dyn Backend>) -> Self {
        Self::measured(namespace, limits, backend, None)
    }

    /// [`Self::new`], with metrics in which the operations of `backend` are counted.
    pub fn measured(
        namespace: Namespace,
        limits: Limits,
        backend: Arc<dyn Backend>,
        metrics: Option<Arc<dyn OperationMetrics>>,
    ) -> Self {
        let (draining, ledger) = (CancellationToken::new(), Arc::new(Ledger::new(metrics.is_some())));
        let grant_log = GrantLog::new(Arc::clone(&backend));
        let backend = Arc::new(Measured::new(backend, Arc::clone(&ledger), metrics));
        let (waiters, notifications) = (Arc::<LocalWaiters>::default(), backend.notifications());
        let state = Arc::new(NamespaceState {
            namespace: namespace.clone(),
            limits: ArcSwap::from_pointee(limits),
            capabilities: backend.capabilities(),
            not_serving_since: NotServingSince::follow(backend.health(), &waiters, (namespace, &draining)),
            waiters: Arc::clone(&waiters),
            draining,
            places: Mutex::default(),
            drain_end: watch::Sender::default(),
            undos: TaskTracker::new(),
            failed_undos: AtomicUsize::new(0),
            closed: CancellationToken::new(),
            runtime: Handle::current(),
            grant_log,
            ledger,
            backend,
        });
        supervise("notifications", (waiters, notifications), |(waiters, notifications)| {
            async move {
                // One that an earlier run has taken may have had no effect.
                waiters.deliver(&Notification::Gap);
                while let Some(wake) = notifications.next().await {
                    waiters.deliver(&wake);
                }
            }
            .boxed()
        });
        Self { state }
    }

    /// Acquires a lock, at once or after waiting in its queue.
    ///
    /// # Cancellation safety
    /// When the call is dropped, its claim is removed from the queue or its grant is released.
    ///
    /// # Errors
    /// [`Error`]: why the lock was not acquired, or how the store failed.
    pub async fn acquire(&self, request: Acquire) -> Result<UndeliveredGrant, Error> {
        self.acquire_on(None, request).await
    }

    /// [`Self::acquire`] of a call on a stream, if there is one.
    ///
    /// # Cancellation safety
    /// As [`Self::acquire`]; what a call with a `request_id` has is kept for a while if the stream has broken off.
    ///
    /// # Errors
    /// As [`Self::acquire`]; [`Error::Superseded`] if a later stream of the session has asked for the same request.
    pub async fn acquire_on(
        &self,
        stream: Option<&Arc<SessionStream>>,
        request: Acquire,
    ) -> Result<UndeliveredGrant, Error> {
        let stream = stream.cloned();
        match request.wait.is_zero() {
            true => self.try_acquire(request, stream)?.await,
            false => self.wait_for(request, (None, None), stream)?.await,
        }
    }

    /// [`Self::acquire`] of a request that does not wait; an error is one from before the store is called.
    pub fn try_acquire(
        &self,
        request: Acquire,
        stream: Option<Arc<SessionStream>>,
    ) -> Result<impl Future<Output = Result<UndeliveredGrant, Error>> + Send + use<>, Error> {
        let (call, claim) = self.begin(&request, Instant::now(), stream)?;
        Ok(call.try_once(claim))
    }

    /// [`Self::acquire`] of a request that waits, maybe with a control, until `ending`. The future keeps only its claim,
    /// because thousands may wait.
    pub fn wait_for(
        &self,
        request: Acquire,
        (control, ending): (Option<Box<WaitControl>>, Option<CancellationToken>),
        stream: Option<Arc<SessionStream>>,
    ) -> Result<BoxFuture<'static, Result<UndeliveredGrant, Error>>, Error> {
        let arrived = control.as_ref().map_or_else(Instant::now, |control| control.arrived);
        let (mut call, claim) = self.begin(&request, arrived, stream)?;
        (call.control, call.ending) = (control, ending);
        let (bytes, waiter) = (self.state.waiting_bytes(&request)?, Waiter::new(claim));
        // Dropped with the future, after the call.
        Ok(Box::pin(call.run(waiter).inspect(move |_| drop(bytes))))
    }

    /// The call and its claim, if the namespace accepts the request now.
    fn begin(
        &self,
        request: &Acquire,
        arrived: Instant,
        stream: Option<Arc<SessionStream>>,
    ) -> Result<(AcquireCall, NewClaim), Error> {
        let mut claim = self.state.claim(request, arrived)?;
        claim.stream = stream.as_ref().map(|stream| stream.number);
        let wait = self.state.limits.load().wait(request.wait)?;
        self.state.check_failed_undos()?;
        if self.state.draining.is_cancelled() {
            return Err(Error::Draining);
        }
        let call = AcquireCall {
            state: Arc::clone(&self.state),
            lock: request.lock.clone(),
            deadline: arrived + wait,
            arrived,
            control: None,
            ending: None,
            stream,
        };
        Ok((call, claim))
    }

    /// Extends a held lease to `ttl` from now; absent: the TTL last requested for it.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when the lease has ended; [`Error::InvalidField`] for a TTL outside the bounds.
    pub async fn renew(&self, lease: &LeaseKey, ttl: Option<Duration>) -> Result<Lease, Error> {
        let ttl = ttl.map(|ttl| self.state.limits.load().ttl(Some(ttl))).transpose()?;
        match self.state.backend.renew(lease, ttl).await? {
            RenewOutcome::Renewed(grant) => {
                let renewed = self.state.lease(&lease.lock.name, grant);
                self.state.grant_log.renewed(&renewed);
                Ok(renewed)
            }
            RenewOutcome::Gone(cause) => Err(Error::LeaseLost { cause }),
        }
    }

    /// Reads the queue of a lock with at most `most` holders and `most` waiters.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn inspect(&self, lock: &LockName, most: usize) -> Result<Queue, Error> {
        self.state.limits.load().name(lock)?;
        Ok(self.state.backend.inspect(lock, InspectLimit::of_each(most)).await?)
    }

    /// Returns the holder with this token if it holds the lock now.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn check(&self, lock: &LockName, token: FencingToken) -> Result<Option<Holder>, Error> {
        self.state.limits.load().name(lock)?;
        Ok(self.state.backend.holder(lock, token).await?)
    }

    /// Lists the locks in use whose names begin with `prefix`.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, Error> {
        Ok(self.state.backend.list(prefix, page).await?)
    }

    /// Streams the queue of a lock, then each change. After an outage of the store of up to 4 s the queue follows again.
    /// The stream ends with [`Error::Draining`] when the server shuts down, and after any other error, which is
    /// [`crate::backend::BackendError::Unavailable`] if the store does not show the queue within 4 s.
    pub fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<WatchEvent, Error>> {
        if let Err(error) = self.state.limits.load().name(lock) {
            return stream::once(async { Err(error.into()) }).boxed();
        }
        let draining = self.state.draining.clone().cancelled_owned();
        let seen = watching::watch(&self.state.backend, lock.clone()).map(|seen| seen.map_err(Error::from));
        let end = self.state.draining.clone();
        seen.take_until(draining)
            .chain(stream::iter(
                std::iter::from_fn(move || end.is_cancelled().then_some(Err(Error::Draining))).take(1),
            ))
            .boxed()
    }

    /// Ends a quarantine on an operator's request.
    ///
    /// # Errors
    /// [`crate::backend::BackendError::Unsupported`] where the backend has no quarantine.
    pub async fn admit(&self, node: Option<&str>) -> Result<(), Error> {
        Ok(self.state.backend.admit(node).await?)
    }

    /// The namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.state.namespace
    }

    /// The current limits.
    pub fn limits(&self) -> Arc<Limits> {
        self.state.limits.load_full()
    }

    /// Replaces the limits; calls that have already begun keep the old ones.
    pub fn set_limits(&self, limits: Limits) {
        self.state.limits.store(Arc::new(limits));
    }

    /// The leases that this server knows to be held.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.state.ledger
    }

    /// The number of calls of this replica that wait.
    pub fn waiting(&self) -> usize {
        self.state.waiters.waiting()
    }

    /// Whether no other clone of these locks, no call and no undo is left.
    pub fn is_idle(&self) -> bool {
        Arc::strong_count(&self.state) == 1
    }

    /// Ends every waiting acquire and every watch with [`Error::Draining`] and refuses new acquires. Other calls are
    /// not affected.
    pub fn drain(&self) {
        self.state.draining.cancel();
    }

    /// The server is about to drain, until `end`: no place of a wait is kept longer.
    pub fn drains_until(&self, end: Instant) {
        let is_first = |known: &mut Option<Instant>| known.is_none() && known.replace(end).is_none();
        self.state.drain_end.send_if_modified(is_first);
    }

    /// How long the last place of a wait is kept that the server ended.
    fn places_left(&self) -> Duration {
        let (last, drain_end) = (self.state.places.lock().last, *self.state.drain_end.borrow());
        let last = last.map(|last| drain_end.map_or(last, |end| last.min(end)));
        last.map_or(Duration::ZERO, |last| last.saturating_duration_since(Instant::now()))
    }

    /// Waits until the last place of a wait that the drain ended is over, and at most 5 s longer for running undos, then
    /// closes the backend.
    pub async fn close(&self) {
        self.drain();
        self.state.undos.close();
        if timeout(self.places_left() + CLOSE_WITHIN, self.state.undos.wait())
            .await
            .is_err()
        {
            tracing::warn!(namespace = %self.state.namespace, remaining = self.state.undos.len(), "closed before all calls were undone");
        }
        self.state.closed.cancel();
        self.state.backend.close().await;
    }

    /// Closes at the end of the process, within 7 s after the last kept place even if the store hangs.
    pub async fn end(&self) {
        if timeout(self.places_left() + END_WITHIN, self.close()).await.is_err() {
            tracing::warn!(namespace = %self.state.namespace, "ended before its store was closed");
        }
    }
}

impl NamespaceState {
    fn granted(&self, lock: &LockName, grant: Grant, undo: Undo) -> UndeliveredGrant {
        UndeliveredGrant {
            lease: self.lease(lock, grant),
            undo,
        }
    }

    fn lease(&self, lock: &LockName, grant: Grant) -> Lease {
        let lock = LockKey {
            namespace: self.namespace.clone(),
            name: lock.clone(),
        };
        Lease {
            key: grant.lease(lock),
            ttl: grant.ttl,
            waited: grant.waited,
            owner: grant.owner,
            guarantee: self.capabilities.guarantee,
            holds: grant.holds,
        }
    }
}
