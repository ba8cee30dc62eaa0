//! Elections over a memory store whose reads can hang.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::timeout;

use super::*;
use crate::backend::embedded::Store;
use crate::backend::{
    AcquireOutcome, Backend, Capabilities, Health, InspectLimit, LockPage, NewClaim, Notification, PageRequest,
    ReleaseOutcome, ReleaseTarget, RenewOutcome,
};
use crate::limits::Limits;
use crate::locks::{Acquire, Granted, Lease};
use crate::name::{LeaseKey, Metadata, Namespace, Ttl};

/// The memory store. While it hangs, `inspect` is not answered.
#[derive(Debug)]
struct HangingStore {
    store: Arc<dyn Backend>,
    hangs: AtomicBool,
}

#[async_trait]
impl Backend for HangingStore {
    async fn acquire(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        self.store.acquire(lock, claim).await
    }

    async fn promote(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        self.store.promote(lock, claim).await
    }

    async fn release(
        &self,
        lock: &LockName,
        target: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, BackendError> {
        self.store.release(lock, target, next).await
    }

    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError> {
        self.store.renew(lease, ttl).await
    }

    async fn inspect(&self, lock: &LockName, most: InspectLimit) -> Result<Queue, BackendError> {
        if self.hangs.load(Ordering::SeqCst) {
            pending().await
        }
        self.store.inspect(lock, most).await
    }

    async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, BackendError> {
        self.store.list(prefix, page).await
    }

    fn notifications(&self) -> BoxStream<'static, Notification> {
        self.store.notifications()
    }

    fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<WatchEvent, BackendError>> {
        self.store.watch(lock)
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.store.health()
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

fn election() -> LockName {
    LockName::new("mailer").unwrap()
}

fn over_hanging_store() -> (Arc<HangingStore>, Locks) {
    let namespace = Namespace::new("n").unwrap();
    let store = Arc::new(HangingStore {
        store: Store::memory().namespace(namespace.clone()),
        hangs: AtomicBool::new(false),
    });
    let backend: Arc<dyn Backend> = Arc::clone(&store) as _;
    (store, Locks::new(namespace, Limits::default(), backend))
}

async fn hold(locks: &Locks, owner: &str, mode: Mode) -> Lease {
    let request = Acquire {
        lock: election(),
        owner: Owner::new(owner).unwrap(),
        identity: Identity::anonymous(),
        mode,
        ttl: None,
        wait: Duration::ZERO,
        request_id: None,
        reentrant: false,
        metadata: Metadata::default(),
    };
    locks.acquire(request).await.map(Granted::delivered).unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_observation_ends_soon_after_its_store_hangs() {
    let (store, locks) = over_hanging_store();
    let mut leaders = observe(locks.clone(), election());
    assert_eq!(leaders.next().await, Some(Ok(None)));
    hold(&locks, "a", Mode::Exclusive).await;
    store.hangs.store(true, Ordering::SeqCst);
    let began = Instant::now();
    let ended = timeout(Duration::from_secs(60), leaders.next()).await;
    let error = ended.expect("it ends").expect("a message").unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(began.elapsed() <= OUTAGE_TOLERANCE + PAUSE, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_leadership_is_shown_while_the_store_hangs() {
    let (store, locks) = over_hanging_store();
    let mut leaders = observe(locks.clone(), election());
    assert_eq!(leaders.next().await, Some(Ok(None)));
    let lease = hold(&locks, "a", Mode::Exclusive).await;
    let leader = leaders.next().await.unwrap().unwrap().expect("a leader");
    assert_eq!((leader.candidate.as_str(), leader.token), ("a", lease.key.token));
    store.hangs.store(true, Ordering::SeqCst);
    locks.release(&lease.key).await.unwrap();
    assert_eq!(leaders.next().await, Some(Ok(None)), "no read is needed");
}

#[tokio::test]
async fn a_holder_of_another_mode_leads_nothing() {
    let (_, locks) = over_hanging_store();
    hold(&locks, "a", Mode::Shared).await;
    assert_eq!(crate::elections::leader(&locks, &election()).await.unwrap(), None);
}
