//! Order of arrival: claims that reach the backend in one moment are queued as they were sent.

use std::pin::Pin;
use std::sync::Arc;

use fencepost::backend::redis::Store;
use fencepost::backend::redis_server::settings::Settings;
use fencepost::backend::{AcquireOutcome, Backend, Grant, Health, NewClaim, ReleaseTarget};
use fencepost::name::{LockKey, LockName, Namespace};
use futures::future::{join_all, maybe_done};

use crate::harness::standalone;
use crate::opened::claim;
use crate::servers::{RedisServer, available};
use crate::wait_replicas::{confirmed_by, master_with};

/// How many calls are sent at once.
const CALLS: usize = 1_000;

fn namespace() -> Namespace {
    Namespace::new("order").unwrap()
}

fn lock() -> LockName {
    LockName::new("a").unwrap()
}

async fn open(settings: Settings) -> Arc<dyn Backend> {
    let backend = Store::open(settings).unwrap().namespace(&namespace());
    let mut health = backend.health();
    health.wait_for(|health| *health == Health::Serving).await.unwrap();
    backend
}

/// Sends all claims in one moment, in their order, and returns where each one stands.
async fn acquire_at_once(backend: &dyn Backend, claims: &[NewClaim]) -> Vec<AcquireOutcome> {
    let lock = lock();
    let mut calls: Vec<_> = claims
        .iter()
        .map(|claim| maybe_done(backend.acquire(&lock, claim)))
        .collect();
    for call in &mut calls {
        // Whether it is answered already does not matter here.
        let _ = futures::poll!(call);
    }
    join_all(calls.iter_mut()).await;
    let places = calls
        .iter_mut()
        .map(|call| Pin::new(call).take_output().expect("it is done"));
    places.map(Result::unwrap).collect()
}

/// Releases what is held and names the one that is to be next: the store grants it only if it is first in the queue.
async fn hand_over(backend: &dyn Backend, held: &Grant, next: &NewClaim) -> Option<Grant> {
    let lease = held.lease(LockKey {
        namespace: namespace(),
        name: lock(),
    });
    let left = backend.release(&lock(), ReleaseTarget::Hold(&lease), Some(next)).await;
    left.unwrap().next
}

/// Sends many claims in one moment and grants them one after another in the order in which they were sent.
async fn are_granted_as_sent(settings: Settings) {
    let backend = open(settings).await;
    let claims: Vec<NewClaim> = (1..=CALLS as u128).map(claim).collect();
    let places = acquire_at_once(&*backend, &claims).await;
    let turns = places.iter().enumerate().map(|(at, place)| match place {
        AcquireOutcome::Held(_) if at == 0 => 0,
        AcquireOutcome::Waiting(ahead) => ahead.position,
        other => panic!("call {at}: {other:?}"),
    });
    let turns: Vec<u64> = turns.collect();
    let overtaken = turns.windows(2).filter(|pair| pair[0] >= pair[1]).count();
    assert_eq!(overtaken, 0, "of {CALLS} calls so many were overtaken by the next one");
    let AcquireOutcome::Held(first) = &places[0] else {
        panic!("the first one holds: {:?}", places[0]);
    };
    let mut held = first.clone();
    for (at, next) in claims.iter().enumerate().skip(1) {
        let granted = hand_over(&*backend, &held, next).await;
        held = granted.unwrap_or_else(|| panic!("call {at} was not the next one"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_claims_of_one_moment_are_granted_in_the_order_sent() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    are_granted_as_sent(standalone(&server.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_claims_that_replicas_confirm_are_granted_in_the_order_sent() {
    if !available() {
        return;
    }
    let (master, [_copy]) = master_with::<1>();
    are_granted_as_sent(confirmed_by(1, &master)).await;
}
