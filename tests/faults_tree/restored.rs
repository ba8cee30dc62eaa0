//! An old copy of the store that is put back brings claims back, which are ahead in the queue again.

use std::sync::Arc;
use std::time::Duration;

use common::dice::Dice;
use common::ensemble::{Ensemble, Faults, Steps};
use common::seeded;
use common::storm::{lock, locks};
use fencepost::backend::local_clock::TokioClock;
use fencepost::locks::{Acquire, Locks};
use fencepost::name::Mode;
use tokio::time::sleep;

use crate::requests::waits;
use crate::storm::ServerClock;

/// Waits until so many claims wait.
pub async fn queued(locks: &Locks, count: usize) {
    while locks.inspect(&lock(), 9).await.expect("it answers").waiter_count != count {
        sleep(Duration::from_millis(20)).await;
    }
}

/// The first waiter leaves the queue and both holders end, so the second waiter is granted, unless a copy that has them is
/// put back before. Whether it was: it waits for less than the leases last that come back.
async fn is_granted_before_them(steps: Steps, seed: u64) -> bool {
    let faults = Faults {
        delay: 0..20_000,
        lag: 0..20_000,
        ..Faults::default()
    };
    let ensemble = Ensemble::new(steps, seed, faults);
    let right = TokioClock::default();
    let [one, other] = [(); 2].map(|()| locks(&ensemble.engine(Arc::new(ServerClock(right, Duration::ZERO))).0));
    let reads = async |request| {
        let ask = Acquire {
            mode: Mode::Shared,
            ..waits(request)
        };
        one.acquire(ask).await.expect("only readers hold it").delivered().key
    };
    let held = [reads("one").await, reads("other").await];
    let waits_behind = async {
        queued(&other, 1).await;
        other.acquire(waits("waits")).await
    };
    let restored = async {
        let copied = async {
            queued(&one, 2).await;
            ensemble.keep_copy();
        };
        tokio::select! {
            ended = one.acquire(waits("leaves")) => panic!("{ended:?}"),
            () = copied => {}
        }
        queued(&one, 1).await;
        let mut dice = Dice::new(seed);
        let [ended, put_back] = [100, 200].map(|most| dice.time(Duration::from_millis(most)));
        let ends = async {
            for lease in &held {
                while one.release(lease).await.is_err() {}
                sleep(ended).await;
            }
        };
        let put_back = async {
            sleep(put_back).await;
            ensemble.put_back();
        };
        tokio::join!(ends, put_back);
    };
    let (granted, ()) = tokio::join!(waits_behind, restored);
    assert_eq!(ensemble.out_of_order(), None);
    granted.is_ok()
}

#[test]
fn nobody_is_granted_ahead_of_claims_that_an_old_copy_brings_back() {
    for steps in [Steps::AllOrNone, Steps::Independent] {
        let seeds = (1..=300).map(|seed| seeded::run(seed, || is_granted_before_them(steps, seed)));
        let granted: Result<Vec<_>, _> = seeds.collect();
        let granted = granted.unwrap_or_else(|law| panic!("{steps:?}: {law}"));
        assert!(granted.contains(&true) && granted.contains(&false), "{steps:?}");
    }
}
