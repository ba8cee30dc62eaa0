//! Calls over a store that takes its time, and that counts them: the memory store behind a gate.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use tokio::sync::Notify;

use super::*;
use crate::backend::{AcquireOutcome, Notification};

/// The memory store; while the gate is shut, whoever wants to leave or to close it stands before it.
#[derive(Debug)]
struct Gated {
    store: Arc<dyn Backend>,
    shut: AtomicBool,
    opened: Notify,
    enters: AtomicUsize,
    take_ups: AtomicUsize,
    /// What keeps claims from entering.
    refusal: Mutex<Option<BackendError>>,
    /// What keeps them from being taken up, and from leaving.
    outage: Mutex<Option<BackendError>>,
    /// The claim that asks next is lost.
    forgets: AtomicBool,
    /// Whether its wakes get lost.
    mute: bool,
    /// How long it takes to enter.
    enters_in: Mutex<Duration>,
    health: watch::Sender<Health>,
}

impl Gated {
    fn shut(health: Health) -> Arc<Self> {
        Arc::new(Self {
            shut: AtomicBool::new(true),
            health: watch::Sender::new(health),
            ..Self::open()
        })
    }

    /// The gate is open and the store serves.
    fn open() -> Self {
        Self {
            store: Store::memory().namespace(Namespace::new("n").unwrap()),
            shut: AtomicBool::new(false),
            opened: Notify::new(),
            enters: AtomicUsize::new(0),
            take_ups: AtomicUsize::new(0),
            refusal: Mutex::default(),
            outage: Mutex::default(),
            forgets: AtomicBool::new(false),
            mute: false,
            enters_in: Mutex::default(),
            health: watch::Sender::new(Health::Serving),
        }
    }

    fn fail(&self, outage: Option<BackendError>) {
        *self.outage.lock().unwrap() = outage;
    }

    fn fails(&self) -> Result<(), BackendError> {
        self.outage.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    async fn gate(&self) {
        let opened = self.opened.notified();
        if self.shut.load(Ordering::SeqCst) {
            opened.await;
        }
    }

    /// Lets those in who stand before it.
    fn unlock(&self) {
        self.shut.store(false, Ordering::SeqCst);
        self.opened.notify_waiters();
    }
}

fn unplugged() -> BackendError {
    BackendError::Unavailable {
        reason: "unplugged".into(),
    }
}

#[async_trait]
impl Backend for Gated {
    async fn acquire(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        self.enters.fetch_add(1, Ordering::SeqCst);
        let enters_in = *self.enters_in.lock().unwrap();
        if !enters_in.is_zero() {
            sleep(enters_in).await;
        }
        let refusal = self.refusal.lock().unwrap().clone();
        match refusal {
            Some(refusal) => Err(refusal),
            None => self.store.acquire(lock, claim).await,
        }
    }

    async fn promote(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        self.take_ups.fetch_add(1, Ordering::SeqCst);
        self.fails()?;
        if self.forgets.swap(false, Ordering::SeqCst) {
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
        who: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, BackendError> {
        self.fails()?;
        self.gate().await;
        self.store.release(lock, who, next).await
    }

    async fn renew(&self, lease: &LeaseKey, ttl: Option<crate::name::Ttl>) -> Result<RenewOutcome, BackendError> {
        self.store.renew(lease, ttl).await
    }

    async fn inspect(&self, lock: &LockName, most: InspectLimit) -> Result<Queue, BackendError> {
        self.store.inspect(lock, most).await
    }

    async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, BackendError> {
        self.store.list(prefix, page).await
    }

    fn notifications(&self) -> BoxStream<'static, Notification> {
        if self.mute {
            return stream::pending().boxed();
        }
        self.store.notifications()
    }

    fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<WatchEvent, BackendError>> {
        self.store.watch(lock)
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    async fn close(&self) {
        self.gate().await;
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
    store.unlock();
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
    let store = Gated::shut(Health::Unavailable {
        reason: "unplugged".into(),
    });
    let (error, took, locks) = waits_in_vain(&store).await;
    assert_eq!(
        error,
        Error::Backend(BackendError::Unavailable {
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
    store.unlock();
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
    let unsent = BackendError::NotSent { reason: reason() };
    let unknown = BackendError::Unavailable { reason: reason() };
    for (refusal, undos) in [(unsent, 0), (unknown, 1)] {
        for wait in [Duration::ZERO, SECOND] {
            let store = Gated::shut(Health::Serving);
            *store.refusal.lock().unwrap() = Some(refusal.clone());
            let locks = over(&store);
            let refused = locks.acquire(ask("a", wait)).await.map(Granted::delivered).unwrap_err();
            assert_eq!(refused, Error::Backend(refusal.clone()));
            assert_eq!(locks.state.undos.len(), undos, "{refusal}, {wait:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ended_in_an_outage_is_undone_however_long_that_lasts() {
    for tells in [false, true] {
        let store = Arc::new(Gated::open());
        let locks = over(&store);
        hold(&locks, "a").await;
        let waiter = waiting(&locks, ask("b", SECOND));
        sleep(SECOND / 2).await;
        store.fail(Some(unplugged()));
        let error = waiter.await.unwrap().unwrap_err();
        assert_eq!(error, Error::Backend(unplugged()));
        sleep(300 * SECOND).await;
        assert_eq!(counts(&locks).await, (0, 1));
        store.fail(None);
        if tells {
            store.health.send_replace(Health::Serving);
            sleep(SECOND / 10).await;
        } else {
            sleep(11 * SECOND).await;
        }
        assert_eq!(counts(&locks).await, (0, 0), "told of its return: {tells}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_undone_ends_with_its_locks() {
    let store = Arc::new(Gated::open());
    let locks = over(&store);
    let granted = locks.acquire(ask("a", Duration::ZERO)).await.unwrap();
    store.fail(Some(unplugged()));
    drop(granted);
    locks.close().await;
    sleep(SECOND / 10).await;
    assert_eq!(locks.state.undos.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_end_is_not_held_up_by_undos_and_a_store_that_hang() {
    let store = Gated::shut(Health::Serving);
    let locks = over(&store);
    drop(locks.acquire(ask("a", Duration::ZERO)).await.unwrap());
    let begun = Instant::now();
    locks.end().await;
    assert_eq!(begun.elapsed(), 7 * SECOND);
    assert!(timeout(60 * SECOND, locks.close()).await.is_err(), "it hangs");
}

#[tokio::test(start_paused = true)]
async fn each_interruption_is_ridden_out_for_itself() {
    let store = Arc::new(Gated::open());
    let locks = over(&store);
    let held = locks.acquire(Acquire {
        ttl: Some(1000 * SECOND),
        ..ask("a", Duration::ZERO)
    });
    let held = held.await.unwrap().delivered();
    let waiter = waiting(&locks, ask("b", 600 * SECOND));
    sleep(SECOND).await;
    for _ in 0..3 {
        store.fail(Some(unplugged()));
        locks.state.lines.deliver(&Notification::Gap);
        sleep(3 * SECOND).await;
        // It comes back, and has lost the claim: entering again is a sign of life too.
        store.forgets.store(true, Ordering::SeqCst);
        store.fail(None);
        sleep(4 * SECOND).await;
        assert!(!store.forgets.load(Ordering::SeqCst), "it was asked");
        assert_eq!(counts(&locks).await, (1, 1));
    }
    locks.release(&held.key).await.unwrap();
    assert_eq!(waiter.await.unwrap().unwrap().owner.as_str(), "b");
}

#[tokio::test(start_paused = true)]
async fn those_who_leave_behind_the_first_do_not_keep_it_from_asking() {
    let store = Arc::new(Gated {
        mute: true,
        ..Gated::open()
    });
    let locks = over(&store);
    let held = hold(&locks, "a").await;
    let first = waiting(&locks, ask("b", 60 * SECOND));
    sleep(SECOND / 10).await;
    // Released where nobody names the next, and nobody hears of it.
    store
        .store
        .release(&name(), ReleaseTarget::Hold(&held.key), None)
        .await
        .unwrap();
    let began = Instant::now();
    while !first.is_finished() && began.elapsed() < 20 * SECOND {
        let left = locks.acquire(ask("c", SECOND / 2)).await.map(Granted::delivered);
        assert!(matches!(left, Err(Error::WaitTimeout { .. })), "{left:?}");
    }
    assert!(began.elapsed() < 6 * SECOND, "{:?}", began.elapsed());
    assert_eq!(first.await.unwrap().unwrap().owner.as_str(), "b");
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_no_waiter_whose_store_is_slow() {
    let store = Arc::new(Gated::open());
    *store.enters_in.lock().unwrap() = 8 * SECOND;
    let locks = over(&store);
    let waiter = waiting(&locks, ask("a", 60 * SECOND));
    sleep(SECOND).await;
    let began = Instant::now();
    locks.drain();
    assert_eq!(waiter.await.unwrap(), Err(Error::Draining));
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// A wait of three seconds whose claim gets lost, and may not enter again for `refusal`: how it
/// ends, after what time, and how often it tried.
async fn cannot_return(store: &Arc<Gated>, refusal: BackendError) -> (Error, Duration, usize) {
    let locks = over(store);
    hold(&locks, "a").await;
    let began = Instant::now();
    let waiter = waiting(&locks, ask("b", 3 * SECOND));
    sleep(SECOND / 10).await;
    store.enters.store(0, Ordering::SeqCst);
    *store.refusal.lock().unwrap() = Some(refusal);
    store.forgets.store(true, Ordering::SeqCst);
    locks.state.lines.deliver(&Notification::Gap);
    let error = waiter.await.unwrap().unwrap_err();
    (error, began.elapsed(), store.enters.load(Ordering::SeqCst))
}

#[tokio::test(start_paused = true)]
async fn who_may_not_enter_again_asks_at_ease_and_ends_on_time() {
    let quarantined = BackendError::Quarantined {
        left: 60 * SECOND,
        reason: "it forgot".into(),
    };
    for refusal in [quarantined, unplugged()] {
        let store = Arc::new(Gated::open());
        let (error, took, entered) = cannot_return(&store, refusal.clone()).await;
        assert_eq!(error, Error::Backend(refusal));
        assert!(took >= 3 * SECOND && took < 3 * SECOND + SECOND * 4 / 10, "{took:?}");
        assert!((10..=30).contains(&entered), "{entered}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_cannot_settle_its_last_entry_ends_on_time() {
    let store = Gated::shut(Health::Serving);
    let (error, took, entered) = cannot_return(&store, unplugged()).await;
    assert_eq!(error, Error::Backend(unplugged()));
    assert!(took >= 3 * SECOND && took < 3 * SECOND + SECOND * 4 / 10, "{took:?}");
    assert_eq!(entered, 1);
}
