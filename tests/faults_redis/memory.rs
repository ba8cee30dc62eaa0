//! A Redis that loses its memory, or keeps it.

use std::time::{Duration, Instant};

use fencepost::backend::{BackendError, Health};
use fencepost::error::Error;

use crate::faults_redis::harness::{acquire, health, replica, serves, standalone, take, token, unready, until_waiting};
use crate::faults_redis::servers::{RedisServer, available, eventually};

const TTL: Duration = Duration::from_secs(2);
/// How long a quarantine lasts here: so long that a slow machine has asked meanwhile.
const LONGEST: Duration = Duration::from_secs(6);
/// How soon a replica says how a server is.
const SOON: Duration = Duration::from_secs(10);
const AT_LAST: Duration = Duration::from_secs(30);

fn is_quarantined(health: &Health) -> bool {
    matches!(health, Health::Quarantined { .. })
}

// G94
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_without_data_is_a_quarantine_of_the_longest_ttl() {
    common::skip_unless!(available());
    let mut server = RedisServer::start(&[]);
    let mut settings = standalone(&server.url());
    // The marker is lost with the rest, so what counts is the longest TTL that could have been granted.
    settings.longest_ttl = LONGEST;
    let one = replica(&settings).await;
    let held = take(&one, "a", TTL).await;
    server.kill9();
    let down = Instant::now();
    server.restart();
    health(&one, SOON, is_quarantined).await;
    // A replica that starts in between knows it too, though its own first start is admitted.
    let two = unready(&settings);
    health(&two, SOON, is_quarantined).await;
    for locks in [&one, &two] {
        let refused = acquire(locks, "a", TTL, Duration::ZERO).await.unwrap_err();
        assert!(
            matches!(refused, Error::Backend(BackendError::Quarantined { .. })),
            "{refused:?}"
        );
    }
    serves(&one, AT_LAST).await;
    assert!(down.elapsed() >= LONGEST, "{:?}", down.elapsed());
    serves(&two, AT_LAST).await;
    assert!(token(&take(&two, "a", TTL).await) > token(&held));
}

// G94
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quarantine_is_as_long_as_the_longest_ttl_of_all_who_come() {
    common::skip_unless!(available());
    let mut server = RedisServer::start(&[]);
    let mut settings = standalone(&server.url());
    settings.longest_ttl = LONGEST;
    let one = replica(&settings).await;
    server.kill9();
    let down = Instant::now();
    server.restart();
    health(&one, SOON, is_quarantined).await;
    // Who finds the quarantine may have granted more than who began it.
    settings.longest_ttl = 2 * LONGEST;
    let two = unready(&settings);
    health(&two, SOON, is_quarantined).await;
    for locks in [&one, &two] {
        serves(locks, AT_LAST).await;
        assert!(down.elapsed() >= 2 * LONGEST, "{:?}", down.elapsed());
    }
}

// G94
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admit_ends_a_quarantine_for_all() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let mut settings = standalone(&server.url());
    settings.on_empty_store = fencepost::backend::redis_server::settings::OnEmptyStore::Quarantine;
    let (one, two) = (unready(&settings), unready(&settings));
    health(&one, SOON, is_quarantined).await;
    health(&two, SOON, is_quarantined).await;
    let elsewhere = one.admit(Some("127.0.0.1:1")).await;
    assert!(
        matches!(elsewhere, Err(Error::Backend(BackendError::Unsupported { .. }))),
        "{elsewhere:?}"
    );
    assert!(is_quarantined(&one.health().borrow()));
    let node = format!("127.0.0.1:{}", server.port());
    one.admit(Some(&node)).await.unwrap();
    serves(&one, AT_LAST).await;
    serves(&two, AT_LAST).await;
    take(&two, "a", TTL).await;
}

// G93
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_with_durable_writes_keeps_what_is_held() {
    common::skip_unless!(available());
    let mut server = RedisServer::durable();
    let locks = replica(&standalone(&server.url())).await;
    let held = take(&locks, "a", Duration::from_secs(30)).await;
    server.kill9();
    health(&locks, SOON, |health| matches!(health, Health::Unavailable { .. })).await;
    server.restart();
    serves(&locks, AT_LAST).await;
    let refused = acquire(&locks, "a", TTL, Duration::ZERO).await.unwrap_err();
    assert!(matches!(refused, Error::LockHeld { .. }), "{refused:?}");
    locks.release(&held.key).await.unwrap();
    assert!(token(&take(&locks, "a", TTL).await) > token(&held));
}

// G88c
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_through_fifty_times_flushall() {
    common::skip_unless!(available());
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

// G96
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_was_flushed_is_queued_again() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let locks = replica(&standalone(&server.url())).await;
    take(&locks, "a", Duration::from_secs(60)).await;
    let waiting = acquire(&locks, "a", TTL, Duration::from_secs(50));
    let flush = async {
        until_waiting(&locks, "a", 1).await;
        server.cli(&["FLUSHALL"]);
    };
    let (granted, ()) = tokio::join!(waiting, flush);
    // Long before the end of the lease that is gone.
    assert!(granted.unwrap().waited < AT_LAST);
}

/// What a Redis without an append file has on disk: the last snapshot.
const SNAPSHOTS: &[&str] = &["--dbfilename", "old.rdb"];

/// Writes a snapshot: not while a child of the server writes one for a replica, when SAVE is refused.
fn save(server: &RedisServer) {
    eventually("a snapshot is written", Duration::from_secs(20), || {
        (server.cli(&["SAVE"]).trim() == "OK").then_some(())
    });
}

// G94
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_snapshot_is_a_quarantine_of_the_longest_ttl_also_for_a_new_replica() {
    common::skip_unless!(available());
    let mut server = RedisServer::start(SNAPSHOTS);
    let mut settings = standalone(&server.url());
    settings.longest_ttl = LONGEST;
    let one = replica(&settings).await;
    let known = take(&one, "known", TTL).await;
    save(&server);
    // Neither this lease nor that there is one of so long a TTL is in the snapshot.
    let held = take(&one, "a", LONGEST).await;
    let granted = Instant::now();
    one.close().await;
    drop(one);
    server.kill9();
    server.restart();
    assert_eq!(
        server.cli(&["EXISTS", "fencepost:faults:l:known"]),
        "1",
        "the snapshot is there"
    );
    assert_eq!(
        server.cli(&["EXISTS", "fencepost:faults:l:a"]),
        "0",
        "the snapshot is older"
    );
    let two = unready(&settings);
    health(&two, SOON, is_quarantined).await;
    let refused = acquire(&two, "a", TTL, Duration::ZERO).await.unwrap_err();
    assert!(
        matches!(refused, Error::Backend(BackendError::Quarantined { .. })),
        "{refused:?}"
    );
    serves(&two, AT_LAST).await;
    let next = take(&two, "a", TTL).await;
    assert!(
        granted.elapsed() >= LONGEST,
        "a second holder after {:?}",
        granted.elapsed()
    );
    assert!(token(&next) > token(&held));
    // Of what the snapshot has, the end is known: it came meanwhile.
    assert!(token(&take(&two, "known", TTL).await) > token(&known));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admit_ends_the_quarantine_of_an_older_snapshot() {
    common::skip_unless!(available());
    let mut server = RedisServer::start(SNAPSHOTS);
    let settings = standalone(&server.url());
    let one = replica(&settings).await;
    let held = take(&one, "a", Duration::from_secs(60)).await;
    save(&server);
    let lost = take(&one, "b", Duration::from_secs(60)).await;
    server.kill9();
    server.restart();
    health(&one, SOON, is_quarantined).await;
    let two = unready(&settings);
    health(&two, SOON, is_quarantined).await;
    two.admit(None).await.unwrap();
    serves(&one, AT_LAST).await;
    serves(&two, AT_LAST).await;
    // What the snapshot has is held, what it has not is free, and passed upwards.
    let refused = acquire(&two, "a", TTL, Duration::ZERO).await.unwrap_err();
    assert!(matches!(refused, Error::LockHeld { .. }), "{refused:?}");
    assert!(token(&take(&two, "b", TTL).await) > token(&lost));
    one.release(&held.key).await.unwrap();
    assert!(token(&take(&two, "a", TTL).await) > token(&held));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_restarts_at_once_with_less_is_not_taken_for_a_promoted_replica() {
    common::skip_unless!(available());
    restart_with_less(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_is_one_whose_clock_is_behind_by_then() {
    common::skip_unless!(available());
    restart_with_less(-3_600).await;
}

/// Restarts a master from an older snapshot, with its clock so many seconds ahead.
async fn restart_with_less(clock: i64) {
    let mut server = RedisServer::with_clock(&[SNAPSHOTS, &["--repl-diskless-sync-delay", "0"]].concat());
    // With a replica, the snapshot names the history that the restarted server goes on from.
    let follower = RedisServer::start(&["--replicaof", &format!("127.0.0.1 {}", server.port())]);
    eventually("the replica follows", Duration::from_secs(20), || {
        let text = follower.cli(&["INFO", "replication"]);
        text.contains("master_link_status:up").then_some(())
    });
    let settings = standalone(&server.url());
    let one = replica(&settings).await;
    let held = take(&one, "a", Duration::from_secs(60)).await;
    save(&server);
    let lost = take(&one, "b", Duration::from_secs(60)).await;
    one.close().await;
    drop(one);
    server.kill9();
    server.shift_clock(clock);
    server.restart();
    let two = unready(&settings);
    health(&two, SOON, |health| !matches!(health, Health::Unavailable { .. })).await;
    let refused = acquire(&two, "b", TTL, Duration::ZERO).await;
    assert!(
        matches!(refused, Err(Error::Backend(BackendError::Quarantined { .. }))),
        "{refused:?} while {} and {} are held",
        held.key.token,
        lost.key.token
    );
}
