//! Leases of a server that is gone, at another one.

use std::sync::Arc;
use std::time::Duration;

use common::dice::Dice;
use common::ensemble::{Ensemble, Faults, Steps};
use common::seeded;
use common::storm::locks;
use fencepost_core::backend::local_clock::TokioClock;
use fencepost_core::locks::Acquire;
use fencepost_core::name::LockName;
use tokio::time::{Instant, sleep};

use crate::requests::waits;

/// Longer than its clients count on it after a call of a few milliseconds.
const TTL: Duration = Duration::from_secs(20);
/// How often a server reads each lease, in which no call is interested.
const READ_WITHIN: Duration = Duration::from_secs(60);
/// How long the steps take that end a lease.
const STEPS: Duration = Duration::from_secs(1);

/// A server grants a lease, and is gone. Returns how long another one ran until the lease had ended.
async fn ends_after(steps: Steps, seed: u64, waits_for_it: bool) -> Duration {
    let faults = Faults {
        delay: 0..5_000,
        ..Faults::default()
    };
    let ensemble = Ensemble::new(steps, seed, faults);
    let ask = |request: &str| Acquire {
        // Each name is in another place of the round in which a server reads leases.
        lock: LockName::new(&format!("lock {seed}")).expect("a name"),
        ttl: Some(TTL),
        wait: 2 * TTL,
        ..waits(request)
    };
    let (backend, connection) = ensemble.engine(Arc::new(TokioClock::default()));
    let gone = locks(&backend);
    gone.acquire(ask("held")).await.expect("it is free").delivered();
    connection.cut_off(true);
    sleep(Dice::new(seed).time(TTL)).await;
    let began = Instant::now();
    let other = locks(&ensemble.engine(Arc::new(TokioClock::default())).0);
    if waits_for_it {
        other.acquire(ask("next")).await.expect("it ends").delivered();
    } else {
        while !ensemble.paths("/h-").is_empty() {
            sleep(Duration::from_millis(50)).await;
        }
    }
    began.elapsed()
}

fn ends(waits_for_it: bool, judge: impl Fn(Duration)) {
    for (seed, steps) in (1..=40).flat_map(|seed| [(seed, Steps::AllOrNone), (seed, Steps::Independent)]) {
        let after = seeded::run(seed, || ends_after(steps, seed, waits_for_it));
        judge(after.unwrap_or_else(|panic| panic!("{steps:?}: {panic}")));
    }
}

// G122a, G122c, G54a
#[test]
fn a_lease_of_a_server_that_is_gone_ends_once_another_one_has_run_for_its_ttl_if_a_call_waits() {
    ends(true, |after| assert!(after >= TTL && after < TTL + STEPS, "{after:?}"));
}

// G122a, G122b
#[test]
fn a_lease_of_a_server_that_is_gone_ends_within_a_minute_and_its_ttl_if_nobody_asks_for_it() {
    ends(false, |after| {
        assert!(after >= TTL && after < READ_WITHIN + TTL + STEPS, "{after:?}");
    });
}
