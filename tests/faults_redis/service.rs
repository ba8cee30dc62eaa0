//! A Redis that does not serve as it should, for a while.

use std::time::{Duration, Instant};

use common::clients::spawn_acquire;
use fencepost::backend::{BackendError, Health, WatchEvent};
use fencepost::error::Error;
use futures::StreamExt;

use crate::faults_redis::harness::{
    HOT_TTL, acquire, contend, health, impatient, replica, serves, standalone, take, token, until_waiting,
};
use crate::faults_redis::servers::{RedisServer, available};

const TTL: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(60);
/// By when a server that is there again is served.
const AT_LAST: Duration = Duration::from_secs(30);

fn is_unavailable(health: &Health) -> bool {
    matches!(health, Health::Unavailable { .. })
}

// G57
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_hangs_calls_fail_soon_and_then_go_on() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let locks = replica(&impatient(standalone(&server.url()))).await;
    let held = take(&locks, "a", TTL).await;
    server.pause();
    let asked = Instant::now();
    let refused = acquire(&locks, "b", TTL, Duration::ZERO).await.unwrap_err();
    assert!(
        matches!(
            refused,
            Error::Backend(BackendError::Unavailable { .. } | BackendError::NotSent { .. })
        ),
        "{refused:?}"
    );
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    health(&locks, AT_LAST, is_unavailable).await;
    let asked = Instant::now();
    acquire(&locks, "b", TTL, Duration::ZERO).await.unwrap_err();
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    tokio::time::sleep(TTL).await;
    server.resume();
    serves(&locks, AT_LAST).await;
    assert!(token(&take(&locks, "a", TTL).await) > token(&held));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_living_replicas_outlive_a_long_pause() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let settings = impatient(standalone(&server.url()));
    let (one, two) = (replica(&settings).await, replica(&settings).await);
    let held = take(&one, "a", Duration::from_secs(120)).await;
    let waiting = spawn_acquire(&two, "a", TTL, Duration::from_secs(60));
    until_waiting(&two, "a", 1).await;
    server.pause();
    tokio::time::sleep(Duration::from_secs(3)).await;
    server.resume();
    serves(&one, AT_LAST).await;
    serves(&two, AT_LAST).await;
    // Whoever called it dead would do so now.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(one.inspect(&held.key.lock.name, 10).await.unwrap().waiters.len(), 1);
    one.release(&held.key).await.unwrap();
    assert!(token(&waiting.await.unwrap().unwrap()) > token(&held));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_is_opened_while_redis_is_unreachable_says_so() {
    common::skip_unless!(available());
    let mut server = RedisServer::start(&[]);
    let locks = replica(&standalone(&server.url())).await;
    server.kill9();
    health(&locks, AT_LAST, is_unavailable).await;
    let lock = fencepost::name::LockName::new("a").unwrap();
    let seen = tokio::time::timeout(Duration::from_secs(10), locks.watch(&lock).next()).await;
    let seen = seen.expect("it says so in time").expect("a watch does not just end");
    assert!(
        matches!(
            seen,
            Err(Error::Backend(
                BackendError::Unavailable { .. } | BackendError::NotSent { .. }
            ))
        ),
        "{seen:?}"
    );
    // The next one finds it back.
    server.restart();
    locks.admit(None).await.ok();
    let end = Instant::now() + AT_LAST;
    while let Some(Err(error)) = locks.watch(&lock).next().await {
        assert!(Instant::now() < end, "{error:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_evicts_ends_the_service_and_its_end_brings_it_back() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let locks = replica(&standalone(&server.url())).await;
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    health(
        &locks,
        AT_LAST,
        |health| matches!(health, Health::Unavailable { reason } if reason.contains("allkeys-lru")),
    )
    .await;
    let refused = acquire(&locks, "a", TTL, Duration::ZERO).await.unwrap_err();
    assert!(
        matches!(
            refused,
            Error::Backend(BackendError::Unavailable { .. } | BackendError::NotSent { .. })
        ),
        "{refused:?}"
    );
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    serves(&locks, AT_LAST).await;
    take(&locks, "a", TTL).await;
}

// G97a
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_full_memory_nothing_is_granted_or_queued() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let settings = standalone(&server.url());
    let (one, two) = (replica(&settings).await, replica(&settings).await);
    let held = take(&one, "a", AT_LAST).await;
    let waiting = spawn_acquire(&two, "a", AT_LAST, AT_LAST);
    until_waiting(&one, "a", 1).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    for locks in [&one, &two] {
        for (lock, wait) in [("a", Duration::ZERO), ("a", TTL), ("b", Duration::ZERO), ("b", TTL)] {
            let refused = acquire(locks, lock, TTL, wait).await.unwrap_err();
            let is_held = matches!(refused, Error::LockHeld { .. }) && lock == "a" && wait.is_zero();
            assert!(
                is_held || matches!(refused, Error::Backend(_)),
                "{lock}, {wait:?}: {refused:?}"
            );
        }
    }
    for (lock, claims) in [("a", (1, 1)), ("b", (0, 0))] {
        let name = fencepost::name::LockName::new(lock).unwrap();
        let queue = two.inspect(&name, 9).await.unwrap();
        assert_eq!((queue.holder_count, queue.waiter_count), claims, "{lock}");
    }
    // Nor is one that waits already.
    one.release(&held.key).await.unwrap();
    tokio::time::sleep(TTL / 2).await;
    assert_eq!(one.inspect(&held.key.lock.name, 9).await.unwrap().holder_count, 0);
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    let granted = waiting.await.unwrap().expect("the memory was full for a short time");
    assert!(token(&granted) > token(&held));
}

// G97b, G189
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_full_memory_renew_and_release_still_work_and_the_health_says_so() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let locks = replica(&standalone(&server.url())).await;
    let held = take(&locks, "a", AT_LAST).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let is_full = |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains("maxmemory"));
    health(&locks, AT_LAST, is_full).await;
    let refused = acquire(&locks, "b", TTL, Duration::ZERO).await.unwrap_err();
    // It has had no effect, so nothing of it is undone.
    assert!(
        matches!(refused, Error::Backend(BackendError::NotSent { .. })),
        "{refused:?}"
    );
    locks.renew(&held.key, None).await.unwrap();
    locks.release(&held.key).await.unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    take(&locks, "b", TTL).await;
    serves(&locks, AT_LAST).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_scripts_are_sent_again_under_load() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let settings = standalone(&server.url());
    let replicas = [replica(&settings).await, replica(&settings).await];
    let forget = tokio::task::spawn_blocking(move || {
        for _ in 0..50 {
            server.cli(&["FUNCTION", "FLUSH"]);
            server.cli(&["SCRIPT", "FLUSH"]);
        }
        server
    });
    let seen = contend(&replicas, 8, Duration::from_secs(2), 101).await;
    forget.await.unwrap();
    assert!(seen.tokens.len() > 100 && seen.gap < HOT_TTL, "{seen:?}");
    assert!(seen.failed.is_empty() && seen.lost == 0, "{:?}", seen.failed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_cost_a_pause_and_nothing_else() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let settings = standalone(&server.url());
    let replicas = [replica(&settings).await, replica(&settings).await];
    let kill = tokio::task::spawn_blocking(move || {
        let kills = (0..6).map(|_| {
            std::thread::sleep(Duration::from_millis(400));
            let killed = server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
            killed.parse::<u32>().expect("a number")
        });
        let killed: u32 = kills.sum();
        (server, killed)
    });
    let seen = contend(&replicas, 8, Duration::from_secs(4), 51).await;
    let (_server, killed) = kill.await.unwrap();
    // Nothing waits for a TTL of HOT_TTL: a Release without an answer is repeated, and a grant
    // without one is taken back as soon as there is a connection again.
    assert!(
        seen.tokens.len() > 50 && seen.gap < HOT_TTL,
        "{} {:?}",
        seen.tokens.len(),
        seen.gap
    );
    assert_eq!(seen.lost, 0);
    // Whether a call was on its way over one of them is luck.
    assert!(killed > 6, "{killed}");
    let slowest = seen.failed.iter().map(|(_, took, _)| *took).max().unwrap_or_default();
    // Long before the limit of an answer.
    assert!(slowest < HOT_TTL, "{slowest:?}: {:?}", seen.failed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_hand_off_is_lost_while_pub_sub_is_killed() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let settings = standalone(&server.url());
    let replicas = [replica(&settings).await, replica(&settings).await];
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let kill = tokio::task::spawn_blocking(move || {
        let mut kills = 0;
        while stopped
            .recv_timeout(Duration::from_millis(200))
            .is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            kills += 1;
        }
        (server, kills)
    });
    let seen = contend(&replicas, 2, Duration::from_secs(6), 1_000).await;
    drop(stop);
    let (_server, kills) = kill.await.unwrap();
    println!("{} long gaps in {kills} kills", seen.long_gaps);
    // A wake that is lost costs a poll; that it is lost is the exception.
    assert!(seen.tokens.len() >= 1_000, "{}", seen.tokens.len());
    assert!(
        seen.gap < HOT_TTL && seen.long_gaps < kills / 3,
        "{} in {kills}, {:?}",
        seen.long_gaps,
        seen.gap
    );
    assert!(seen.failed.is_empty() && seen.lost == 0, "{:?}", seen.failed);
}

// G36c
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_shows_the_state_again_after_messages_of_another_server_were_lost() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let (one, two) = (
        replica(&standalone(&server.url())).await,
        replica(&standalone(&server.url())).await,
    );
    let mut watch = two.watch(&crate::faults_redis::clients::name("a"));
    watch.next().await.expect("the state").expect("it serves");
    // The subscription may be back before the next message: it is cut until one was lost.
    for _ in 0..20 {
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        let held = take(&one, "a", LONG).await;
        let is_shown = |seen: &WatchEvent| match seen {
            WatchEvent::Change(change) => change.token == Some(held.key.token),
            WatchEvent::State(queue) => queue.holders.iter().any(|holder| holder.token == held.key.token),
        };
        let shown = loop {
            let seen = tokio::time::timeout(AT_LAST, watch.next()).await.expect("in time");
            let seen = seen.expect("it goes on").expect("it serves");
            if is_shown(&seen) {
                break seen;
            }
        };
        one.release(&held.key).await.expect("it is held");
        if matches!(shown, WatchEvent::State(_)) {
            return;
        }
    }
    panic!("no message was lost");
}
