//! Shutdown: waiters and streams are told at once, calls in flight finish.

use std::time::{Duration, Instant};

use tonic::Code::Unavailable;

use super::refused::refused;
use super::service::{LOCK, Service, acquire, named, waiting, watch_lock};
use crate::fixture::{Fixture, NAMESPACE};

/// How soon "at once" is.
const AT_ONCE: Duration = Duration::from_secs(5);

// G62
pub async fn a_stop_answers_waiters_at_once(fixture: &Fixture) {
    let mut service = Service::start(fixture).await;
    service.acquire(acquire("a")).await;
    let b = service.wait_for(waiting(60, acquire("b")), 1).await;
    let began = Instant::now();
    service.tell_to_stop();
    let refused = refused(b.await.expect("no panic"), Unavailable, "DRAINING");
    assert!(refused.retry.is_some());
    service.stopped().await;
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
}

// G62
pub async fn a_stop_ends_watches_at_once(fixture: &Fixture) {
    let mut service = Service::start(fixture).await;
    let stream = service.locks().watch_lock(watch_lock(NAMESPACE, LOCK)).await;
    let mut stream = stream.expect("a stream").into_inner();
    stream.message().await.expect("no error").expect("the state");
    let began = Instant::now();
    service.tell_to_stop();
    refused(stream.message().await, Unavailable, "DRAINING");
    service.stopped().await;
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
}

pub async fn a_stop_waits_for_nobody_when_nothing_is_open(fixture: &Fixture) {
    let mut service = Service::start(fixture).await;
    service.acquire(acquire("a")).await;
    let began = Instant::now();
    service.tell_to_stop();
    service.stopped().await;
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
}

/// How long a place is kept of a wait that a stop ended.
const KEPT: Duration = Duration::from_secs(5);

// G215
pub async fn a_retry_elsewhere_goes_on_in_the_place_of_a_wait_that_a_stop_ended(fixture: &Fixture) {
    if !fixture.capabilities().shared {
        return;
    }
    let (mut here, there) = (Service::start(fixture).await, Service::start_there(fixture).await);
    let a = there.acquire(acquire("a")).await;
    let b = here.wait_for(named("r", waiting(60, acquire("b"))), 1).await;
    let c = there.wait_for(waiting(60, acquire("c")), 2).await;
    here.tell_to_stop();
    refused(b.await.expect("no panic"), Unavailable, "DRAINING");
    there.release(&a).await;
    tokio::time::sleep(KEPT / 20).await;
    let queue = there.inspect().await;
    assert_eq!((queue.holder_count, queue.waiter_count), (0, 2), "nobody overtakes it");
    let b = there.acquire(named("r", waiting(60, acquire("b")))).await;
    here.stopped().await;
    there
        .try_renew(&b, None)
        .await
        .expect("the undo of the first call leaves it");
    there.release(&b).await;
    let c = c.await.expect("no panic").expect("granted");
    assert!(c.fencing_token > b.fencing_token);
}

// G215
pub async fn a_place_that_no_retry_asks_for_ends_before_the_store_is_closed(fixture: &Fixture) {
    if !fixture.capabilities().shared {
        return;
    }
    let (mut here, there) = (Service::start(fixture).await, Service::start_there(fixture).await);
    let a = there.acquire(acquire("a")).await;
    let b = here.wait_for(named("r", waiting(60, acquire("b"))), 1).await;
    let c = there.wait_for(waiting(60, acquire("c")), 2).await;
    let began = Instant::now();
    here.tell_to_stop();
    refused(b.await.expect("no panic"), Unavailable, "DRAINING");
    there.release(&a).await;
    c.await.expect("no panic").expect("granted");
    let waited = began.elapsed();
    here.stopped().await;
    assert!((KEPT..2 * KEPT).contains(&waited), "{waited:?}");
}
