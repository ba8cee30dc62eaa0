//! A script that cannot end as it should has changed nothing, and stops nobody.

use std::num::NonZeroU64;

use fencepost::backend::record::store::ServerId;
use fencepost::backend::{
    AcquireOutcome, Backend, BackendError, Grant, Health, InspectLimit, NewClaim, ReleaseTarget, Released, WaitPolicy,
};
use fencepost::claim::Cause;
use fencepost::name::{LockKey, LockName, Namespace};

use crate::redis_settings::access::{RIGHTS, with_user};
use crate::redis_settings::harness::standalone;
use crate::redis_settings::opened::{claim, open};
use crate::redis_settings::servers::{RedisServer, available};

const KEY: &str = "fencepost:long:l:a";

fn lock(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

async fn acquire(backend: &dyn Backend, name: &str, claim: &NewClaim) -> AcquireOutcome {
    backend.acquire(&lock(name), claim).await.unwrap()
}

async fn hold(backend: &dyn Backend, name: &str, claim: &NewClaim) -> Grant {
    match acquire(backend, name, claim).await {
        AcquireOutcome::Held(grant) => grant,
        other => panic!("{other:?}"),
    }
}

async fn release(backend: &dyn Backend, name: &str, grant: &Grant) -> Result<Released, BackendError> {
    let lease = grant.lease(LockKey {
        namespace: Namespace::new("long").unwrap(),
        name: lock(name),
    });
    let left = backend.release(&lock(name), ReleaseTarget::Hold(&lease), None).await;
    left.map(|outcome| outcome.released)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_that_loses_its_channels_leaves_locks_whole() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    with_user(&server, "locks", "right", RIGHTS);
    let url = server.url().replace("redis://", "redis://locks:right@");
    let backend = crate::redis_settings::opened::open_at(&url).await;
    let held = hold(&*backend, "a", &claim(1)).await;
    let waits = acquire(&*backend, "a", &claim(2)).await;
    assert!(matches!(waits, AcquireOutcome::Waiting(_)), "{waits:?}");
    assert_eq!(server.cli(&["ACL", "SETUSER", "locks", "resetchannels"]), "OK");
    // Nobody can be told, and that is all.
    let found = release(&*backend, "a", &held).await;
    assert_eq!(found, Ok(Released::Ended(Cause::Released)));
    let left = backend
        .release(&lock("a"), ReleaseTarget::Call(&claim(2).id, claim(2).call), None)
        .await;
    assert!(matches!(left.unwrap().released, Released::Ended(_)));
    hold(&*backend, "a", &claim(3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_the_right_to_write_changes_nothing() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    with_user(&server, "locks", "right", RIGHTS);
    let url = server.url().replace("redis://", "redis://locks:right@");
    let backend = crate::redis_settings::opened::open_at(&url).await;
    let held = hold(&*backend, "a", &claim(1)).await;
    assert_eq!(server.cli(&["ACL", "SETUSER", "locks", "-hset"]), "OK");
    let before = server.cli(&["DUMP", KEY]);
    let refused = release(&*backend, "a", &held).await;
    assert!(
        matches!(&refused, Err(BackendError::NotSent { reason }) if reason.contains("HSET")),
        "{refused:?}"
    );
    assert_eq!(server.cli(&["DUMP", KEY]), before);
    assert_eq!(server.cli(&["ACL", "SETUSER", "locks", "+hset"]), "OK");
    assert_eq!(
        release(&*backend, "a", &held).await,
        Ok(Released::Ended(Cause::Released))
    );
}

/// What somebody has done to the record of a lock with a holder and waiters.
const DAMAGES: &[&str] = &[
    "redis.call('HDEL', KEYS[1], 'm')",
    "redis.call('HSET', KEYS[1], 'm', 'nonsense')",
    "redis.call('HSET', KEYS[1], 'm', '')",
    "redis.call('HSET', KEYS[1], 'm', redis.call('HGET', KEYS[1], 'm'):sub(1, 40))",
    "redis.call('HSET', KEYS[1], 'm', '\\193' .. redis.call('HGET', KEYS[1], 'm'):sub(2))",
    "redis.call('HSET', KEYS[1], 'm', '\\5' .. redis.call('HGET', KEYS[1], 'm'):sub(2))",
    "redis.call('DEL', KEYS[1]) redis.call('SET', KEYS[1], 'x')",
];

// G98
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_record_is_refused_and_hurts_no_other_lock() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let backend = open(&server).await;
    for (at, damage) in DAMAGES.iter().enumerate() {
        server.cli(&["FLUSHDB"]);
        let held = hold(&*backend, "a", &claim(1)).await;
        acquire(&*backend, "a", &claim(2)).await;
        server.cli(&["EVAL", damage, "1", KEY]);
        let before = server.cli(&["DUMP", KEY]);
        let released = release(&*backend, "a", &held).await;
        let mut trying = claim(100);
        trying.wait_policy = WaitPolicy::NoWait;
        let tried = backend.acquire(&lock("a"), &trying).await;
        // Whoever cannot know whether the lock is held is not given it.
        assert!(!matches!(tried, Ok(AcquireOutcome::Held(_))), "{damage}: {tried:?}");
        match &released {
            Err(BackendError::NotSent { reason }) => assert!(reason.contains("cannot be read"), "{damage}: {reason}"),
            told => panic!("{damage}: {told:?}"),
        }
        assert_eq!(server.cli(&["DUMP", KEY]), before, "{damage}");
        // Whatever is still found in it, Redis lives, and answers soon.
        let _ = backend.inspect(&lock("a"), InspectLimit::of_each(100)).await;
        let _ = backend.promote(&lock("a"), &claim(2)).await;
        let other = claim(200 + at as u128);
        let granted = hold(&*backend, "b", &other).await;
        assert_eq!(
            release(&*backend, "b", &granted).await,
            Ok(Released::Ended(Cause::Released))
        );
        assert_eq!(*backend.health().borrow(), Health::Serving, "{damage}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_health_says_that_messages_may_not_be_sent_or_heard() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let none: Vec<&str> = RIGHTS.iter().copied().filter(|right| !right.starts_with('&')).collect();
    let deaf: Vec<&str> = RIGHTS.iter().copied().chain(["-subscribe"]).collect();
    let mute: Vec<&str> = RIGHTS.iter().copied().chain(["-publish"]).collect();
    for (user, rights) in [("none", none), ("deaf", deaf), ("mute", mute)] {
        with_user(&server, user, "right", &rights);
        let url = server.url().replace("redis://", &format!("redis://{user}:right@"));
        let store = fencepost::backend::redis::Store::open(standalone(&url)).unwrap();
        let backend = store.namespace(&Namespace::new("long").unwrap());
        let mut health = backend.health();
        let told = health.wait_for(|health| match health {
            Health::Unavailable { reason } => reason.contains("messages"),
            _ => false,
        });
        let told = tokio::time::timeout(std::time::Duration::from_secs(10), told).await;
        assert!(told.is_ok(), "{user}: {:?}", *backend.health().borrow());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_counter_of_a_server_is_removed_and_hurts_no_other() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let records = crate::redis_settings::kept::open_records(&server).await;
    let one = ServerId(NonZeroU64::MIN);
    records.beat(one).await.unwrap();
    let damage =
        "redis.call('HSET', KEYS[1], '12345678', 'short', 'no id', ('x'):rep(16), ('\\0'):rep(8), ('x'):rep(16))";
    server.cli(&["EVAL", damage, "1", "fencepost:long:servers"]);
    let beaten = records.beat(one).await.unwrap();
    assert_eq!(beaten.iter().map(|(server, _)| *server).collect::<Vec<_>>(), [one]);
    assert_eq!(server.cli(&["HLEN", "fencepost:long:servers"]), "1");
}
