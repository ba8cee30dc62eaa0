//! Grants that replicas of the server must confirm.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::clients::spawn_acquire;
use fencepost::backend::redis_server::settings::{Replicas, Settings};
use fencepost::backend::{BackendError, Health};
use fencepost::error::Error;
use fencepost::locks::Locks;
use fencepost::name::{LockName, Metadata};

use crate::redis_settings::harness::{acquire, health, replica, serves, standalone, take, token, until_waiting};
use crate::redis_settings::servers::{RedisServer, available, eventually};

const TTL: Duration = Duration::from_secs(30);

fn replica_of(master: &RedisServer) -> RedisServer {
    let port = master.port().to_string();
    let replica = RedisServer::start(&["--replicaof", &format!("127.0.0.1 {port}")]);
    eventually("the replica follows", Duration::from_secs(20), || {
        let link = replica.cli(&["INFO", "replication"]);
        link.contains("master_link_status:up").then_some(())
    });
    replica
}

pub fn master_with<const N: usize>() -> (RedisServer, [RedisServer; N]) {
    let master = RedisServer::start(&["--repl-diskless-sync-delay", "0"]);
    let replicas = std::array::from_fn(|_| replica_of(&master));
    (master, replicas)
}

/// Where the confirmation must come, on a slow machine too.
pub fn confirmed_by(count: u32, master: &RedisServer) -> Settings {
    let mut settings = standalone(&master.url());
    let timeout = Duration::from_secs(5);
    settings.replicas = Some(Replicas { count, timeout });
    settings
}

/// Where it does not come, and who asks is not to wait for it for long.
fn soon_confirmed_by(count: u32, master: &RedisServer) -> Settings {
    let mut settings = confirmed_by(count, master);
    let timeout = Duration::from_millis(500);
    settings.replicas = Some(Replicas { count, timeout });
    settings
}

/// A refusal because too few replicas confirmed, within the time that any call may take.
fn is_unconfirmed<T: std::fmt::Debug>(asked: Instant, answer: Result<T, Error>, why: &str) {
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    match answer {
        Err(Error::Backend(BackendError::Unavailable { reason } | BackendError::NotSent { reason })) => {
            assert!(reason.contains(why), "{reason}")
        }
        other => panic!("{other:?}"),
    }
}

async fn refused(locks: &Locks, lock: &str, why: &str) {
    let asked = Instant::now();
    is_unconfirmed(asked, acquire(locks, lock, TTL, Duration::ZERO).await, why);
}

/// Waits until nobody holds a lock or waits for it.
async fn is_free(locks: &Locks, lock: &str) {
    let name = LockName::new(lock).unwrap();
    let end = Instant::now() + TTL / 2;
    loop {
        let queue = locks.inspect(&name, 10).await.unwrap();
        if queue.holder_count + queue.waiter_count == 0 {
            return;
        }
        assert!(Instant::now() < end, "{queue:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

// G92
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_is_on_the_replica_when_it_is_answered() {
    common::skip_unless!(available());
    let (master, [copy]) = master_with::<1>();
    let locks = replica(&confirmed_by(1, &master)).await;
    for n in 0..50 {
        let lock = format!("lock{n}");
        take(&locks, &lock, TTL).await;
        assert_eq!(copy.cli(&["EXISTS", &format!("fencepost:faults:l:{lock}")]), "1");
    }
}

// G92
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_confirmation_of_a_frozen_replica_nothing_is_granted() {
    common::skip_unless!(available());
    let (master, [copy]) = master_with::<1>();
    let patient = replica(&confirmed_by(1, &master)).await;
    let locks = replica(&soon_confirmed_by(1, &master)).await;
    let (held, given_back) = (take(&patient, "a", TTL).await, take(&patient, "b", TTL).await);
    copy.pause();
    refused(&locks, "c", "only 0 of 1 replicas").await;
    // What was granted on the master alone is taken back, and what it held before stays.
    is_free(&locks, "c").await;
    is_unconfirmed(
        Instant::now(),
        locks.renew(&held.key, None).await,
        "only 0 of 1 replicas",
    );
    assert!(
        locks
            .check(&held.key.lock.name, held.key.token)
            .await
            .unwrap()
            .is_some()
    );
    locks.release(&given_back.key).await.unwrap();
    copy.resume();
    let end = Instant::now() + TTL / 2;
    let again = loop {
        match acquire(&locks, "c", TTL, Duration::ZERO).await {
            Ok(lease) => break lease,
            Err(error) => assert!(Instant::now() < end, "{error:?}"),
        }
    };
    assert!(token(&again) > token(&held));
    patient.renew(&held.key, None).await.unwrap();
}

// G92
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_that_no_replica_has_is_answered_by_no_server() {
    common::skip_unless!(available());
    let (master, [copy]) = master_with::<1>();
    let patient = replica(&confirmed_by(1, &master)).await;
    let held = take(&patient, "a", TTL).await;
    let settings = soon_confirmed_by(1, &master);
    let servers = [replica(&settings).await, replica(&settings).await];
    let note = Metadata::new([("note".into(), "x".into())]).unwrap();
    copy.pause();
    for locks in &servers {
        let asked = Instant::now();
        let updated = locks.update_metadata(&held.key, &note).await;
        is_unconfirmed(asked, updated, "only 0 of 1 replicas");
    }
    copy.resume();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_rides_out_a_replica_that_hangs_and_then_has_the_lock() {
    common::skip_unless!(available());
    let (master, [copy]) = master_with::<1>();
    let patient = replica(&confirmed_by(1, &master)).await;
    let locks = replica(&soon_confirmed_by(1, &master)).await;
    let held = take(&patient, "a", TTL).await;
    let waiting = spawn_acquire(&locks, "a", TTL, TTL);
    until_waiting(&locks, "a", 1).await;
    copy.pause();
    // The release succeeds, for what is gone from the master is given back; its successor waits on.
    locks.release(&held.key).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(!waiting.is_finished(), "granted without the replica");
    copy.resume();
    let next = waiting.await.unwrap().unwrap();
    assert!(token(&next) > token(&held));
    locks.release(&next.key).await.unwrap();
    is_free(&locks, "a").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_replicas_as_are_asked_for_must_confirm() {
    common::skip_unless!(available());
    let (master, copies) = master_with::<2>();
    let (one, both) = (
        replica(&confirmed_by(1, &master)).await,
        replica(&soon_confirmed_by(2, &master)).await,
    );
    copies[0].pause();
    take(&one, "a", TTL).await;
    refused(&both, "b", "only 1 of 2 replicas").await;
    copies[0].resume();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_too_few_replicas_does_not_serve_and_says_why() {
    common::skip_unless!(available());
    let master = RedisServer::start(&["--repl-diskless-sync-delay", "0"]);
    let locks = crate::redis_settings::harness::unready(&confirmed_by(1, &master));
    let says = |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains("has 0 replicas, and wait_replicas is 1"));
    health(&locks, TTL, says).await;
    refused(&locks, "a", "wait_replicas is 1").await;
    let _copy = replica_of(&master);
    serves(&locks, TTL).await;
    take(&locks, "a", TTL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_scripts_are_sent_again_in_the_turns_that_are_confirmed() {
    common::skip_unless!(available());
    let (master, _copies) = master_with::<1>();
    let settings = confirmed_by(1, &master);
    let replicas = [replica(&settings).await, replica(&settings).await];
    let forget = tokio::task::spawn_blocking(move || {
        for _ in 0..50 {
            master.cli(&["FUNCTION", "FLUSH"]);
            master.cli(&["SCRIPT", "FLUSH"]);
        }
        master
    });
    let (until, granted) = (Instant::now() + Duration::from_secs(2), Arc::new(AtomicUsize::new(0)));
    let clients = (0..8).map(|n| tokio::spawn(repeat(replicas[n % 2].clone(), until, Arc::clone(&granted))));
    let done = futures::future::join_all(clients).await;
    let mut tokens: Vec<u64> = done.into_iter().flat_map(Result::unwrap).collect();
    forget.await.unwrap();
    let granted = tokens.len();
    tokens.sort_unstable();
    tokens.dedup();
    assert!(
        granted > 100 && tokens.len() == granted,
        "{} of {granted}",
        tokens.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_that_confirmed_calls_find_forgotten_are_loaded_again() {
    common::skip_unless!(available());
    let (master, _copies) = master_with::<1>();
    let locks = replica(&confirmed_by(1, &master)).await;
    let loaded = || master.cli(&["FUNCTION", "LIST"]).contains("library_name").then_some(());
    loaded().expect("the functions are loaded at the start");
    assert_eq!(master.cli(&["FUNCTION", "FLUSH"]), "OK");
    // A grant, which replicas confirm, is the only call.
    let _held = take(&locks, "a", TTL).await;
    eventually("the functions are loaded again", Duration::from_secs(5), loaded);
}

/// Takes one lock and gives it back, again and again, longer where there were few grants; none of that
/// may fail.
async fn repeat(locks: Locks, until: Instant, granted: Arc<AtomicUsize>) -> Vec<u64> {
    let mut tokens = Vec::new();
    let few = || granted.load(Ordering::Relaxed) <= 100 && Instant::now() < until + TTL;
    while Instant::now() < until || few() {
        granted.fetch_add(1, Ordering::Relaxed);
        let lease = acquire(&locks, "hot", TTL, TTL).await.unwrap();
        tokens.push(token(&lease));
        locks.release(&lease.key).await.unwrap();
    }
    tokens
}
