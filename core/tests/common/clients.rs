//! What clients of one replica do, whatever its store.

use std::time::{Duration, Instant};

use fencepost_core::backend::{Health, PageRequest};
use fencepost_core::error::Error;
use fencepost_core::locks::{Acquire, Lease, Locks};
use fencepost_core::name::{Identity, LockName, Metadata, Mode, Owner, RequestId};
use futures::StreamExt;
use tokio::task::JoinHandle;

/// Waits until a replica serves, and says how long that took.
pub async fn serves(locks: &Locks, limit: Duration) -> Duration {
    health(locks, limit, |health| *health == Health::Serving).await
}

/// Waits until a replica's health is as `wanted`, and says how long that took.
pub async fn health(locks: &Locks, limit: Duration, wanted: impl Fn(&Health) -> bool) -> Duration {
    let began = Instant::now();
    let mut health = locks.health();
    let reached = tokio::time::timeout(limit, health.wait_for(|now| wanted(now)))
        .await
        .is_ok();
    assert!(reached, "not within {limit:?}: {:?}", locks.health().borrow().clone());
    began.elapsed()
}

/// Waits until so many wait for a lock. The store may not answer meanwhile.
pub async fn waiters(locks: &Locks, lock: &str, wanted: usize) {
    let mut found = None;
    let end = Instant::now() + Duration::from_secs(60);
    while found != Some(wanted) {
        assert!(
            Instant::now() < end,
            "not in time: {wanted} waiters for {lock}: {found:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
        found = locks.inspect(&name(lock), 1).await.ok().map(|queue| queue.waiter_count);
    }
}

/// A lock's name.
pub fn name(lock: &str) -> LockName {
    LockName::new(lock).expect("a good name")
}

/// What asks for a lock exclusively.
pub fn ask(lock: &str, ttl: Duration, wait: Duration) -> Acquire {
    Acquire {
        lock: name(lock),
        owner: Owner::new("tester").expect("a good name"),
        identity: Identity::anonymous(),
        mode: Mode::Exclusive,
        ttl: Some(ttl),
        wait,
        request_id: None,
        reentrant: false,
        metadata: Metadata::default(),
    }
}

/// Acquires exclusively.
pub async fn acquire(locks: &Locks, lock: &str, ttl: Duration, wait: Duration) -> Result<Lease, Error> {
    Ok(locks.acquire(ask(lock, ttl, wait)).await?.delivered())
}

/// Begins to acquire.
pub fn spawn_acquire(locks: &Locks, lock: &str, ttl: Duration, wait: Duration) -> JoinHandle<Result<Lease, Error>> {
    let (locks, lock) = (locks.clone(), lock.to_owned());
    tokio::spawn(async move { acquire(&locks, &lock, ttl, wait).await })
}

/// The same under a request id.
pub async fn acquire_as(
    locks: &Locks,
    lock: &str,
    request: &str,
    ttl: Duration,
    wait: Duration,
) -> Result<Lease, Error> {
    let named = Acquire {
        request_id: Some(RequestId::new(request).expect("a good id")),
        ..ask(lock, ttl, wait)
    };
    Ok(locks.acquire(named).await?.delivered())
}

/// Begins to try under a request id.
pub fn spawn_acquire_as(locks: &Locks, lock: &str, request: &str, ttl: Duration) -> JoinHandle<Result<Lease, Error>> {
    let (locks, lock, request) = (locks.clone(), lock.to_owned(), request.to_owned());
    tokio::spawn(async move { acquire_as(&locks, &lock, &request, ttl, Duration::ZERO).await })
}

/// Acquires what must be free.
pub async fn take(locks: &Locks, lock: &str, ttl: Duration) -> Lease {
    acquire(locks, lock, ttl, Duration::ZERO).await.unwrap()
}

/// A token as a number.
pub fn token(lease: &Lease) -> u64 {
    lease.key.token.get()
}

/// Waits until so many claims wait for the lock of a lease, as the replica sees it that is asked. The
/// answers to one replica keep their order: its own waiters know that they wait then.
pub async fn until_waiting(locks: &Locks, lock: &str, waiters: usize) {
    let (lock, end) = (name(lock), Instant::now() + Duration::from_secs(30));
    loop {
        let queue = locks.inspect(&lock, 1).await.unwrap();
        if queue.waiter_count == waiters {
            return;
        }
        assert!(Instant::now() < end, "not {waiters} waiters: {queue:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until no lock has a claim.
pub async fn until_empty(locks: &Locks) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let page = PageRequest { after: None, size: 9 };
        let left = locks.list("", page).await.expect("it lists").locks;
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "claims are left: {left:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// An Acquire that waits and arrives while the store is away is granted when the store is back.
pub async fn rides_out(locks: &Locks, stop: impl FnOnce(), go_on: impl FnOnce()) {
    stop();
    let call = locks.clone();
    let call = tokio::spawn(async move {
        let wait = Duration::from_secs(60);
        acquire(&call, "ridden", Duration::from_secs(20), wait).await
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!call.is_finished(), "{:?}", call.await);
    go_on();
    let lease = call.await.expect("no panic").expect("the outage was short");
    locks.renew(&lease.key, None).await.expect("it is held");
    locks.release(&lease.key).await.expect("it is held");
}

/// How long calls may take to fail once their store has stopped: 10 s, and two for a slow machine.
const TOLD: Duration = Duration::from_secs(12);

/// The waiters of one lock, and a watch that was shown one, end with an error soon after their store has stopped; also
/// waiters that arrive meanwhile.
pub async fn waits_and_watches_end(locks: &Locks, stop: impl FnOnce()) {
    let minute = Duration::from_secs(60);
    take(locks, "waited", minute).await;
    let wait = |after| {
        let locks = locks.clone();
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            (acquire(&locks, "waited", minute, minute).await, Instant::now())
        })
    };
    let mut waits: Vec<_> = (0..4).map(|_| wait(Duration::ZERO)).collect();
    while locks.inspect(&name("waited"), 1).await.expect("it serves").waiter_count < waits.len() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut watch = locks.watch(&name("watched"));
    watch.next().await.expect("the state").expect("the store serves");
    stop();
    let began = Instant::now();
    waits.extend((0..4).map(|_| wait(Duration::from_millis(4_500))));
    let limit = Duration::from_secs(30);
    let seen = tokio::time::timeout(limit, watch.next()).await.expect("it ends");
    println!("the watch ended after {:?}", began.elapsed());
    assert!(matches!(seen, Some(Err(Error::Backend(_)))), "{seen:?}");
    for wait in waits {
        let (told, at) = wait.await.expect("no panic");
        println!("a wait ended after {:?}", at - began);
        assert!(matches!(told, Err(Error::Backend(_))), "{told:?}");
        assert!(at - began < TOLD, "{:?}", at - began);
    }
}

/// A wait that ends just after its store has stopped, before anything has noticed that, says that the store is away: what
/// takes the call out of the queue is not answered.
pub async fn a_wait_that_ends_in_silence_says_so(locks: &Locks, stop: impl FnOnce()) {
    const WAIT: Duration = Duration::from_secs(1);
    take(locks, "silent", Duration::from_secs(60)).await;
    let waiting = spawn_acquire(locks, "silent", WAIT, WAIT);
    until_waiting(locks, "silent", 1).await;
    stop();
    let ended = waiting.await.expect("no panic");
    assert!(matches!(ended, Err(Error::Backend(_))), "{ended:?}");
}

/// Holds what is promised about a time to the best of three runs: a machine that stood still for a
/// moment is no service that is late.
pub async fn best_of_three(bound: Duration, mut run: impl AsyncFnMut() -> Duration) {
    let mut all = Vec::new();
    for _ in 0..3 {
        let took = run().await;
        println!("it took {took:?}");
        if took < bound {
            return;
        }
        all.push(took);
    }
    panic!("never within {bound:?}: {all:?}");
}
