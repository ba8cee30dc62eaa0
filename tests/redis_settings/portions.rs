//! How much one script does at most, counted and not timed.

use std::time::Duration;

use fencepost::backend::redis::Redis;
use fencepost::backend::{
    AcquireOutcome, Backend, InspectLimit, NewClaim, ReleaseTarget, Released, RenewOutcome, WaitPolicy,
};
use fencepost::claim::Cause;
use fencepost::name::{LockKey, LockName, Mode, Namespace, Ttl};
use futures::{StreamExt, stream};

use crate::long_queues::{claim, open};
use crate::servers::{RedisServer, available};

fn lock() -> LockName {
    LockName::new("a").unwrap()
}

/// A call that finds nothing and changes nothing itself.
async fn call(backend: &Redis) {
    let place = backend.promote(&lock(), &claim(1_000_000)).await.unwrap();
    assert!(matches!(place, AcquireOutcome::Gone), "{place:?}");
}

async fn acquire_all(backend: &Redis, claims: impl Iterator<Item = NewClaim>) {
    let acquired = stream::iter(claims).map(|claim| async move { backend.acquire(&lock(), &claim).await.unwrap() });
    let places: Vec<AcquireOutcome> = acquired.buffer_unordered(100).collect().await;
    let acquired = |place: &AcquireOutcome| matches!(place, AcquireOutcome::Held(_) | AcquireOutcome::Waiting(_));
    assert!(places.iter().all(acquired));
}

/// How many fields of this kind the record has.
fn fields(server: &RedisServer, kind: &str) -> usize {
    let count = "local count = 0 for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do \
                 if field:sub(1, 1) == ARGV[1] then count = count + 1 end end return count";
    let count = server.cli(&["EVAL", count, "1", "fencepost:long:l:a", kind]);
    count.parse().unwrap()
}

/// Whether waiters are still to be looked at for a dead replica.
fn sweeps(server: &RedisServer) -> bool {
    let sweep = "local m = {cmsgpack.unpack(redis.call('HGET', KEYS[1], 'm'))} return #m[43]";
    server.cli(&["EVAL", sweep, "1", "fencepost:long:l:a"]) == "16"
}

#[tokio::test]
async fn one_call_purges_a_few_of_many_expired_holders() {
    if !available() {
        return;
    }
    let mut server = RedisServer::with_clock(&[]);
    let backend = open(&server).await;
    let short = |number| NewClaim {
        ttl: Ttl::new(Duration::from_secs(60)).unwrap(),
        mode: Mode::semaphore(1, 1_000).unwrap(),
        ..claim(number)
    };
    acquire_all(&backend, (1..=60).map(short)).await;
    server.shift_clock(120);
    let mut left = 60;
    while left > 0 {
        call(&backend).await;
        let now = fields(&server, "h");
        assert!(
            (1..=10).contains(&(left - now)),
            "{left} before the call, {now} behind it"
        );
        left = now;
    }
}

#[tokio::test]
async fn one_call_looks_at_a_few_waiters_for_a_dead_replica_and_buries_fewer() {
    if !available() {
        return;
    }
    let mut server = RedisServer::with_clock(&[]);
    let (living, dying) = (open(&server).await, open(&server).await);
    let caller = open(&server).await;
    acquire_all(&living, std::iter::once(claim(0))).await;
    acquire_all(&dying, (1..=70).map(claim)).await;
    drop(dying);
    // The lock's clock for waiters counts 3 s of silence at most.
    server.shift_clock(4);
    acquire_all(&living, (1_001..=1_400).map(claim)).await;
    // No heartbeat purges between the calls, and the replica counts as alive for a while.
    drop(living);
    server.shift_clock(8);
    let mut left = 470;
    while left > 400 {
        call(&caller).await;
        let now = fields(&server, "q");
        assert!(
            (1..=25).contains(&(left - now)),
            "{left} before the call, {now} behind it"
        );
        left = now;
    }
    let mut calls = 0;
    while sweeps(&server) {
        call(&caller).await;
        calls += 1;
    }
    assert!((2..=10).contains(&calls), "{calls}");
    assert_eq!(fields(&server, "q"), 400);
}

#[tokio::test]
async fn one_call_forgets_a_few_of_many_ended_calls() {
    if !available() {
        return;
    }
    let mut server = RedisServer::with_clock(&[]);
    let backend = open(&server).await;
    for number in 1..=50 {
        let claim = claim(number);
        acquire_all(&backend, std::iter::once(claim.clone())).await;
        let left = backend
            .release(&lock(), ReleaseTarget::Call(&claim.id, claim.call), None)
            .await;
        left.unwrap();
    }
    assert_eq!(fields(&server, "F"), 50);
    server.shift_clock(90);
    acquire_all(&backend, std::iter::once(claim(51))).await;
    let left = fields(&server, "F");
    assert!((40..50).contains(&left), "{left}");
}

#[tokio::test]
async fn an_inspection_shows_no_expired_holder_however_many_there_are() {
    if !available() {
        return;
    }
    let mut server = RedisServer::with_clock(&[]);
    let backend = open(&server).await;
    let reader = |number| NewClaim {
        mode: Mode::Shared,
        ttl: Ttl::new(Duration::from_secs(60)).unwrap(),
        ..claim(number)
    };
    acquire_all(&backend, (1..=60).map(reader)).await;
    server.shift_clock(120);
    let seen = backend.inspect(&lock(), InspectLimit::of_each(10)).await.unwrap();
    assert_eq!(seen.holder_count, 0);
}

#[tokio::test]
async fn no_expired_holder_is_renewed_or_in_the_way_however_many_there_are() {
    if !available() {
        return;
    }
    let mut server = RedisServer::with_clock(&[]);
    let backend = open(&server).await;
    let reader = |number| NewClaim {
        mode: Mode::Shared,
        ttl: Ttl::new(Duration::from_secs(60)).unwrap(),
        ..claim(number)
    };
    acquire_all(&backend, (1..=30).map(reader)).await;
    let AcquireOutcome::Held(last) = backend.acquire(&lock(), &reader(31)).await.unwrap() else {
        panic!("it fits");
    };
    server.shift_clock(120);
    let lease = last.lease(LockKey {
        namespace: Namespace::new("long").unwrap(),
        name: lock(),
    });
    let renewed = backend.renew(&lease, None).await.unwrap();
    assert_eq!(renewed, RenewOutcome::Gone(Some(Cause::Expired)));
    let trying = NewClaim {
        wait_policy: WaitPolicy::NoWait,
        ..claim(32)
    };
    let place = backend.acquire(&lock(), &trying).await.unwrap();
    assert!(matches!(place, AcquireOutcome::Held(_)), "{place:?}");
}

#[tokio::test]
async fn a_waiter_that_leaves_while_the_others_are_looked_at_does_not_stop_that() {
    if !available() {
        return;
    }
    let mut server = RedisServer::with_clock(&[]);
    let (living, dying) = (open(&server).await, open(&server).await);
    let caller = open(&server).await;
    acquire_all(&living, std::iter::once(claim(0))).await;
    for number in 1..=250 {
        acquire_all(&living, std::iter::once(claim(number))).await;
    }
    acquire_all(&dying, std::iter::once(claim(1_000))).await;
    drop(dying);
    server.shift_clock(4);
    acquire_all(&living, std::iter::once(claim(251))).await;
    drop(living);
    server.shift_clock(8);
    // The first call looks at a hundred of the waiters, and the next one at as many: this one is next after these.
    call(&caller).await;
    assert!(sweeps(&server));
    let next = claim(201);
    let left = caller
        .release(&lock(), ReleaseTarget::Call(&next.id, next.call), None)
        .await;
    assert_eq!(left.unwrap().released, Released::Ended(Cause::Cancelled));
    call(&caller).await;
    assert!(!sweeps(&server));
    assert_eq!(fields(&server, "q"), 250);
}

#[tokio::test]
async fn a_crowd_that_fits_comes_in_although_one_call_lets_in_a_few() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let backend = open(&server).await;
    let reader = |number| NewClaim {
        mode: Mode::Shared,
        ..claim(number)
    };
    acquire_all(&backend, std::iter::once(claim(0))).await;
    for number in 1..=150 {
        acquire_all(&backend, std::iter::once(reader(number))).await;
    }
    let left = backend
        .release(&lock(), ReleaseTarget::Call(&claim(0).id, claim(0).call), None)
        .await;
    left.unwrap();
    for number in 1..=150 {
        let place = backend.promote(&lock(), &reader(number)).await.unwrap();
        assert!(matches!(place, AcquireOutcome::Held(_)), "{number}: {place:?}");
    }
}
