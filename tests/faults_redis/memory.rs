//! A Redis that loses its memory, or keeps it.

use std::time::Duration;

use fencepost::backend::{BackendError, Health};
use fencepost::error::Error;

use crate::bench::{acquire, health, replica, serves, standalone, take, token, unready};
use crate::servers::{RedisServer, available};

const TTL: Duration = Duration::from_secs(2);

fn is_quarantined(health: &Health) -> bool {
    matches!(health, Health::Quarantined { .. })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_without_data_is_a_quarantine_of_the_longest_ttl() {
    if !available() {
        return;
    }
    let mut server = RedisServer::start(&[]);
    let mut settings = standalone(&server.url());
    // The marker is lost with the rest, so what counts is the longest TTL that could have been granted.
    settings.longest_ttl = TTL;
    let one = replica(&settings).await;
    let held = take(&one, "a", TTL).await;
    server.kill9();
    server.restart();
    let back = std::time::Instant::now();
    health(&one, TTL, is_quarantined).await;
    // A replica that starts in between knows it too, though its own first start is admitted.
    let two = unready(&settings);
    health(&two, TTL, is_quarantined).await;
    for locks in [&one, &two] {
        let refused = acquire(locks, "a", TTL, Duration::ZERO).await.unwrap_err();
        assert!(
            matches!(refused, Error::Backend(BackendError::Quarantined { .. })),
            "{refused:?}"
        );
    }
    serves(&one, 2 * TTL).await;
    assert!(
        back.elapsed() >= TTL - Duration::from_millis(100),
        "{:?}",
        back.elapsed()
    );
    serves(&two, Duration::from_secs(2)).await;
    assert!(token(&take(&two, "a", TTL).await) > token(&held));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admit_ends_a_quarantine_for_all() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let mut settings = standalone(&server.url());
    settings.first_start = fencepost::backend::redis_server::settings::FirstStart::Quarantine;
    let (one, two) = (unready(&settings), unready(&settings));
    health(&one, TTL, is_quarantined).await;
    health(&two, TTL, is_quarantined).await;
    one.admit(None).await.unwrap();
    serves(&one, Duration::from_secs(2)).await;
    serves(&two, Duration::from_secs(3)).await;
    take(&two, "a", TTL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_with_durable_writes_keeps_what_is_held() {
    if !available() {
        return;
    }
    let mut server = RedisServer::durable();
    let locks = replica(&standalone(&server.url())).await;
    let held = take(&locks, "a", Duration::from_secs(30)).await;
    server.kill9();
    health(&locks, TTL, |health| matches!(health, Health::Away { .. })).await;
    server.restart();
    let took = serves(&locks, Duration::from_secs(5)).await;
    assert!(took < Duration::from_secs(3), "{took:?}");
    let refused = acquire(&locks, "a", TTL, Duration::ZERO).await.unwrap_err();
    assert!(matches!(refused, Error::LockHeld { .. }), "{refused:?}");
    locks.release(&held.key).await.unwrap();
    assert!(token(&take(&locks, "a", TTL).await) > token(&held));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_through_fifty_times_flushall() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let locks = replica(&standalone(&server.url())).await;
    let mut last = 0;
    for _ in 0..50 {
        let lease = take(&locks, "a", TTL).await;
        assert!(token(&lease) > last);
        last = token(&lease);
        server.cli(&["FLUSHALL"]);
    }
    assert_eq!(*locks.health().borrow(), Health::Serving);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_was_flushed_away_enters_again() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let locks = replica(&standalone(&server.url())).await;
    take(&locks, "a", Duration::from_secs(60)).await;
    let waiting = acquire(&locks, "a", TTL, Duration::from_secs(10));
    let flush = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.cli(&["FLUSHALL"]);
    };
    let (granted, ()) = tokio::join!(waiting, flush);
    assert!(granted.unwrap().waited < Duration::from_secs(4));
}
