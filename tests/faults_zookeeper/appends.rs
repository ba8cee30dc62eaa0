//! Appends to the queue, and the release after them.

use std::sync::{Arc, Mutex};

use fencepost::backend::{AcquireOutcome, ReleaseTarget};
use fencepost::name::LockKey;
use futures::{StreamExt, join, poll};

use crate::claims::numbered;
use crate::forwarder::Forwarder;
use crate::harness::{backend, name, namespace, settings, store};
use crate::requests::{Kind, requests};

/// A session begins a release as soon as the appends before it are ordered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_is_sent_after_the_append_that_is_ordered_before_it() {
    const ROUNDS: u128 = 40;
    let Some(ensemble) = store(1) else { return };
    let network = Forwarder::before(ensemble.servers[0].port()).await;
    let written = Arc::new(Mutex::new((Vec::new(), Vec::new())));
    let seen = Arc::clone(&written);
    // It looks at what passes, and holds nothing.
    network.holds(move |part| {
        let mut seen = seen.lock().expect("no panic");
        seen.0.extend(part);
        let begun = std::mem::take(&mut seen.0);
        let (requests, rest) = requests(&begun);
        let operations = requests.into_iter().filter_map(|request| request.operations);
        seen.1
            .extend(operations.flatten().map(|operation| (operation.kind, operation.path)));
        seen.0 = rest.to_vec();
        false
    });
    let backend = backend(settings(vec![network.address()])).await;
    let (lock, mut ordered) = (name("a"), 0);
    for round in 0..ROUNDS {
        let acquired = backend.acquire(&lock, &numbered(2 * round + 1)).await;
        let Ok(AcquireOutcome::Held(held)) = acquired else {
            panic!("round {round}: {acquired:?}");
        };
        let lease = held.lease(LockKey {
            namespace: namespace(),
            name: lock.clone(),
        });
        // A lock that is watched is known.
        let mut watch = backend.watch(&lock);
        watch.next().await.expect("a state").expect("it answers");
        written.lock().expect("no panic").1.clear();
        let newcomer = numbered(2 * round + 2);
        let mut acquire = backend.acquire(&lock, &newcomer);
        assert!(poll!(&mut acquire).is_pending());
        let is_ordered = backend.orders_acquires(&lock);
        let release = backend.release(&lock, ReleaseTarget::Hold(&lease), None);
        let (acquired, released) = join!(acquire, release);
        acquired.expect("it answers");
        released.expect("it answers");
        if is_ordered {
            ordered += 1;
            let written = &written.lock().expect("no panic").1;
            let first = |kind, child: &str| {
                written
                    .iter()
                    .position(|(one, path)| *one == kind && path.contains(child))
            };
            let (append, end) = (first(Kind::Create, "/q-"), first(Kind::Delete, "/h-"));
            assert!(append.is_some() && append < end, "round {round}: {written:?}");
        }
        let target = ReleaseTarget::Call(&newcomer.id, newcomer.call);
        backend.release(&lock, target, None).await.expect("it answers");
    }
    println!("{ordered} of {ROUNDS} were ordered");
    assert!(ordered > 0);
}
