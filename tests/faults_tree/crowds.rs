//! Calls that come together: what they cost, and how long they take.

use std::sync::Arc;
use std::time::Duration;

use common::ensemble::{Ensemble, Faults, Steps};
use common::seeded;
use common::storm::{lock, locks};
use fencepost::backend::local_clock::TokioClock;
use fencepost::locks::Acquire;
use fencepost::name::Mode;
use futures::future::join_all;
use tokio::time::{Instant, sleep};

use crate::requests::waits;

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
