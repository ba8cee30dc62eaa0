//! Claims with many holds, whose ends do not fit into one request.

use std::time::Duration;

use fencepost::backend::zookeeper::settings::Settings;
use fencepost::backend::{AcquireOutcome, ClaimLimits, NewClaim, Refusal};
use fencepost::claim::Cause;
use fencepost::name::{Owner, Ttl};

use crate::claims::{ROOMY, numbered};
use crate::harness::{READY, backend, holds, name, settings};
use crate::servers::{Ensemble, Options, found, program};

/// The servers cut a connection that sends more at once.
const MAX_BUFFER: usize = 128 * 1024;
/// The records of so many ends are larger together.
const HOLDS: u128 = 100;
const TTL: Duration = Duration::from_secs(5);

fn ensemble() -> Option<Ensemble> {
    found(program()).map(|program| {
        let flags = vec![format!("-Djute.maxbuffer={MAX_BUFFER}")];
        let options = Options {
            flags,
            ..Options::default()
        };
        Ensemble::start_of(program, 1, &options)
    })
}

/// One more hold of the claim; the limit is that of the size.
fn hold(number: u128) -> NewClaim {
    NewClaim {
        reentrant: true,
        retryable: true,
        owner: Owner::new(&"o".repeat(256)).expect("a good owner"),
        ttl: Ttl::new(TTL).expect("a positive TTL"),
        limits: ClaimLimits {
            holds: 100_000,
            ..ROOMY
        },
        ..numbered(number)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_with_many_holds_expires_and_each_end_is_remembered() {
    let Some(ensemble) = ensemble() else { return };
    let backend = backend(Settings {
        max_request: MAX_BUFFER / 2,
        ..settings(ensemble.addresses())
    })
    .await;
    let lock = name(&"l".repeat(512));
    for number in 1..=HOLDS {
        let held = backend.acquire(&lock, &hold(number)).await.expect("it answers");
        assert!(holds(&held), "{held:?}");
    }
    let next = numbered(HOLDS + 1);
    let waits = backend.acquire(&lock, &next).await.expect("it answers");
    assert!(!holds(&waits), "{waits:?}");
    let expired = async {
        while !backend.promote(&lock, &next).await.is_ok_and(|outcome| holds(&outcome)) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(READY, expired).await.expect("it expires");
    for number in 1..=HOLDS {
        let retried = backend.acquire(&lock, &hold(number)).await.expect("it answers");
        assert!(
            matches!(retried, AcquireOutcome::Finished(Cause::Expired)),
            "{number}: {retried:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_would_make_its_claim_too_large_is_refused() {
    const MAX_REQUEST: usize = 16 * 1024;
    let Some(ensemble) = ensemble() else { return };
    let backend = backend(Settings {
        max_request: MAX_REQUEST,
        ..settings(ensemble.addresses())
    })
    .await;
    for number in 1..1000 {
        match backend.acquire(&name("a"), &hold(number)).await.expect("it answers") {
            AcquireOutcome::Held(_) => {}
            AcquireOutcome::Refused(Refusal::Full { limit }) => {
                assert_eq!(u128::from(limit), number - 1);
                return;
            }
            other => panic!("{number}: {other:?}"),
        }
    }
    panic!("there is no limit");
}
