//! Answers of Redis that never arrive: what was asked has happened, and nobody knows.

use std::time::{Duration, Instant};

use common::clients::spawn_acquire;
use fencepost::backend::BackendError;
use fencepost::error::Error;
use fencepost::locks::Locks;
use fencepost::name::LockName;

use crate::faults_redis::forwarder::{Answers, Forwarder};
use crate::faults_redis::harness::{acquire, acquire_as, replica, serves, standalone, take, token, until_waiting};
use crate::faults_redis::servers::{RedisServer, available};

const TTL: Duration = Duration::from_secs(30);
/// How soon anything comes that does not wait for a TTL.
const LONG_BEFORE: Duration = Duration::from_secs(15);

/// A replica behind a forwarder, and one that reaches the server directly.
struct Fixture {
    _server: RedisServer,
    forwarder: Forwarder,
    cut_off: Locks,
    direct: Locks,
}

async fn fixture() -> Fixture {
    bed_that_waits(None).await
}

/// A case whose first replica waits so long for an answer; otherwise as long as all tests do, and it is
/// a cut that ends what was lost.
async fn bed_that_waits(answer: Option<Duration>) -> Fixture {
    let server = RedisServer::start(&[]);
    let forwarder = Forwarder::before(server.port()).await;
    let mut settings = standalone(&forwarder.url());
    settings.response_timeout = answer.unwrap_or(settings.response_timeout);
    let cut_off = replica(&settings).await;
    let direct = replica(&standalone(&server.url())).await;
    // All that is asked only once has been asked: the server knows the scripts, and the marker TTL.
    let held = take(&direct, "a", TTL).await;
    let waits = acquire(&cut_off, "a", TTL, TTL);
    let release = async {
        until_waiting(&direct, "a", 1).await;
        direct.release(&held.key).await.unwrap();
    };
    let (next, ()) = tokio::join!(waits, release);
    cut_off.release(&next.unwrap().key).await.unwrap();
    Fixture {
        _server: server,
        forwarder,
        cut_off,
        direct,
    }
}

/// The token of the only holder; waits until the store has `holders` of them.
async fn until_held(locks: &Locks, holders: usize) -> Option<u64> {
    let (lock, end) = (LockName::new("a").unwrap(), Instant::now() + LONG_BEFORE);
    loop {
        let queue = locks.inspect(&lock, 1).await.unwrap();
        if queue.holder_count == holders {
            return queue.holders.first().map(|holder| holder.token.get());
        }
        assert!(Instant::now() < end, "not {holders} holders: {queue:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn is_unavailable<T>(answer: &Result<T, Error>) -> bool {
    matches!(
        answer,
        Err(Error::Backend(
            BackendError::Unavailable { .. } | BackendError::NotSent { .. }
        ))
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_whose_answer_was_lost_is_given_to_its_retry_or_taken_back() {
    common::skip_unless!(available());
    let fixture = fixture().await;
    let mut last = 0;
    for round in 0..if cfg!(feature = "soak") { 200 } else { 8 } {
        let request = format!("request {round}");
        fixture.forwarder.answers(Answers::Lost);
        let (first, named) = (fixture.cut_off.clone(), request.clone());
        let first = tokio::spawn(async move { acquire_as(&first, "a", &named, TTL, Duration::ZERO).await });
        let granted = until_held(&fixture.direct, 1).await.unwrap();
        first.abort();
        fixture.forwarder.cut();
        // The retry and what undoes the first call come as soon as there is a connection again, in
        // any order: the same grant, or a new one.
        let end = Instant::now() + LONG_BEFORE;
        let lease = loop {
            match acquire_as(&fixture.cut_off, "a", &request, TTL, Duration::ZERO).await {
                Ok(lease) => break lease,
                again => assert!(is_unavailable(&again) && Instant::now() < end, "{again:?}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert!(granted > last && token(&lease) >= granted);
        last = token(&lease);
        // Whatever undoes the first call comes every 200 ms, until it is answered.
        tokio::time::sleep(Duration::from_millis(300)).await;
        fixture.cut_off.renew(&lease.key, None).await.unwrap();
        assert_eq!(until_held(&fixture.direct, 1).await, Some(last));
        fixture.cut_off.release(&lease.key).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_is_answered_too_late_is_taken_back() {
    common::skip_unless!(available());
    let answer = Duration::from_secs(2);
    let fixture = bed_that_waits(Some(answer)).await;
    // Longer than an answer may take.
    fixture.forwarder.answers(Answers::Late(2 * answer));
    let first = fixture.cut_off.clone();
    let asked = Instant::now();
    let first = tokio::spawn(async move { acquire(&first, "a", TTL, Duration::ZERO).await });
    let granted = until_held(&fixture.direct, 1).await;
    let first = first.await.unwrap();
    assert!(is_unavailable(&first), "{first:?}");
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    fixture.forwarder.answers(Answers::Pass);
    // Long before its TTL.
    let next = acquire(&fixture.direct, "a", TTL, Duration::from_secs(20))
        .await
        .unwrap();
    assert!(Some(token(&next)) > granted);
    assert!(next.waited < LONG_BEFORE, "{:?}", next.waited);
    serves(&fixture.cut_off, LONG_BEFORE).await;
    assert_eq!(until_held(&fixture.direct, 1).await, Some(token(&next)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_whose_answer_was_lost_is_taken_back_when_nobody_retries() {
    common::skip_unless!(available());
    let fixture = fixture().await;
    fixture.forwarder.answers(Answers::Lost);
    let first = spawn_acquire(&fixture.cut_off, "a", TTL, Duration::ZERO);
    let granted = until_held(&fixture.direct, 1).await;
    // What undoes the call finds no connection at first.
    first.abort();
    fixture.forwarder.cut();
    let next = acquire(&fixture.direct, "a", TTL, Duration::from_secs(20))
        .await
        .unwrap();
    assert!(Some(token(&next)) > granted);
    assert!(next.waited < LONG_BEFORE, "{:?}", next.waited);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_answer_was_lost_is_settled_and_frees_nobody_else() {
    common::skip_unless!(available());
    let fixture = fixture().await;
    let held = take(&fixture.cut_off, "a", TTL).await;
    fixture.forwarder.answers(Answers::Lost);
    let (first, key) = (fixture.cut_off.clone(), held.key.clone());
    let first = tokio::spawn(async move { first.release(&key).await });
    until_held(&fixture.direct, 0).await;
    let next = take(&fixture.direct, "a", TTL).await;
    fixture.forwarder.cut();
    assert_eq!(first.await.unwrap(), Ok(()));
    assert_eq!(fixture.cut_off.release(&held.key).await, Ok(()));
    assert!(token(&next) > token(&held));
    assert_eq!(until_held(&fixture.direct, 1).await, Some(token(&next)));
    fixture.direct.renew(&next.key, None).await.unwrap();
}

// G13
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_told_nothing_has_the_lock_within_its_wait() {
    common::skip_unless!(available());
    let fixture = fixture().await;
    let held = take(&fixture.direct, "a", TTL).await;
    let waiting = spawn_acquire(&fixture.cut_off, "a", TTL, TTL);
    // Asked over the waiter's own connection, whose answers keep their order: it knows that it waits.
    until_waiting(&fixture.cut_off, "a", 1).await;
    // From here on it is told nothing, and loses its place to nobody.
    fixture.forwarder.answers(Answers::Lost);
    fixture.direct.release(&held.key).await.unwrap();
    let released = Instant::now();
    fixture.forwarder.cut();
    let lease = waiting.await.unwrap().unwrap();
    assert!(token(&lease) > token(&held));
    assert!(released.elapsed() < LONG_BEFORE, "{:?}", released.elapsed());
    fixture.cut_off.release(&lease.key).await.unwrap();
}
