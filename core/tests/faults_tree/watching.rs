//! What a server learns of a lock whose waiters it has: when another one releases it, also after its connection broke.

use std::sync::Arc;
use std::time::Duration;

use common::dice::Dice;
use common::ensemble::{Ensemble, Faults, Steps};
use common::seeded;
use common::storm::{lock, locks};
use fencepost_core::backend::WatchEvent;
use fencepost_core::backend::local_clock::TokioClock;
use futures::StreamExt;
use tokio::time::{Instant, sleep};

use crate::requests::waits;
use crate::restored::queued;

/// Far less than the time after which a server lists a lock again although it was told nothing.
const SOON: Duration = Duration::from_secs(1);

/// Waits for a release and for the grant of a waiter.
async fn is_soon_after(released: impl Future<Output = Instant>, granted: impl Future<Output = Instant>) {
    let (released, granted) = tokio::join!(released, granted);
    let after = granted.saturating_duration_since(released);
    assert!(after < SOON, "it was told {after:?} after the release");
}

/// Runs this with each kind of steps and many seeds.
fn each<F: Future<Output = ()>>(run: impl Fn(Steps, u64) -> F + Send + Sync) {
    for (seed, steps) in (1..=300).flat_map(|seed| [(seed, Steps::AllOrNone), (seed, Steps::Independent)]) {
        let done = seeded::run(seed, || run(steps, seed));
        assert_eq!(done, Ok(()), "{steps:?}");
    }
}

/// The lock is released while a waiter of another server joins the queue, and sets the watch of its server.
async fn a_waiter_is_told(steps: Steps, seed: u64) {
    let faults = Faults {
        delay: 0..20_000,
        lag: 0..200_000,
        ..Faults::default()
    };
    let ensemble = Ensemble::new(steps, seed, faults);
    let [holder, other] = [(); 2].map(|()| locks(&ensemble.engine(Arc::new(TokioClock::default())).0));
    let held = holder.acquire(waits("held")).await.expect("it is free").delivered();
    let released = async {
        sleep(Dice::new(seed).time(Duration::from_millis(200))).await;
        holder.release(&held.key).await.expect("it is held");
        Instant::now()
    };
    let granted = async {
        other.acquire(waits("waits")).await.expect("it is free").delivered();
        Instant::now()
    };
    is_soon_after(released, granted).await;
}

#[test]
fn a_waiter_is_told_of_a_release_that_meets_its_first_list() {
    each(a_waiter_is_told);
}

/// The first waiter leaves the queue, so the server of the other lists the lock, and all connections break meanwhile.
async fn a_waiter_is_told_after_a_cut(steps: Steps, seed: u64) {
    let faults = Faults {
        delay: 0..20_000,
        lag: 0..20_000,
        late: 1_000,
        later: 0..400_000,
        ..Faults::default()
    };
    let ensemble = Ensemble::new(steps, seed, faults);
    let [holder, other] = [(); 2].map(|()| locks(&ensemble.engine(Arc::new(TokioClock::default())).0));
    let held = holder.acquire(waits("held")).await.expect("it is free").delivered();
    let released = async {
        tokio::select! {
            ended = holder.acquire(waits("leaves")) => panic!("{ended:?}"),
            () = queued(&holder, 2) => {}
        }
        sleep(Dice::new(seed).time(Duration::from_millis(60))).await;
        ensemble.cut_all();
        sleep(Duration::from_millis(500)).await;
        holder.release(&held.key).await.expect("the connection is back");
        Instant::now()
    };
    let granted = async {
        queued(&other, 1).await;
        other.acquire(waits("waits")).await.expect("it is free").delivered();
        Instant::now()
    };
    is_soon_after(released, granted).await;
}

#[test]
fn a_waiter_is_told_of_a_release_after_a_list_of_its_lock_was_cut() {
    each(a_waiter_is_told_after_a_cut);
}

/// A lock is granted to another claim while the connection of a server that watches it is broken.
async fn a_watch_shows_the_state_after_a_cut(steps: Steps, seed: u64) {
    let faults = Faults {
        delay: 0..20_000,
        lag: 0..20_000,
        ..Faults::default()
    };
    let ensemble = Ensemble::new(steps, seed, faults);
    let holder = locks(&ensemble.engine(Arc::new(TokioClock::default())).0);
    let (backend, connection) = ensemble.engine(Arc::new(TokioClock::default()));
    let watcher = locks(&backend);
    let mut watch = watcher.watch(&lock());
    let first = watch.next().await.expect("the state").expect("it answers");
    assert!(matches!(first, WatchEvent::State(_)), "{first:?}");
    connection.cut_off(true);
    sleep(Dice::new(seed).time(Duration::from_millis(200))).await;
    let held = holder.acquire(waits("held")).await.expect("it is free").delivered();
    connection.cut_off(false);
    loop {
        match watch.next().await.expect("it goes on").expect("it answers") {
            WatchEvent::State(queue) if queue.holders.iter().any(|holder| holder.token == held.key.token) => return,
            WatchEvent::State(_) => {}
            WatchEvent::Change(change) => panic!("a change after a gap: {change:?}"),
        }
    }
}

// G36c, G61a
#[test]
fn a_watch_shows_the_state_again_after_its_connection_was_away() {
    each(a_watch_shows_the_state_after_a_cut);
}
