//! Waiters of a session that a replica gives up while the servers keep it.

use std::time::{Duration, Instant};

use fencepost::backend::zookeeper::settings::Settings;
use fencepost::backend::{AcquireOutcome, Backend, InspectLimit, NewClaim, ReleaseTarget};

use crate::claims::numbered;
use crate::harness::{backend, hold, holds, name, queue, settings, store};
use crate::raw::Connection;

/// The session that is given up.
const SHORT: Duration = Duration::from_secs(6);

/// Asks for a waiting claim, as soon as the store answers.
async fn promote(backend: &dyn Backend, claim: &NewClaim) -> AcquireOutcome {
    loop {
        match backend.promote(&name("a"), claim).await {
            Ok(outcome) => return outcome,
            Err(failure) if failure.is_transient() => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(failure) => panic!("{failure}"),
        }
    }
}

// G121
/// A server that starts again gives each session its whole timeout: the replica, which has heard nothing for that time,
/// has another one by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_a_session_that_was_given_up_keep_their_places() {
    let Some(mut ensemble) = store(1) else { return };
    let with = |session_timeout| Settings {
        session_timeout,
        ..settings(ensemble.addresses())
    };
    let here = backend(with(SHORT)).await;
    let given_up = ensemble.servers[0].sessions()[0];
    let there = backend(with(10 * SHORT)).await;
    let mut lease = hold(&*there, "a", &numbered(1)).await;
    let (first, second, third) = (numbered(2), numbered(3), numbered(4));
    for (backend, claim) in [(&here, &first), (&there, &second), (&here, &third)] {
        queue(&**backend, "a", claim).await;
    }
    ensemble.servers[0].kill9();
    tokio::time::sleep(SHORT + SHORT / 4).await;
    let restarted = Instant::now();
    ensemble.servers[0].restart();
    for (backend, claim) in [(&here, &first), (&there, &second), (&here, &third)] {
        let waits = promote(&**backend, claim).await;
        if restarted.elapsed() >= SHORT {
            println!("shows nothing: the machine stood still until the session had ended");
            return;
        }
        assert!(!holds(&waits), "{waits:?}");
    }
    let limit = InspectLimit::of_each(0);
    let queue = there.inspect(&name("a"), limit).await.expect("it answers");
    assert_eq!(queue.waiter_count, 3);
    let old = Connection::take_over(&ensemble.servers[0].address(), given_up);
    assert!(old.is_none_or(Connection::close), "it is somebody's");
    for (backend, claim) in [(&here, &first), (&there, &second), (&here, &third)] {
        there
            .release(&name("a"), ReleaseTarget::Hold(&lease), None)
            .await
            .expect("it answers");
        match promote(&**backend, claim).await {
            AcquireOutcome::Held(grant) => lease = grant.lease(lease.lock.clone()),
            other => panic!("{claim:?} is not next: {other:?}"),
        }
    }
}
