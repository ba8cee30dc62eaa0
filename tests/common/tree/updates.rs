//! Changes of metadata, and the life of the lease that they are about.

use std::sync::Arc;
use std::time::Duration;

use fencepost::backend::{Backend, InspectLimit, NewClaim, RenewOutcome, UpdateOutcome};
use fencepost::claim::Cause;
use fencepost::name::{LeaseKey, Metadata, Ttl};

use crate::claims::numbered;
use crate::forwarder::{Answers, Forwarder};
use crate::harness::{Settings, addresses, backend, behind, hold, name, patient, settings, store};

/// Less than the time after which a replica gives its connection up.
const FIRST: Duration = Duration::from_secs(1);
const SECOND: Duration = Duration::from_secs(2);

async fn hold_for(backend: &dyn Backend, lock: &str, number: u128, ttl: Duration) -> LeaseKey {
    let claim = NewClaim {
        ttl: Ttl::new(ttl).expect("a positive TTL"),
        ..numbered(number)
    };
    hold(backend, lock, &claim).await
}

fn note(text: &str) -> Metadata {
    Metadata::new(vec![("note".into(), text.into())]).expect("good metadata")
}

/// A replica that has not come to delete a lease that is over deletes it, and changes nothing of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_of_a_lease_that_is_over_ends_it() {
    let Some(store) = store(1) else { return };
    let network = Forwarder::before(store.servers[0].port()).await;
    let here = backend(Settings {
        timeout: Duration::from_secs(9),
        ..patient(behind(&network), Duration::from_secs(18))
    });
    let here = here.await;
    let there = backend(settings(addresses(&store))).await;
    let begun = tokio::time::Instant::now();
    let second = hold_for(&*here, "b", 2, SECOND).await;
    let granted = tokio::time::Instant::now();
    hold_for(&*here, "a", 1, FIRST).await;
    assert!(begun.elapsed() < FIRST, "the machine stood still");
    // It waits for the answer to the first deletion when the second is due.
    network.answers(Answers::Held);
    tokio::time::sleep_until(granted + SECOND + FIRST / 10).await;
    let shown = there.inspect(&name("b"), InspectLimit::of_each(9)).await;
    assert_eq!(shown.expect("it answers").holder_count, 1, "it was deleted before");
    let update = tokio::spawn({
        let (here, second) = (Arc::clone(&here), second.clone());
        async move { here.update_metadata(&second, &note("late"), None).await }
    });
    let over = async {
        loop {
            let shown = there
                .inspect(&name("b"), InspectLimit::of_each(9))
                .await
                .expect("it answers");
            match shown.holders.first() {
                Some(holder) => assert_eq!(holder.metadata, Metadata::default(), "a lease that is over was changed"),
                None => return,
            }
            tokio::time::sleep(FIRST / 100).await;
        }
    };
    tokio::time::timeout(2 * SECOND, over).await.expect("it ends");
    network.answers(Answers::Pass);
    let updated = update.await.expect("no panic").expect("it answers");
    assert_eq!(updated, UpdateOutcome::Gone(Some(Cause::Expired)));
}

/// The replica that updates knows only the version that it wrote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_keeps_a_hold_that_another_replica_added() {
    let Some(store) = store(1) else { return };
    let here = backend(settings(addresses(&store))).await;
    let there = backend(settings(addresses(&store))).await;
    let reentrant = |number| NewClaim {
        reentrant: true,
        ..numbered(number)
    };
    let first = hold(&*here, "a", &reentrant(1)).await;
    let added = hold(&*there, "a", &reentrant(2)).await;
    let updated = here
        .update_metadata(&first, &note("new"), None)
        .await
        .expect("it answers");
    assert_eq!(updated, UpdateOutcome::Updated);
    let renewed = there.renew(&added, None).await.expect("it answers");
    assert!(matches!(renewed, RenewOutcome::Renewed(_)), "{renewed:?}");
}
