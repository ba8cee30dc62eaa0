//! Shutdown: waiters and streams are told at once, calls in flight finish.

use std::time::{Duration, Instant};

use tonic::Code::Unavailable;

use super::refused::refused;
use super::service::{LOCK, Service, acquire, waiting, watch_lock};
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
