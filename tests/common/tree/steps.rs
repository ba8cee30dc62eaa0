//! Steps on the store below a replica, what became of them, and what they leave.

use std::time::{Duration, Instant};

use fencepost::backend::{AcquireOutcome, Backend, Grant, NewClaim};
use fencepost::name::{LeaseKey, LockKey};

use crate::harness::{Operator, READY, Servers, name, namespace};

/// Whether a claim holds; it waits otherwise.
#[track_caller]
pub fn holds(outcome: &AcquireOutcome) -> bool {
    match outcome {
        AcquireOutcome::Held(_) => true,
        AcquireOutcome::Waiting(_) => false,
        other => panic!("it neither holds nor waits: {other:?}"),
    }
}

/// Acquires what must be free.
pub async fn grant(backend: &dyn Backend, lock: &str, claim: &NewClaim) -> Grant {
    match backend.acquire(&name(lock), claim).await.expect("it answers") {
        AcquireOutcome::Held(grant) => grant,
        other => panic!("it does not hold: {other:?}"),
    }
}

/// The lease of a grant.
pub fn lease_of(grant: &Grant, lock: &str) -> LeaseKey {
    grant.lease(LockKey {
        namespace: namespace(),
        name: name(lock),
    })
}

/// Acquires what must be free, and returns the lease.
pub async fn hold(backend: &dyn Backend, lock: &str, claim: &NewClaim) -> LeaseKey {
    lease_of(&grant(backend, lock, claim).await, lock)
}

/// Acquires what is held, and so waits.
pub async fn queue(backend: &dyn Backend, lock: &str, claim: &NewClaim) {
    let waits = backend.acquire(&name(lock), claim).await.expect("it answers");
    assert!(!holds(&waits), "{waits:?}");
}

/// Waits until no claim is left of any lock.
pub async fn nothing_is_left(store: &Servers) {
    let mut left = Vec::new();
    let end = Instant::now() + READY;
    while Instant::now() < end {
        left = Operator::open(store).await.claims().await;
        if left.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("claims are left: {left:?}");
}
