//! An old copy of the store that is put back brings claims back, which are ahead in the queue again, and versions that are
//! written a second time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use common::dice::Dice;
use common::ensemble::{Ensemble, Faults, Steps};
use common::seeded;
use common::storm::{lock, locks};
use fencepost_core::backend::local_clock::TokioClock;
use fencepost_core::error::Error;
use fencepost_core::locks::{Acquire, Locks};
use fencepost_core::name::{Metadata, Mode};
use tokio::time::{Instant, sleep, sleep_until};

use crate::requests::waits;
use crate::storm::ServerClock;

/// Asks until the store answers: connections end when a copy is put back.
async fn until_answered<T: fmt::Debug>(ask: impl AsyncFn() -> Result<T, Error>) {
    while let Err(error) = ask().await {
        assert!(matches!(error, Error::Backend(_)), "{error}");
    }
}

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
                until_answered(async || one.release(lease).await).await;
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
        let seeds = (1..=100).map(|seed| seeded::run(seed, || is_granted_before_them(steps, seed)));
        let granted: Result<Vec<_>, _> = seeds.collect();
        let granted = granted.unwrap_or_else(|law| panic!("{steps:?}: {law}"));
        assert!(granted.contains(&true) && granted.contains(&false), "{steps:?}");
    }
}

/// A server renews a lease, and is away when a copy without that renewal is put back, in which another server renews the
/// lease for longer: as the same version. It comes back when the lease as it knew it is over, or is updated shortly before.
async fn outlives_the_renewal_that_is_gone(steps: Steps, seed: u64, is_updated: bool) {
    const LIFE: Duration = Duration::from_secs(4);
    let faults = Faults {
        delay: 0..20_000,
        lag: 0..20_000,
        ..Faults::default()
    };
    let ensemble = Ensemble::new(steps, seed, faults);
    let engine = || ensemble.engine(Arc::new(TokioClock::default()));
    let ((backend, away), other) = (engine(), locks(&engine().0));
    let one = locks(&backend);
    let ask = Acquire {
        ttl: Some(LIFE),
        ..waits("held")
    };
    let lease = one.acquire(ask).await.expect("it is free").delivered().key;
    ensemble.keep_copy();
    let mut dice = Dice::new(seed);
    // The number of a transaction is a version there: which of these the other server's renewal meets, depends on what else
    // it writes.
    let renewals = match steps {
        Steps::AllOrNone => 1,
        Steps::Independent => dice.below(8) + 1,
    };
    for _ in 0..renewals {
        one.renew(&lease, Some(LIFE)).await.expect("it is held");
    }
    let renewed = Instant::now();
    away.cut_off(true);
    ensemble.put_back();
    until_answered(async || other.renew(&lease, Some(10 * LIFE)).await).await;
    let jitter = dice.time(LIFE / 8);
    if is_updated {
        sleep_until(renewed + LIFE * 3 / 4 + jitter).await;
        let metadata = Metadata::default();
        let update = one.update_metadata(&lease, &metadata);
        let back = async { away.cut_off(false) };
        let (updated, ()) = tokio::join!(update, back);
        updated.expect("it is held");
    } else {
        sleep_until(renewed + LIFE + jitter).await;
        away.cut_off(false);
    }
    let shown = async || other.inspect(&lock(), 9).await.expect("it answers").holders;
    assert!(
        shown().await.iter().all(|lease| lease.remaining > LIFE),
        "it is shorter"
    );
    sleep(LIFE).await;
    assert_eq!(shown().await.len(), 1, "a lease that lives was ended");
    one.release(&lease).await.expect("it is held");
}

#[test]
fn a_lease_that_another_server_renewed_as_the_same_version_lives_on() {
    for seed in 1..=60 {
        let steps = [Steps::AllOrNone, Steps::Independent][seed as usize % 2];
        for is_updated in [false, true] {
            let done = seeded::run(seed, || outlives_the_renewal_that_is_gone(steps, seed, is_updated));
            assert_eq!(done, Ok(()), "{steps:?}, updated: {is_updated}");
        }
    }
}
