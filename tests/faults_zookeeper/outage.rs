//! Many calls while the store is away.

use std::time::{Duration, Instant};

use fencepost::backend::{AcquireOutcome, Health};
use fencepost::name::LockKey;

use crate::claims::numbered;
use crate::clients::{rides_out, waits_and_watches_end};
use crate::harness::{backend, ensemble, name, namespace, replica, settings};

/// Calls on one lock are sent one after the other.
const CALLS: usize = 40;
/// All wait for a connection together, for 2 s. One after the other they would take more than a minute.
const LONGEST: Duration = Duration::from_secs(30);

// G57
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_renewals_fail_together_while_the_store_is_away() {
    let Some(mut ensemble) = ensemble(1) else { return };
    let backend = backend(settings(ensemble.addresses())).await;
    let AcquireOutcome::Held(grant) = backend.acquire(&name("a"), &numbered(1)).await.expect("it answers") else {
        panic!("it is free");
    };
    let lease = grant.lease(LockKey {
        namespace: namespace(),
        name: name("a"),
    });
    ensemble.kill_all();
    let mut health = backend.health();
    health
        .wait_for(|health| *health != Health::Serving)
        .await
        .expect("it says how it is");
    let began = Instant::now();
    let renewals = (0..CALLS).map(|_| backend.renew(&lease, None));
    for renewed in futures::future::join_all(renewals).await {
        assert!(renewed.is_err(), "{renewed:?}");
    }
    assert!(began.elapsed() < LONGEST, "{:?}", began.elapsed());
}

// G58
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_arrives_while_zookeeper_hangs_is_granted_afterwards_and_waits_and_watches_end() {
    let Some(ensemble) = ensemble(1) else { return };
    let locks = replica(&ensemble).await;
    let server = &ensemble.servers[0];
    rides_out(&locks, || server.pause(), || server.resume()).await;
    waits_and_watches_end(&locks, || server.pause()).await;
    server.resume();
}
