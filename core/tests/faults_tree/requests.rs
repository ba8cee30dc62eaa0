//! Two calls of one request, whose reads and writes meet in any order.

use std::sync::Arc;
use std::time::Duration;

use common::dice::Dice;
use common::ensemble::{Ensemble, Faults, Steps};
use common::seeded;
use common::storm::{lock, locks};
use fencepost_core::backend::local_clock::TokioClock;
use fencepost_core::locks::Acquire;
use fencepost_core::name::{Identity, Metadata, Mode, Owner, RequestId};
use tokio::time::sleep;

/// A call that waits for ten seconds.
pub fn waits(request: &str) -> Acquire {
    Acquire {
        lock: lock(),
        owner: Owner::new("tester").expect("a name"),
        identity: Identity::anonymous(),
        mode: Mode::Exclusive,
        ttl: None,
        wait: Duration::from_secs(10),
        request_id: Some(RequestId::new(request).expect("an id")),
        reentrant: false,
        metadata: Metadata::default(),
    }
}

async fn two_calls_have_one_place(steps: Steps, seed: u64) {
    let faults = Faults {
        delay: 0..20_000,
        ..Faults::default()
    };
    let ensemble = Ensemble::new(steps, seed, faults);
    // Neither of the two knows that the lock is held.
    let [holder, one, other] = [(); 3].map(|()| locks(&ensemble.engine(Arc::new(TokioClock::default())).0));
    let held = holder.acquire(waits("held")).await.expect("it is free").delivered();
    let later = async {
        sleep(Duration::from_secs(1)).await;
        let queue = one.inspect(&lock(), 9).await.expect("it answers");
        assert_eq!(queue.waiter_count, 1, "{queue:?}");
        holder.release(&held.key).await.expect("it is held");
    };
    let again = async {
        sleep(Dice::new(seed).time(Duration::from_millis(40))).await;
        other.acquire(waits("waits")).await
    };
    let (first, again, ()) = tokio::join!(one.acquire(waits("waits")), again, later);
    let granted = [first, again].into_iter().flatten().count();
    assert_eq!(granted, 1, "the other has left its place");
}

#[test]
fn two_calls_of_one_request_have_one_place() {
    for (seed, steps) in (1..=40).flat_map(|seed| [(seed, Steps::AllOrNone), (seed, Steps::Independent)]) {
        let done = seeded::run(seed, || two_calls_have_one_place(steps, seed));
        assert_eq!(done, Ok(()), "{steps:?}");
    }
}
