//! Calls that come together: what they cost, and how long they take.

use std::sync::Arc;
use std::time::Duration;

use common::ensemble::{Ensemble, Faults, Steps};
use common::seeded;
use common::storm::{lock, locks};
use fencepost_core::backend::local_clock::TokioClock;
use fencepost_core::error::Error;
use fencepost_core::locks::Acquire;
use fencepost_core::name::Mode;
use futures::future::join_all;
use tokio::time::{Instant, sleep};

use crate::requests::waits;
use crate::restored::queued;

const CROWD: usize = 300;
const READERS: usize = 30;

async fn a_crowd_lists_its_queue_a_few_times(steps: Steps, seed: u64) {
    let faults = Faults {
        delay: 500..2_000,
        ..Faults::default()
    };
    let ensemble = Ensemble::new(steps, seed, faults);
    let locks = locks(&ensemble.engine(Arc::new(TokioClock::default())).0);
    let held = locks.acquire(waits("held")).await.expect("it is free").delivered();
    let before = ensemble.lists();
    let names: Vec<_> = (0..CROWD).map(|number| number.to_string()).collect();
    let crowd = join_all(names.iter().map(|name| locks.acquire(waits(name))));
    let look = async {
        sleep(Duration::from_secs(3)).await;
        let listed = ensemble.lists() - before;
        let queue = locks.inspect(&lock(), CROWD).await.expect("it answers");
        assert_eq!(queue.waiter_count, CROWD, "all have joined");
        locks.release(&held.key).await.expect("it is held");
        listed
    };
    let (granted, listed) = tokio::join!(crowd, look);
    assert_eq!(granted.iter().flatten().count(), 1, "one after the other would be");
    assert!(listed < CROWD / 4, "{listed} lists");
}

#[test]
fn a_crowd_that_joins_a_queue_lists_it_a_few_times() {
    for steps in [Steps::AllOrNone, Steps::Independent] {
        let done = seeded::run(1, || a_crowd_lists_its_queue_a_few_times(steps, 1));
        assert_eq!(done, Ok(()), "{steps:?}");
    }
}

/// The server knows the queue, and no list has shown the semaphore claim that has joined since.
async fn kinds_share_no_queue(steps: Steps, seed: u64) {
    let ensemble = Ensemble::new(steps, seed, Faults::default());
    // Looking at a lock is another way to list it.
    let [locks, looks] = [(); 2].map(|()| locks(&ensemble.engine(Arc::new(TokioClock::default())).0));
    let held = locks.acquire(waits("held")).await.expect("it is free").delivered();
    let in_mode = |name: &str, mode| Acquire { mode, ..waits(name) };
    let others = join_all((0..9).map(|number| locks.acquire(waits(&format!("x{number}")))));
    let meanwhile = async {
        queued(&looks, 9).await;
        let semaphore = locks.acquire(in_mode("semaphore", Mode::semaphore(1, 2).expect("a mode")));
        let reader = async {
            queued(&looks, 10).await;
            let refused = locks.acquire(in_mode("reader", Mode::Shared)).await;
            assert!(
                matches!(refused, Err(Error::LimitMismatch { .. })),
                "{:?}",
                refused.is_ok()
            );
        };
        tokio::select! {
            ended = semaphore => panic!("{:?}", ended.is_ok()),
            () = reader => {}
        }
        locks.release(&held.key).await.expect("it is held");
    };
    let (granted, ()) = tokio::join!(others, meanwhile);
    assert_eq!(granted.iter().flatten().count(), 1, "one after the other would be");
}

#[test]
fn claims_that_cannot_share_a_lock_share_no_queue_that_is_known_in_part() {
    for (seed, steps) in (1..=20).flat_map(|seed| [(seed, Steps::AllOrNone), (seed, Steps::Independent)]) {
        let done = seeded::run(seed, || kinds_share_no_queue(steps, seed));
        assert_eq!(done, Ok(()), "{steps:?}");
    }
}

/// How long an answer takes, and a request.
const WAY: Duration = Duration::from_millis(10);

async fn readers_are_granted_together(seed: u64) {
    let way = u64::try_from(WAY.as_micros()).expect("it is short");
    let faults = Faults {
        delay: way..way + 1,
        ..Faults::default()
    };
    let ensemble = Ensemble::new(Steps::Independent, seed, faults);
    let locks = locks(&ensemble.engine(Arc::new(TokioClock::default())).0);
    let reads = |name: &str| Acquire {
        mode: Mode::Shared,
        ..waits(name)
    };
    let first = locks.acquire(reads("first")).await.expect("it is free").delivered();
    let names: Vec<_> = (0..READERS).map(|number| number.to_string()).collect();
    let began = Instant::now();
    let granted = join_all(names.iter().map(|name| locks.acquire(reads(name)))).await;
    let took = began.elapsed();
    assert_eq!(granted.iter().flatten().count(), READERS, "nobody is in the way");
    assert!(took < 4 * WAY, "{took:?} for {READERS} readers");
    locks.release(&first.key).await.expect("it is held");
}

#[test]
fn readers_that_come_together_are_granted_together() {
    for seed in 1..=20 {
        assert_eq!(seeded::run(seed, || readers_are_granted_together(seed)), Ok(()));
    }
}
