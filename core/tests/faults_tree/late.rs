//! Grants that a broken connection left behind: they arrive after the call has ended and was undone, or their answer is lost.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use common::ensemble::mutants::{Condition, Kind, Role};
use common::ensemble::{Ensemble, Faults, Steps};
use common::seeded;
use common::storm::{lock, locks};
use fencepost_core::backend::InspectLimit;
use fencepost_core::backend::local_clock::TokioClock;
use fencepost_core::claim::Queue;
use fencepost_core::locks::Acquire;
use tokio::time::sleep;

use crate::mutants::{ABSENT, OTHER};
use crate::requests::waits;
use crate::storm::ServerClock;

/// The connection breaks, the client comes back at once or after the life of its session, and the grant arrives so much
/// later.
async fn a_late_grant_has_no_effect(
    steps: Steps,
    seed: u64,
    (away, later): (u64, Range<u64>),
    ignored: Option<Condition>,
) {
    let delay = 0..5_000;
    let calm = Faults {
        delay: delay.clone(),
        ..Faults::default()
    };
    let ensemble = Ensemble::new(steps, seed, calm.clone());
    let (clock, limit) = (TokioClock::default(), InspectLimit::of_each(9));
    let server = |ahead| ensemble.engine(Arc::new(ServerClock(clock, ahead))).0;
    // A server that is ahead has raised the base, so that the other one finds it as it was, and has the fence alone.
    let (ahead, behind) = (server(Duration::from_secs(600)), server(Duration::ZERO));
    for (number, server) in [&ahead, &behind, &ahead, &behind].into_iter().enumerate() {
        let locks = locks(server);
        let held = locks
            .acquire(waits(&number.to_string()))
            .await
            .expect("it is free")
            .delivered();
        locks.release(&held.key).await.expect("it is held");
    }
    if let Some(condition) = ignored {
        ensemble.ignore(condition);
    }
    let granted = locks(&behind);
    ensemble.set_faults(Faults {
        delay,
        cut: 1_000,
        late: 1_000,
        later,
        away,
        ..Faults::default()
    });
    let calms = async {
        sleep(Duration::from_millis(60)).await;
        ensemble.set_faults(calm);
    };
    let ask = Acquire {
        wait: Duration::ZERO,
        ttl: Some(Duration::from_secs(600)),
        ..waits("late")
    };
    let (ended, ()) = tokio::join!(granted.acquire(ask), calms);
    drop(ended);
    sleep(Duration::from_secs(30)).await;
    let left = behind.inspect(&lock(), limit).await.expect("it answers");
    assert_eq!(left, Queue::default(), "it took effect");
}

const SEEDS: u64 = if cfg!(feature = "soak") { 500 } else { 40 };

/// The first law that a seed breaks, if the fence refuses nothing for this reason.
fn broken(away: u64, later: &Range<u64>, ignored: Option<&str>) -> Option<String> {
    let mut seeds = (1..=SEEDS).flat_map(|seed| [(seed, Steps::AllOrNone), (seed, Steps::Independent)]);
    seeds.find_map(|(seed, steps)| {
        let law = seeded::run(seed, || {
            let ignored = ignored.map(|reason| Condition {
                kind: Kind::Check,
                role: Role::Fence,
                reason: reason.to_owned(),
            });
            a_late_grant_has_no_effect(steps, seed, (away, later.clone()), ignored)
        });
        law.err().map(|law| format!("{steps:?}: {law}"))
    })
}

#[test]
fn what_arrives_late_over_a_connection_that_was_left_has_no_effect() {
    let later = 100_000..3_000_000;
    assert_eq!(broken(0, &later, None), None);
    assert!(broken(0, &later, Some(OTHER)).is_some(), "the fence keeps it out");
}

#[test]
fn what_arrives_late_of_a_session_that_was_replaced_while_it_lived_has_no_effect() {
    let later = 6_000_000..8_000_000;
    assert_eq!(broken(1_000, &later, None), None);
    assert!(broken(1_000, &later, Some(ABSENT)).is_some(), "the fence keeps it out");
}

/// A waiter is granted, and the answer is lost. While its server is away, another one ends the hold and grants a larger
/// token, and then a copy of the store is put back that has the hold.
async fn a_hold_of_an_old_copy_is_granted_anew(steps: Steps, seed: u64) {
    let lag = 2_000..2_001;
    let faults = |unanswered| Faults {
        unanswered,
        lag: lag.clone(),
        ..Faults::default()
    };
    let ensemble = Ensemble::new(steps, seed, faults(0));
    let right = TokioClock::default();
    let clock = || Arc::new(ServerClock(right, Duration::ZERO));
    let ((server, connection), other) = (ensemble.engine(clock()), locks(&ensemble.engine(clock()).0));
    let server = locks(&server);
    let held = other.acquire(waits("held")).await.expect("it is free").delivered();
    let meanwhile = async {
        sleep(Duration::from_secs(1)).await;
        other.release(&held.key).await.expect("it is held");
        // The waiter's server learns of it, and its next request is the grant.
        ensemble.set_faults(faults(1_000));
        sleep(Duration::from_millis(10)).await;
        connection.cut_off(true);
        ensemble.set_faults(faults(0));
        ensemble.keep_copy();
        let queue = other.inspect(&lock(), 9).await.expect("it answers");
        let lost = queue.holders.first().expect("it took effect").token;
        other.force_release(&lock(), lost).await.expect("it is held");
        let next = other.acquire(waits("next")).await.expect("it is free").delivered();
        other.release(&next.key).await.expect("it is held");
        ensemble.put_back();
        connection.cut_off(false);
        next.key.token
    };
    let (granted, next) = tokio::join!(server.acquire(waits("lost")), meanwhile);
    let granted = granted.expect("the store is back").delivered().key.token;
    assert!(granted > next, "{granted} was answered after {next}");
}

#[test]
fn a_grant_whose_answer_was_lost_is_above_all_that_were_answered_meanwhile() {
    for (seed, steps) in (1..=50).flat_map(|seed| [(seed, Steps::AllOrNone), (seed, Steps::Independent)]) {
        let done = seeded::run(seed, || a_hold_of_an_old_copy_is_granted_anew(steps, seed));
        assert_eq!(done, Ok(()), "{steps:?}");
    }
}
