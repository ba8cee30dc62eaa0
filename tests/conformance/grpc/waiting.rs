//! Waiting calls: in order, on time, and gone with their callers.

use std::time::{Duration, Instant};

use tonic::{Code, Request};

use super::refused::refused;
use super::service::{Service, acquire, living, named, reason, time, waiting};
use crate::fixture::{Fixture, NAMESPACE};

/// How often a busy machine may be too slow for a bound.
const TRIES: usize = 4;
/// How late the answer to a wait of 3 s may come.
const ON_TIME: std::ops::Range<Duration> = Duration::from_millis(3_000)..Duration::from_millis(3_400);

// G14a, G14b
pub async fn a_wait_of_three_seconds_ends_within_its_window(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    service.acquire(acquire("a")).await;
    let mut times = Vec::new();
    while times.len() < TRIES && !times.iter().any(|took| ON_TIME.contains(took)) {
        let began = Instant::now();
        let answer = service.try_acquire(waiting(3, acquire("b"))).await;
        let took = began.elapsed();
        refused(answer, Code::Aborted, "WAIT_TIMEOUT");
        assert!(
            took >= ON_TIME.start && took < ON_TIME.end + Duration::from_secs(5),
            "{took:?}"
        );
        assert_eq!(service.inspect().await.waiter_count, 0);
        times.push(took);
    }
    assert!(times.iter().any(|took| ON_TIME.contains(took)), "{times:?}");
}

// G14c
pub async fn a_wait_ends_before_its_callers_deadline(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    service.acquire(acquire("a")).await;
    let mut answers = Vec::new();
    while answers.len() < TRIES && !answers.iter().any(|why| why == "WAIT_TIMEOUT") {
        let mut ask = Request::new(waiting(60, acquire("b")));
        ask.set_timeout(Duration::from_secs(1));
        let sent = Instant::now();
        let refused = service.locks().acquire(ask).await.expect_err("it is held");
        // No later than the deadline: then the client's own answer would be another.
        assert!(sent.elapsed() >= Duration::from_millis(900), "{:?}", sent.elapsed());
        service.until(NAMESPACE, "lock", |lock| lock.waiter_count == 0).await;
        answers.push(reason(&refused));
    }
    assert!(answers.iter().any(|why| why == "WAIT_TIMEOUT"), "{answers:?}");
}

pub async fn waiters_are_served_in_order(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut lease = service.acquire(acquire("first")).await;
    let mut calls = Vec::new();
    for n in 0..5 {
        let owner = format!("w{n}");
        calls.push((
            owner.clone(),
            service.wait_for(waiting(60, acquire(&owner)), n + 1).await,
        ));
    }
    for (owner, call) in calls {
        service.release(&lease).await;
        lease = call.await.expect("no panic").expect("granted");
        assert_eq!(service.inspect().await.holders[0].owner, owner);
    }
}

pub async fn a_lease_says_how_long_its_call_waited(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = service.acquire(acquire("a")).await;
    let b = service.wait_for(waiting(60, acquire("b")), 1).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    service.release(&a).await;
    let waited = time(b.await.expect("no panic").expect("granted").waited);
    assert!(
        (Duration::from_millis(500)..Duration::from_secs(3)).contains(&waited),
        "{waited:?}"
    );
}

pub async fn an_expiry_serves_the_next(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = service.acquire(living(fixture.short(), acquire("a"))).await;
    let b = service.acquire(waiting(30, acquire("b"))).await;
    assert!(b.fencing_token > a.fencing_token);
    assert!(
        time(b.waited) < fixture.short() + Duration::from_secs(5),
        "{:?}",
        b.waited
    );
}

// G210
pub async fn a_kept_lock_serves_the_next_when_its_time_is_over(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = service.acquire(acquire("a")).await;
    let b = service.wait_for(waiting(60, acquire("b")), 1).await;
    let (sent, keeps) = (Instant::now(), fixture.short());
    let kept = service.release_keeping(&a, keeps).await;
    assert_eq!(kept.expect("released"), Some(keeps));
    let b = b.await.expect("no panic").expect("granted");
    let waited = sent.elapsed();
    assert!(waited >= keeps && waited < keeps + Duration::from_secs(5), "{waited:?}");
    assert!(b.fencing_token > a.fencing_token);
    assert_eq!(service.inspect().await.holders[0].owner, "b");
}

pub async fn a_force_serves_the_next(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = service.acquire(acquire("a")).await;
    let b = service.wait_for(waiting(60, acquire("b")), 1).await;
    service.try_force(a.fencing_token).await.expect("forced");
    b.await.expect("no panic").expect("granted");
    assert_eq!(service.inspect().await.holders[0].owner, "b");
}

// G15
pub async fn a_waiter_whose_call_was_dropped_leaves_the_queue(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = service.acquire(acquire("a")).await;
    let b = service.wait_for(waiting(60, acquire("b")), 1).await;
    let c = service.wait_for(waiting(60, acquire("c")), 2).await;
    b.abort();
    service.until(NAMESPACE, "lock", |lock| lock.waiter_count == 1).await;
    service.release(&a).await;
    c.await.expect("no panic").expect("granted");
    assert_eq!(service.inspect().await.holders[0].owner, "c");
}

// G22
pub async fn a_retry_after_a_dropped_call_keeps_its_lease(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut last = service.acquire(acquire("first")).await;
    for round in 0..if cfg!(feature = "soak") { 2_000 } else { 50 } {
        let ask = || named(&format!("request {round}"), waiting(60, acquire("b")));
        let dropped = service.wait_for(ask(), 1).await;
        let (released, ()) = tokio::join!(service.try_release(&last), async { dropped.abort() });
        released.expect("released");
        last = service.acquire(ask()).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
        service.try_renew(&last, None).await.expect("the retry keeps its lease");
        assert_eq!(service.inspect().await.holders[0].fencing_token, last.fencing_token);
    }
}
