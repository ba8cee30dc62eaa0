//! Calls over a store that takes its time, and that counts them: the memory store behind a gate.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use tokio::sync::Notify;

use super::*;
use crate::backend::{Place, Wake};

/// The memory store; while the gate is shut, whoever wants to leave stands before it.
#[derive(Debug)]
struct Gated {
    store: Arc<dyn Backend>,
    shut: AtomicBool,
    opened: Notify,
    take_ups: AtomicUsize,
    /// What keeps claims from entering.
    refusal: Mutex<Option<BackendError>>,
    /// How long it takes to enter.
    enters_in: Mutex<Duration>,
    health: watch::Sender<Health>,
}

impl Gated {
    fn shut(health: Health) -> Arc<Self> {
        Arc::new(Self {
            store: Store::memory().namespace(Namespace::new("n").unwrap()),
            shut: AtomicBool::new(true),
            opened: Notify::new(),
            take_ups: AtomicUsize::new(0),
            refusal: Mutex::default(),
            enters_in: Mutex::default(),
            health: watch::Sender::new(health),
        })
    }

    fn open(&self) {
        self.shut.store(false, Ordering::SeqCst);
        self.opened.notify_waiters();
    }
}

#[async_trait]
impl Backend for Gated {
    async fn enter(&self, lock: &LockName, claim: &NewClaim) -> Result<Place, BackendError> {
        let enters_in = *self.enters_in.lock().unwrap();
        if !enters_in.is_zero() {
            sleep(enters_in).await;
        }
        let refusal = self.refusal.lock().unwrap().clone();
        match refusal {
            Some(refusal) => Err(refusal),
            None => self.store.enter(lock, claim).await,
        }
    }

    async fn take_up(&self, lock: &LockName, claim: &NewClaim) -> Result<Place, BackendError> {
        self.take_ups.fetch_add(1, Ordering::SeqCst);
        self.store.take_up(lock, claim).await
    }

    async fn leave(
        &self,
        lock: &LockName,
        who: Leaving<'_>,
        next: Option<&NewClaim>,
    ) -> Result<Departure, BackendError> {
        let opened = self.opened.notified();
        if self.shut.load(Ordering::SeqCst) {
            opened.await;
        }
        self.store.leave(lock, who, next).await
    }

    async fn renew(&self, lease: &LeaseKey, ttl: Option<crate::name::Ttl>) -> Result<Renewal, BackendError> {
        self.store.renew(lease, ttl).await
    }

    async fn look(&self, lock: &LockName, most: Most) -> Result<Queue, BackendError> {
        self.store.look(lock, most).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<Listing, BackendError> {
        self.store.list(prefix, page).await
    }

    fn wakes(&self) -> BoxStream<'static, Wake> {
        self.store.wakes()
    }

    fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<Seen, BackendError>> {
        self.store.watch(lock)
    }

    fn offers(&self) -> Offers {
        self.store.offers()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

fn over(store: &Arc<Gated>) -> Locks {
    let backend: Arc<dyn Backend> = store.clone();
    Locks::new(Namespace::new("n").unwrap(), Limits::default(), backend)
}

/// A wait of a second behind a holder of ten: how it ends, after what time, and the locks.
async fn waits_in_vain(store: &Arc<Gated>) -> (Error, Duration, Locks) {
    let locks = over(store);
    hold(&locks, "a").await;
    let began = Instant::now();
    let error = locks
        .acquire(ask("b", SECOND))
        .await
        .map(Granted::delivered)
        .unwrap_err();
    (error, began.elapsed(), locks)
}

/// The waiter is still in the store, and leaves it as soon as that answers.
async fn leaves_once_the_store_answers(store: &Gated, locks: &Locks) {
    assert_eq!(counts(locks).await, (1, 1));
    store.open();
    let left = async {
        while counts(locks).await.1 > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(SECOND, left).await.expect("the undo goes on");
    assert_eq!(counts(locks).await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_runs_out_on_a_slow_store_ends_on_time_and_is_undone_later() {
    let store = Gated::shut(Health::Serving);
    let (error, took, locks) = waits_in_vain(&store).await;
    let Error::WaitTimeout { waited } = error else {
        panic!("{error}")
    };
    assert_eq!(waited, took);
    assert!((SECOND..SECOND + 2 * acquire::FAREWELL).contains(&took), "{took:?}");
    leaves_once_the_store_answers(&store, &locks).await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_runs_out_while_the_store_is_away_says_so() {
    let store = Gated::shut(Health::Away {
        reason: "unplugged".into(),
    });
    let (error, took, locks) = waits_in_vain(&store).await;
    assert_eq!(
        error,
        Error::Backend(BackendError::Away {
            reason: "unplugged".into()
        })
    );
    assert!(took < SECOND + 2 * acquire::FAREWELL, "{took:?}");
    leaves_once_the_store_answers(&store, &locks).await;
}

#[tokio::test(start_paused = true)]
async fn one_release_wakes_one_waiter_of_many() {
    const WAITERS: usize = 512;
    let store = Gated::shut(Health::Serving);
    store.open();
    let locks = over(&store);
    let mut held = hold(&locks, "first").await;
    let mut waiters = Vec::new();
    for number in 0..WAITERS {
        waiters.push(waiting(&locks, ask(&number.to_string(), 60 * SECOND)));
        while counts(&locks).await.1 <= number {
            tokio::task::yield_now().await;
        }
    }
    for (number, waiter) in waiters.into_iter().enumerate() {
        locks.release(&held.key).await.unwrap();
        held = waiter.await.unwrap().unwrap();
        assert_eq!(held.owner.as_str(), number.to_string(), "served in order");
        assert_eq!(counts(&locks).await, (1, WAITERS - 1 - number), "one at a time");
    }
    // Each was granted by the release itself: none was woken to ask, in vain or not.
    assert_eq!(store.take_ups.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_wait_shorter_than_the_answer_of_the_store_is_not_worse_than_a_try() {
    let store = Gated::shut(Health::Serving);
    *store.enters_in.lock().unwrap() = SECOND / 10;
    let locks = over(&store);
    let briefly = ask("a", Duration::from_millis(1));
    let lease = locks.acquire(briefly.clone()).await.map(Granted::delivered).unwrap();
    assert_eq!(lease.owner.as_str(), "a");
    let refused = locks.acquire(briefly).await.map(Granted::delivered).unwrap_err();
    assert!(matches!(refused, Error::WaitTimeout { .. }), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn what_was_refused_without_effect_is_not_undone() {
    let reason = || "unplugged".to_owned();
    let unsent = BackendError::Unsent { reason: reason() };
    let unknown = BackendError::Away { reason: reason() };
    for (refusal, undos) in [(unsent, 0), (unknown, 1)] {
        for wait in [Duration::ZERO, SECOND] {
            let store = Gated::shut(Health::Serving);
            *store.refusal.lock().unwrap() = Some(refusal.clone());
            let locks = over(&store);
            let refused = locks.acquire(ask("a", wait)).await.map(Granted::delivered).unwrap_err();
            assert_eq!(refused, Error::Backend(refusal.clone()));
            assert_eq!(locks.room.undos.len(), undos, "{refusal}, {wait:?}");
        }
    }
}
