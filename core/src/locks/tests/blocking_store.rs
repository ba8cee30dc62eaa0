//! A memory store whose calls can be blocked, and that counts them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::backend::embedded::Store;
use crate::backend::{
    AcquireOutcome, Backend, BackendError, Capabilities, Health, InspectLimit, LockPage, NewClaim, Notification,
    PageRequest, ReleaseOutcome, ReleaseTarget, Released, RenewOutcome, StreamNumber, UpdateOutcome, WatchEvent,
};
use crate::claim::Queue;
use crate::limits::Limits;
use crate::locks::Locks;
use crate::name::{CallId, ClaimId, LeaseKey, LockName, Metadata, Namespace, Ttl};

/// Longer than any test.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// The memory store. While it is blocked, `release` and `close` wait.
#[derive(Debug)]
pub(crate) struct BlockingStore {
    pub(crate) store: Arc<dyn Backend>,
    pub(crate) blocked: AtomicBool,
    pub(crate) unblocked: Notify,
    /// A lock whose next release does not wait while the store is blocked.
    pub(crate) passing: Mutex<Option<LockName>>,
    /// Whether that one is answered without the store.
    pub(crate) knows: AtomicBool,
    /// Whether `release` is answered only when this is notified, if it may grant to the next call.
    pub(crate) hands_over_late: Option<Notify>,
    pub(crate) acquires: AtomicUsize,
    pub(crate) promotes: AtomicUsize,
    pub(crate) renews: AtomicUsize,
    /// The error that `acquire` returns.
    pub(crate) refusal: Mutex<Option<BackendError>>,
    /// The error that `promote` and `release` return.
    pub(crate) outage: Mutex<Option<BackendError>>,
    /// The next `promote` loses its claim.
    pub(crate) loses_claim: AtomicBool,
    /// Whether its notifications are lost.
    pub(crate) loses_notifications: bool,
    /// How long `acquire` takes.
    pub(crate) acquire_takes: Mutex<Duration>,
    /// Whether it executes what begins after an `acquire` after it.
    pub(crate) orders_acquires: AtomicBool,
    /// How long `renew` takes.
    pub(crate) renew_takes: Mutex<Duration>,
    pub(crate) health: watch::Sender<Health>,
    /// Whether what shows or changes claims is not answered.
    pub(crate) hangs: AtomicBool,
    /// How long `promote` takes.
    pub(crate) promote_takes: Mutex<Duration>,
    /// Whether `inspect` fails.
    pub(crate) inspect_fails: AtomicBool,
    /// Whether a new `watch` fails.
    pub(crate) watch_fails: AtomicBool,
    /// Whether it finds no claim by its request.
    pub(crate) forgets_requests: bool,
    /// Ends the streams of `watch` with an error.
    pub(crate) watch_breaks: Arc<Notify>,
}

impl BlockingStore {
    pub(crate) fn blocked(health: Health) -> Arc<Self> {
        Arc::new(Self {
            blocked: AtomicBool::new(true),
            health: watch::Sender::new(health),
            ..Self::serving()
        })
    }

    /// A store that serves and blocks nothing.
    pub(crate) fn serving() -> Self {
        Self {
            store: Store::memory().namespace(Namespace::new("n").unwrap()),
            blocked: AtomicBool::new(false),
            unblocked: Notify::new(),
            passing: Mutex::default(),
            knows: AtomicBool::new(false),
            hands_over_late: None,
            acquires: AtomicUsize::new(0),
            promotes: AtomicUsize::new(0),
            renews: AtomicUsize::new(0),
            refusal: Mutex::default(),
            outage: Mutex::default(),
            loses_claim: AtomicBool::new(false),
            loses_notifications: false,
            acquire_takes: Mutex::default(),
            orders_acquires: AtomicBool::new(false),
            renew_takes: Mutex::default(),
            health: watch::Sender::new(Health::Serving),
            hangs: AtomicBool::new(false),
            promote_takes: Mutex::default(),
            inspect_fails: AtomicBool::new(false),
            watch_fails: AtomicBool::new(false),
            forgets_requests: false,
            watch_breaks: Arc::default(),
        }
    }

    pub(crate) fn fail(&self, outage: Option<BackendError>) {
        *self.outage.lock().unwrap() = outage;
    }

    pub(crate) fn fails(&self) -> Result<(), BackendError> {
        self.outage.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    pub(crate) async fn until_unblocked(&self) {
        let unblocked = self.unblocked.notified();
        if self.blocked.load(Ordering::SeqCst) {
            unblocked.await;
        }
    }

    fn passes(&self, lock: &LockName) -> bool {
        let mut passing = self.passing.lock().unwrap();
        passing.take_if(|passing| passing == lock).is_some()
    }

    async fn hangs(&self) {
        if self.hangs.load(Ordering::SeqCst) {
            std::future::pending().await
        }
    }

    /// Unblocks the calls that wait.
    pub(crate) fn unblock(&self) {
        self.blocked.store(false, Ordering::SeqCst);
        self.unblocked.notify_waiters();
    }
}

pub(crate) fn unplugged() -> BackendError {
    BackendError::Unavailable {
        reason: "unplugged".into(),
    }
}

#[async_trait]
impl Backend for BlockingStore {
    fn orders_acquires(&self, _lock: &LockName) -> bool {
        self.orders_acquires.load(Ordering::SeqCst)
    }

    async fn acquire(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        self.acquires.fetch_add(1, Ordering::SeqCst);
        let acquire_takes = *self.acquire_takes.lock().unwrap();
        if !acquire_takes.is_zero() {
            sleep(acquire_takes).await;
        }
        let refusal = self.refusal.lock().unwrap().clone();
        match refusal {
            Some(refusal) => Err(refusal),
            None => self.store.acquire(lock, claim).await,
        }
    }

    async fn promote(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        self.promotes.fetch_add(1, Ordering::SeqCst);
        let promote_takes = *self.promote_takes.lock().unwrap();
        if !promote_takes.is_zero() {
            sleep(promote_takes).await;
        }
        self.fails()?;
        if self.loses_claim.swap(false, Ordering::SeqCst) {
            self.store
                .release(lock, ReleaseTarget::Call(&claim.id, claim.call), None)
                .await?;
            return Ok(AcquireOutcome::Gone);
        }
        self.store.promote(lock, claim).await
    }

    async fn release(
        &self,
        lock: &LockName,
        target: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, BackendError> {
        self.fails()?;
        match self.passes(lock) {
            true if self.knows.load(Ordering::SeqCst) => return Ok(Released::Nothing.into()),
            true => {}
            false => self.until_unblocked().await,
        }
        let released = self.store.release(lock, target, next).await;
        if let Some(late) = self.hands_over_late.as_ref().filter(|_| next.is_some()) {
            late.notified().await;
        }
        released
    }

    async fn owns(&self, lock: &LockName, claim: &ClaimId, call: CallId) -> Result<bool, BackendError> {
        self.store.owns(lock, claim, call).await
    }

    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError> {
        self.renews.fetch_add(1, Ordering::SeqCst);
        let renew_takes = *self.renew_takes.lock().unwrap();
        if !renew_takes.is_zero() {
            sleep(renew_takes).await;
        }
        self.store.renew(lease, ttl).await
    }

    async fn inspect(&self, lock: &LockName, most: InspectLimit) -> Result<Queue, BackendError> {
        self.hangs().await;
        if self.inspect_fails.load(Ordering::SeqCst) {
            return Err(unplugged());
        }
        self.store.inspect(lock, most).await
    }

    async fn update_metadata(
        &self,
        lease: &LeaseKey,
        metadata: &Metadata,
        stream: Option<StreamNumber>,
    ) -> Result<UpdateOutcome, BackendError> {
        self.hangs().await;
        self.store.update_metadata(lease, metadata, stream).await
    }

    async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, BackendError> {
        self.hangs().await;
        self.store.list(prefix, page).await
    }

    fn notifications(&self) -> BoxStream<'static, Notification> {
        if self.loses_notifications {
            return stream::pending().boxed();
        }
        self.store.notifications()
    }

    fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<WatchEvent, BackendError>> {
        if self.hangs.load(Ordering::SeqCst) {
            return stream::pending().boxed();
        }
        let failed = stream::iter([Err(unplugged())]);
        if self.watch_fails.load(Ordering::SeqCst) {
            return failed.boxed();
        }
        let broken = Arc::clone(&self.watch_breaks).notified_owned();
        self.store.watch(lock).take_until(broken).chain(failed).boxed()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shared: true,
            remembers_requests: !self.forgets_requests,
            ..self.store.capabilities()
        }
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    async fn close(&self) {
        self.until_unblocked().await;
        self.store.close().await;
    }
}

pub(crate) fn locks_over(store: &Arc<BlockingStore>) -> Locks {
    let backend: Arc<dyn Backend> = store.clone();
    Locks::new(Namespace::new("n").unwrap(), Limits::default(), backend)
}
