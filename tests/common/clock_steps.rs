//! A store whose clock is stepped, as servers see that. It is the only clock that counts: forth, it ends leases early, as
//! GUARANTEES.md says; everything else must stay as it is.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fencepost::backend::Health;
use fencepost::claim::Cause;
use fencepost::error::Error;
use fencepost::locks::Locks;
use fencepost::name::FencingToken;

use crate::clients::{acquire, spawn_acquire, take, token, until_waiting};
use crate::faults::stores::Clocked;
use crate::server::{Server, until};

const TTL: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(60);
pub const HOUR: i64 = 3_600;

/// An hour forth, and back again.
pub async fn ends_leases_early_if_stepped_forth<S: Clocked>() {
    let mut store = S::with_clock();
    let (one, two) = &(store.locks().await, store.locks().await);
    let held = take(one, "a", LONG).await;
    let wait = |locks: &Locks| {
        let locks = locks.clone();
        tokio::spawn(async move { acquire(&locks, "a", LONG, LONG).await })
    };
    let first = wait(two);
    until_waiting(one, "a", 1).await;
    let second = wait(one);
    until_waiting(one, "a", 2).await;
    let third = wait(two);
    until_waiting(one, "a", 3).await;
    store.shift(HOUR);
    let stepped = Instant::now();
    let next = first.await.unwrap().unwrap();
    assert!(stepped.elapsed() < LONG / 4, "{:?}", stepped.elapsed());
    assert!(token(&next) > token(&held));
    // The one that lost it is told so, and takes nothing from the other.
    let lost = Error::LeaseLost {
        cause: Some(Cause::Expired),
    };
    assert_eq!(one.renew(&held.key, None).await, Err(lost.clone()));
    assert_eq!(one.release(&held.key).await, Err(lost));
    two.renew(&next.key, None).await.unwrap();
    // The correction is a step back: it ends nothing, and tokens of the wrong hour are passed.
    store.shift(0);
    two.renew(&next.key, None).await.unwrap();
    two.release(&next.key).await.unwrap();
    // No waiter was taken for dead after an hour that nobody lived through: that would have cost it
    // its place.
    let second = second.await.unwrap().unwrap();
    assert!(token(&second) > token(&next) && !third.is_finished());
    one.release(&second.key).await.unwrap();
    assert!(token(&third.await.unwrap().unwrap()) > token(&second));
    assert_eq!(*one.health().borrow(), Health::Serving);
}

/// An hour back.
pub async fn ends_and_freezes_none_if_stepped_back<S: Clocked>() {
    let mut store = S::with_clock();
    let (one, two) = &(store.locks().await, store.locks().await);
    let kept = take(one, "kept", TTL).await;
    let before = Instant::now();
    let held = take(one, "a", TTL).await;
    take(one, "left", TTL).await;
    let early = spawn_acquire(two, "left", TTL, LONG);
    until_waiting(one, "left", 1).await;
    store.shift(-HOUR);
    let next = spawn_acquire(two, "a", TTL, LONG);
    // Kept alive, a lease outlives its TTL several times over, and nobody else gets in.
    while before.elapsed() < 3 * TTL {
        one.renew(&kept.key, None).await.unwrap();
        let refused = acquire(two, "kept", TTL, Duration::ZERO).await;
        assert!(matches!(refused, Err(Error::LockHeld { .. })), "{refused:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
        if next.is_finished() {
            break;
        }
    }
    let next = next.await.unwrap().unwrap();
    let lived = before.elapsed();
    // Longer by the time between the step and the last call before it, which nobody can know.
    assert!(lived >= TTL && lived < LONG / 2, "{lived:?}");
    assert!(token(&next) > token(&held));
    two.release(&next.key).await.unwrap();
    // Its waiter came before the step, and nobody has written since.
    tokio::time::timeout(LONG / 2, early).await.unwrap().unwrap().unwrap();
    let mut last = token(&next);
    for _ in 0..20 {
        let lease = take(two, "a", TTL).await;
        assert!(token(&lease) > last);
        last = token(&lease);
        two.release(&lease.key).await.unwrap();
    }
    assert_eq!(*one.health().borrow(), Health::Serving);
}

/// Many years back, before 2020, and right again.
pub async fn tokens_of_each_lock_rise_before_2020<S: Clocked>() {
    let mut store = S::with_clock();
    let locks = &store.locks().await;
    let mut last = HashMap::new();
    for (years, names) in [
        (0, &["old"][..]),
        (10, &["old", "new"]),
        (30, &["old", "new"]),
        (20, &["new"]),
        (0, &["old", "new"]),
    ] {
        store.shift(-years * 365 * 24 * HOUR);
        for name in names.iter().cycle().take(3 * names.len()) {
            let lease = take(locks, name, TTL).await;
            let before = last.insert(*name, token(&lease)).unwrap_or_default();
            assert!(
                token(&lease) > before,
                "{name}, {years} years ago: {} after {before}",
                token(&lease)
            );
            locks.release(&lease.key).await.unwrap();
        }
    }
}

/// The log of a server says when the clock of its store is years from its own, and when it is right again.
#[allow(clippy::unused_async, reason = "as every case")]
pub async fn the_log_names_a_wrong_clock<S: Clocked>() {
    const WRONG: &str = "the clock of the store is before 2020, past 2112, or more than a year from";
    let mut store = S::with_clock();
    let (_home, server) = Server::of_namespace(&store.namespace());
    until("it serves", || server.said("the store serves").then_some(()));
    assert!(!server.said(WRONG), "it is right");
    store.shift(-2 * 365 * 24 * HOUR);
    until("the log says so", || server.said(WRONG).then_some(()));
    store.shift(0);
    until("it is right", || {
        server.said("the clock of the store can be right again").then_some(())
    });
}

/// Centuries forth, and right again.
pub async fn tokens_beyond_their_range_ruin_no_lock<S: Clocked>() {
    let mut store = S::with_clock();
    let locks = store.locks().await;
    let grant = async |lock: &str| {
        let lease = take(&locks, lock, LONG).await;
        locks.release(&lease.key).await.expect("it is held");
        token(&lease)
    };
    let mut last = grant("a").await;
    for years in S::FAR_YEARS {
        store.shift(years * 365 * 24 * HOUR);
        for _ in 0..3 {
            let next = grant("a").await;
            assert!(last < next && next < FencingToken::MAX, "{next} after {last}");
            last = next;
        }
    }
    let fresh = grant("fresh").await;
    assert!(fresh < last - 1_000_000_000, "it has a token of its own time: {fresh}");
}
