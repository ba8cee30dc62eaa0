//! Two servers end one lease at the same moment.

use std::sync::Arc;
use std::time::Duration;

use common::dice::Dice;
use common::ensemble::mutants::{Condition, Kind, Role};
use common::ensemble::{Ensemble, Faults, Steps};
use common::seeded;
use common::storm::{lock, locks};
use fencepost_core::backend::local_clock::TokioClock;
use tokio::time::sleep;

use crate::mutants::ABSENT;
use crate::requests::waits;

/// How many of a release and a forced release of one lease say that they ended it.
async fn ends_of_one_lease(steps: Steps, seed: u64, ignored: Option<Condition>) -> usize {
    let faults = Faults {
        delay: 0..20_000,
        ..Faults::default()
    };
    let ensemble = Ensemble::new(steps, seed, faults);
    let [one, other] = [(); 2].map(|()| locks(&ensemble.engine(Arc::new(TokioClock::default())).0));
    let held = one.acquire(waits("held")).await.expect("it is free").delivered().key;
    let shown = other.check(&lock(), held.token).await.expect("it answers");
    assert!(shown.is_some(), "the other knows it");
    ignored.into_iter().for_each(|condition| ensemble.ignore(condition));
    // The forced release reads before it ends the lease.
    let released = async {
        sleep(Dice::new(seed).time(Duration::from_millis(60))).await;
        one.release(&held).await
    };
    let lock = lock();
    let (released, forced) = tokio::join!(released, other.force_release(&lock, held.token));
    [released.is_ok(), forced.is_ok()]
        .into_iter()
        .filter(|ended| *ended)
        .count()
}

#[test]
fn a_lease_that_two_servers_end_at_once_ends_once() {
    let without = Condition {
        kind: Kind::Delete,
        role: Role::Holder,
        reason: ABSENT.to_owned(),
    };
    for steps in [Steps::AllOrNone, Steps::Independent] {
        let ends = |ignored: Option<&Condition>| -> Vec<_> {
            let ends = (1..=40).map(|seed| seeded::run(seed, || ends_of_one_lease(steps, seed, ignored.cloned())));
            ends.map(|ends| ends.expect("it ends")).collect()
        };
        assert!(ends(None).iter().all(|ends| *ends == 1), "{steps:?}");
        assert!(
            ends(Some(&without)).contains(&2),
            "{steps:?}: the condition holds nothing"
        );
    }
}
