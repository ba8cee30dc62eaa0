//! Acquires whose first step meets a store that does not serve.

use std::io;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinHandle;

use super::blocking_store::{BlockingStore, HOUR, locks_over, unplugged};
use super::*;
use crate::backend::Notification;

fn unsent() -> BackendError {
    BackendError::NotSent {
        reason: "unplugged".into(),
    }
}

fn quarantined(left: Duration) -> BackendError {
    let reason = "it lost its data".into();
    BackendError::Quarantined { left, reason }
}

/// Locks over a store that refuses each acquire with this error.
fn locks_refused(error: BackendError) -> (Locks, Arc<BlockingStore>) {
    let store = Arc::new(BlockingStore::serving());
    *store.refusal.lock().unwrap() = Some(error);
    (locks_over(&store), store)
}

fn serve_again(store: &BlockingStore) {
    *store.refusal.lock().unwrap() = None;
}

async fn error_of(call: JoinHandle<Result<Lease, Error>>) -> (Error, Duration) {
    let began = Instant::now();
    (call.await.unwrap().unwrap_err(), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_wait_rides_out_an_outage_in_which_it_arrives() {
    for error in [unsent(), unplugged(), quarantined(2 * SECOND)] {
        let (locks, store) = locks_refused(error.clone());
        let call = waiting(&locks, request("a", 60 * SECOND));
        sleep(SECOND * 28 / 10).await;
        assert!(!call.is_finished(), "{error}");
        serve_again(&store);
        let lease = call.await.unwrap().unwrap();
        // Counted from the arrival, as the promise of the lease's life demands.
        assert_eq!(lease.waited.as_millis() / 100, 28, "{error}");
        assert_eq!((counts(&locks).await, locks.state.undos.len()), ((1, 0), 0), "{error}");
    }
}

// G58
#[tokio::test(start_paused = true)]
async fn a_wait_fails_after_five_seconds_of_an_outage() {
    for error in [unsent(), unplugged()] {
        let (locks, store) = locks_refused(error.clone());
        let (seen, took) = error_of(waiting(&locks, request("a", 60 * SECOND))).await;
        assert_eq!((seen, took.as_secs()), (Error::Backend(error), 5));
        assert!((20..=60).contains(&store.acquires.load(Ordering::SeqCst)), "it pauses");
    }
}

// G57
#[tokio::test(start_paused = true)]
async fn a_store_that_answers_late_fails_a_wait_within_ten_seconds() {
    let (locks, store) = locks_refused(unplugged());
    *store.acquire_takes.lock().unwrap() = 4 * SECOND;
    let (seen, took) = error_of(waiting(&locks, request("a", 60 * SECOND))).await;
    assert_eq!(seen, Error::Backend(unplugged()));
    assert!(took < 10 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_fails_at_once_in_an_outage_that_is_too_long() {
    // One that began 5 s ago, and one that is known to last on.
    let (locks, store) = locks_refused(unsent());
    store.health.send_replace(Health::unavailable("unplugged"));
    sleep(5 * SECOND).await;
    let (seen, took) = error_of(waiting(&locks, request("a", 60 * SECOND))).await;
    assert_eq!((seen, took), (Error::Backend(unsent()), Duration::ZERO));
    let lasting = quarantined(6 * SECOND);
    let (locks, _store) = locks_refused(lasting.clone());
    let (seen, took) = error_of(waiting(&locks, request("a", 60 * SECOND))).await;
    assert_eq!((seen, took), (Error::Backend(lasting), Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn an_outage_begins_anew_after_the_store_has_served() {
    let (locks, store) = locks_refused(unsent());
    for health in [
        Health::unavailable("unplugged"),
        Health::Serving,
        Health::unavailable("unplugged again"),
        Health::Quarantined {
            until: Instant::now(),
            reason: "it lost its data".into(),
        },
    ] {
        store.health.send_replace(health);
        sleep(3 * SECOND).await;
    }
    // Unavailable for 3 s, then in quarantine for 3 s: one outage.
    let (_, took) = error_of(waiting(&locks, request("a", 60 * SECOND))).await;
    assert_eq!(took, Duration::ZERO);
    store.health.send_replace(Health::Serving);
    sleep(SECOND).await;
    store.health.send_replace(Health::unavailable("once more"));
    sleep(SECOND).await;
    let (_, took) = error_of(waiting(&locks, request("a", 60 * SECOND))).await;
    assert_eq!(took.as_secs(), 4);
}

/// How long after the beginning of an outage each of three waiters of one lock fails, and why.
async fn ends_of_waiters(begin: impl FnOnce(&BlockingStore)) -> Vec<(Error, Duration)> {
    let store = Arc::new(BlockingStore::serving());
    let locks = locks_over(&store);
    let _held = hold(&locks, "one").await;
    let calls = ["two", "three", "four"].map(|owner| waiting(&locks, request(owner, 60 * SECOND)));
    sleep(SECOND / 10).await;
    begin(&store);
    store.health.send_replace(Health::unavailable("unplugged"));
    let began = Instant::now();
    let mut ends = Vec::new();
    for call in calls {
        let (error, _) = error_of(call).await;
        ends.push((error, began.elapsed()));
    }
    ends
}

// G58
#[tokio::test(start_paused = true)]
async fn all_waiters_fail_after_five_seconds_of_an_outage() {
    let hangs = ends_of_waiters(|store| *store.promote_takes.lock().unwrap() = HOUR).await;
    let fails = ends_of_waiters(|store| store.fail(Some(unplugged()))).await;
    for (error, took) in hangs.into_iter().chain(fails) {
        assert!(
            matches!(error, Error::Backend(BackendError::Unavailable { .. })),
            "{error}"
        );
        assert_eq!(took.as_secs(), 5, "{error}");
    }
}

/// A store in an outage, its locks, and a call that waits for the lock of this lease.
async fn waits_in_an_outage() -> (Arc<BlockingStore>, Locks, Lease, JoinHandle<Result<Lease, Error>>) {
    let store = Arc::new(BlockingStore::serving());
    let locks = locks_over(&store);
    let held = hold(&locks, "one").await;
    let call = waiting(&locks, request("two", 60 * SECOND));
    sleep(SECOND / 10).await;
    store.health.send_replace(Health::unavailable("unplugged"));
    (store, locks, held, call)
}

#[tokio::test(start_paused = true)]
async fn a_step_that_follows_a_failed_one_is_given_up_after_five_seconds_of_the_outage() {
    let (store, _locks, _held, call) = waits_in_an_outage().await;
    store.fail(Some(unplugged()));
    let began = Instant::now();
    sleep(SECOND * 35 / 10).await;
    *store.promote_takes.lock().unwrap() = HOUR;
    assert_eq!(error_of(call).await.0, Error::Backend(unplugged()));
    assert_eq!(began.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_wait_goes_on_if_the_store_serves_its_lock_in_an_outage() {
    let (store, locks, held, call) = waits_in_an_outage().await;
    let promotes = store.promotes.load(Ordering::SeqCst);
    *store.promote_takes.lock().unwrap() = SECOND * 2;
    for _ in 0..30 {
        locks.renew(&held.key, None).await.unwrap();
        sleep(SECOND).await;
    }
    assert!(!call.is_finished());
    assert!(store.promotes.load(Ordering::SeqCst) > promotes + 2, "it asked");
    // An interruption of the lock itself is tolerated also then.
    *store.promote_takes.lock().unwrap() = Duration::ZERO;
    store.fail(Some(unplugged()));
    locks.state.waiters.deliver(&Notification::Gap);
    sleep(SECOND * 25 / 10).await;
    store.fail(None);
    locks.release(&held.key).await.unwrap();
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_in_an_outage_says_so() {
    let (locks, _store) = locks_refused(unsent());
    let (seen, took) = error_of(waiting(&locks, request("a", SECOND))).await;
    assert_eq!((seen, took), (Error::Backend(unsent()), SECOND));
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_claim_a_retry_has_found_does_not_take_it_back() {
    let (locks, store) = locks_refused(unplugged());
    store.blocked.store(true, Ordering::SeqCst);
    let first = waiting(&locks, retry("a", 60 * SECOND));
    sleep(SECOND).await;
    serve_again(&store);
    let found = locks.acquire(retry("a", 60 * SECOND)).await.unwrap().delivered();
    store.unblock();
    assert_eq!(first.await.unwrap(), Err(Error::Superseded));
    locks.renew(&found.key, None).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_takes_effect_when_the_store_has_taken_it_up() {
    let (locks, store) = locks_refused(unsent());
    let (progress, mut told) = unbounded_channel();
    let control = WaitControl {
        number: 1,
        arrived: Instant::now(),
        progress,
        cancelled: CancellationToken::new(),
    };
    let call = locks
        .wait_for(request("a", 60 * SECOND), (Some(Box::new(control)), None), None)
        .unwrap();
    let call = tokio::spawn(async move { call.await.map(UndeliveredGrant::delivered) });
    sleep(SECOND).await;
    assert!(told.try_recv().is_err());
    serve_again(&store);
    call.await.unwrap().unwrap();
    assert_eq!(told.try_recv(), Ok((1, WaitProgress::Enqueued)));
}

fn is_unplugged(seen: Option<&Result<WatchEvent, Error>>) -> bool {
    matches!(seen, Some(Err(Error::Backend(error))) if *error == unplugged())
}

fn is_state(seen: Option<&Result<WatchEvent, Error>>) -> bool {
    matches!(seen, Some(Ok(WatchEvent::State(_))))
}

/// A watch of a lock that nobody uses, and its first event, of a store whose watches fail from now on.
async fn broken_watch(store: &Arc<BlockingStore>) -> BoxStream<'static, Result<WatchEvent, Error>> {
    let mut watch = locks_over(store).watch(&name());
    let first = watch.next().await;
    assert!(is_state(first.as_ref()), "{first:?}");
    store.watch_fails.store(true, Ordering::SeqCst);
    store.watch_breaks.notify_waiters();
    watch
}

// G43c
#[tokio::test(start_paused = true)]
async fn an_acquire_that_the_store_refuses_at_first_counts_from_its_second_sending() {
    let (locks, store) = locks_refused(unsent());
    let first = waiting(&locks, request("first", 60 * SECOND));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(store.acquires.load(Ordering::SeqCst), 1, "it was sent, and refused");
    serve_again(&store);
    let second = hold(&locks, "second").await;
    sleep(SECOND).await;
    assert_eq!(
        counts(&locks).await,
        (1, 1),
        "the first one was sent again, behind the second"
    );
    locks.release(&second.key).await.unwrap();
    assert!(first.await.unwrap().unwrap().key.token > second.key.token);
}

// G61a
#[tokio::test(start_paused = true)]
async fn a_watch_shows_the_queue_again_after_a_short_outage() {
    let store = Arc::new(BlockingStore::serving());
    let mut watch = broken_watch(&store).await;
    assert!(timeout(3 * SECOND, watch.next()).await.is_err(), "it tries again");
    store.watch_fails.store(false, Ordering::SeqCst);
    let again = timeout(SECOND, watch.next()).await.expect("it is back");
    assert!(is_state(again.as_ref()), "{again:?}");
}

// G61b
#[tokio::test(start_paused = true)]
async fn a_watch_ends_after_four_seconds_of_an_outage() {
    let store = Arc::new(BlockingStore::serving());
    let mut watch = broken_watch(&store).await;
    let began = Instant::now();
    let last = watch.next().await;
    assert!(is_unplugged(last.as_ref()), "{last:?}");
    let took = began.elapsed();
    assert!((3 * SECOND..=4 * SECOND).contains(&took), "{took:?}");
    assert!(watch.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_watch_whose_store_hangs_ends_unless_the_store_shows_the_lock() {
    for serves_the_lock in [true, false] {
        let store = Arc::new(BlockingStore::serving());
        let mut watch = locks_over(&store).watch(&name());
        assert!(is_state(watch.next().await.as_ref()));
        store.inspect_fails.store(!serves_the_lock, Ordering::SeqCst);
        store.health.send_replace(Health::unavailable("unplugged"));
        let next = timeout(20 * SECOND, watch.next()).await;
        match serves_the_lock {
            true => assert!(next.is_err(), "{next:?}"),
            false => assert!(is_unplugged(next.expect("it ends").as_ref())),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_if_the_store_hangs_for_less_than_four_seconds() {
    let store = Arc::new(BlockingStore::serving());
    let mut watch = locks_over(&store).watch(&name());
    assert!(is_state(watch.next().await.as_ref()));
    store.inspect_fails.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        store.health.send_replace(Health::unavailable("unplugged"));
        assert!(timeout(3 * SECOND, watch.next()).await.is_err());
        store.health.send_replace(Health::Serving);
        assert!(timeout(3 * SECOND, watch.next()).await.is_err());
    }
}

// G57
#[tokio::test(start_paused = true)]
async fn calls_of_a_store_that_answers_none_fail_within_ten_seconds() {
    let store = BlockingStore::blocked(Health::Serving);
    let locks = locks_over(&store);
    let lease = hold(&locks, "a").await;
    store.hangs.store(true, Ordering::SeqCst);
    for takes in [&store.acquire_takes, &store.renew_takes] {
        *takes.lock().unwrap() = HOUR;
    }
    let (name, key, began) = (name(), &lease.key, Instant::now());
    let page = PageRequest { after: None, size: 9 };
    let metadata = Metadata::default();
    let failed = tokio::join!(
        async { locks.acquire(request("b", Duration::ZERO)).await.map(drop) },
        async { locks.renew(key, None).await.map(drop) },
        locks.release(key),
        locks.force_release(&name, key.token),
        locks.update_metadata(key, &metadata),
        async { locks.inspect(&name, 9).await.map(drop) },
        async { locks.check(&name, key.token).await.map(drop) },
        async { locks.list("", page).await.map(drop) },
    );
    assert!(began.elapsed() < 10 * SECOND);
    let (acquired, renewed, released, forced, updated, shown, checked, listed) = failed;
    for failed in [acquired, renewed, released, forced, updated, shown, checked, listed] {
        assert!(
            matches!(failed, Err(Error::Backend(BackendError::Unavailable { .. }))),
            "{failed:?}"
        );
    }
}

/// What is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_serve_from_the_start_is_logged_once() {
    let (until, reason) = (Instant::now() + HOUR, "it is empty".into());
    for (health, told) in [
        (
            Health::Quarantined { until, reason },
            Some("grants nothing for another"),
        ),
        (Health::unavailable("no connection"), Some("the store does not serve")),
        (Health::Serving, None),
    ] {
        let log = Log::default();
        let writer = log.clone();
        let lines = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        let heard = tracing::subscriber::set_default(lines);
        let locks = locks_over(&BlockingStore::blocked(health));
        sleep(HOUR / 2).await;
        drop((heard, locks));
        let said = String::from_utf8(log.0.lock().clone()).unwrap();
        assert_eq!(said.lines().count(), usize::from(told.is_some()), "{said}");
        assert!(told.is_none_or(|told| said.contains(told)), "{said}");
    }
}

// G57
#[tokio::test(start_paused = true)]
async fn a_removal_that_is_answered_says_that_the_store_is_busy_to_waits_of_its_own_lock_alone() {
    let on = |lock: &LockName, owner, wait| Acquire {
        lock: lock.clone(),
        ..request(owner, wait)
    };
    let other = LockName::new("other").unwrap();
    let (earlier, later) = (SECOND * 9 / 10, SECOND * 11 / 10);
    for (answered, at, knows, is_busy) in [
        (name(), later, false, true),
        (name(), earlier, false, false),
        (name(), later, true, false),
        (other, later, false, false),
    ] {
        let store = BlockingStore::blocked(Health::Serving);
        store.knows.store(knows, Ordering::SeqCst);
        let locks = locks_over(&store);
        for lock in [&name(), &answered] {
            let held = locks.acquire(on(lock, "holder", Duration::ZERO)).await;
            let _ = held.map(UndeliveredGrant::delivered);
        }
        let is_wait_timeout = |ended: Result<UndeliveredGrant, Error>| matches!(ended, Err(Error::WaitTimeout { .. }));
        let silent = locks.acquire(on(&name(), "b", SECOND));
        let told = locks.acquire(on(&answered, "c", at));
        let answers = async {
            sleep(at - SECOND / 20).await;
            *store.passing.lock().unwrap() = Some(answered.clone());
        };
        let (silent, told, ()) = tokio::join!(silent, told, answers);
        let ended = (is_wait_timeout(silent), is_wait_timeout(told));
        assert_eq!(ended, (is_busy, true), "{answered} at {at:?}, {knows}");
    }
}
