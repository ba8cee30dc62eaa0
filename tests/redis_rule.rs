//! The prefix rule stands twice: in Rust, and in the scripts. Random queues hold the second to the
//! first.
#![cfg(feature = "redis")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost::backend::redis::Store;
use fencepost::backend::redis_server::settings::{OnEmptyStore, Servers, Settings};
use fencepost::backend::{AcquireOutcome, Backend, Health, InspectLimit, NewClaim, ReleaseTarget, Released};
use fencepost::claim::prefix_len;
use fencepost::name::{LockName, Mode, Namespace, Ttl};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

#[path = "common/claims.rs"]
mod claims;
#[path = "common/redis.rs"]
mod servers;

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        Just(Mode::Exclusive),
        Just(Mode::Shared),
        (1u32..4, 3u32..8).prop_map(|(permits, limit)| Mode::semaphore(permits, limit).unwrap()),
    ]
}

/// Many permits of several limits, of which as many as fit hold.
fn permit() -> impl Strategy<Value = Mode> {
    (1u32..3, 8u32..14).prop_map(|(permits, limit)| Mode::semaphore(permits, limit).unwrap())
}

fn claim(number: u128, mode: Mode) -> NewClaim {
    NewClaim {
        mode,
        ..claims::numbered(number)
    }
}

/// Acquires in these modes, lets some leave, and after each step compares who may hold: the waiters that
/// the rule lets in must be promoted, the next one must not.
async fn walk(backend: &Arc<dyn Backend>, lock: &LockName, modes: Vec<Mode>, leaving: Vec<Index>) {
    let mut queue: Vec<NewClaim> = Vec::new();
    for (number, mode) in modes.into_iter().enumerate() {
        let claim = claim(number as u128, mode);
        let place = backend.acquire(lock, &claim).await.unwrap();
        let mixes = queue.iter().all(|other| other.mode.mixes(mode));
        assert_eq!(!mixes, matches!(place, AcquireOutcome::Refused(_)), "{place:?}");
        if mixes {
            queue.push(claim);
        }
    }
    check(backend, lock, &queue).await;
    for index in leaving {
        if queue.is_empty() {
            break;
        }
        let gone = queue.remove(index.index(queue.len()));
        backend
            .release(lock, ReleaseTarget::Call(&gone.id, gone.call), None)
            .await
            .unwrap();
        check(backend, lock, &queue).await;
    }
}

async fn check(backend: &Arc<dyn Backend>, lock: &LockName, queue: &[NewClaim]) {
    // Who looks sees a lock without the holders whose time is over, also where one script cannot purge them all.
    let _ = backend.inspect(lock, InspectLimit::of_each(0)).await.unwrap();
    let holders = prefix_len(queue.iter().map(|claim| claim.mode));
    for (at, claim) in queue.iter().enumerate() {
        let place = backend.promote(lock, claim).await.unwrap();
        assert_eq!(
            at < holders,
            matches!(place, AcquireOutcome::Held(_)),
            "{at} of {queue:?}: {place:?}"
        );
    }
    let seen = backend.inspect(lock, InspectLimit::of_each(0)).await.unwrap();
    assert_eq!((seen.holder_count, seen.waiter_count), (holders, queue.len() - holders));
}

/// The same for semaphore claims, where such a release has written the lock before each step; see [`AS_BEFORE`].
async fn walk_as_before(server: &servers::RedisServer, backend: &Arc<dyn Backend>, lock: &LockName, leaving: usize) {
    let key = format!("fencepost:rule:l:{}", lock.encoded());
    let write_as_before = || server.cli(&["EVAL", AS_BEFORE, "1", &key]);
    let mut queue: Vec<NewClaim> = Vec::new();
    let shares = [(1, 5), (1, 3), (1, 5), (1, 4), (2, 5), (1, 1), (1, 5), (3, 6)];
    for (number, (permits, limit)) in (0..).zip(shares) {
        let claim = claim(number, Mode::semaphore(permits, limit).unwrap());
        assert_eq!(write_as_before(), "0");
        backend.acquire(lock, &claim).await.unwrap();
        queue.push(claim);
        check(backend, lock, &queue).await;
    }
    while !queue.is_empty() {
        let gone = queue.remove(leaving % queue.len());
        assert_eq!(write_as_before(), "0");
        let left = backend.release(lock, ReleaseTarget::Call(&gone.id, gone.call), None);
        left.await.unwrap();
        check(backend, lock, &queue).await;
    }
    remembers_no_claim(server, &key);
}

/// What such a release has made of the record after it removed a holder with a limit of two: the last waiter waits,
/// because that limit is kept.
const LEFT_WAITING: &str = "local m = {cmsgpack.unpack(redis.call('HGET', KEYS[1], 'm'))} \
                            m[8], m[9], m[11] = m[8] - 1, m[9] - 1, m[11] - 1 \
                            m[10], m[34], m[41] = 2, 0, m[38] \
                            return redis.call('HSET', KEYS[1], 'm', cmsgpack.pack(unpack(m, 1, 43)))";

/// Time passes in steps of so many seconds, and TTLs end in the midst of one: what the test itself takes does
/// not count.
const STEP: u64 = 200;

/// What happens to a lock.
#[derive(Debug, Clone)]
enum Act {
    /// So many claims of a mode come, with TTLs that differ.
    Come(Mode, u128),
    /// So many go, from here in the queue.
    Go(Index, usize),
    /// So many times [`STEP`] pass.
    Pass(u64),
    /// A release that refuses mixed limits writes the lock.
    WriteAsBefore,
}

/// Such a release does not know the counts of limits, and keeps the smallest limit until its prefix is empty.
const AS_BEFORE: &str = "local raw = redis.call('HGET', KEYS[1], 'm') if not raw then return 0 end \
                         local m = {cmsgpack.unpack(raw)} \
                         if redis.call('HEXISTS', KEYS[1], 'l') == 1 then m[10] = 1 end \
                         return redis.call('HSET', KEYS[1], 'm', cmsgpack.pack(unpack(m, 1, 43)))";

fn act() -> impl Strategy<Value = Act> {
    // More than one script tells: readers and permits of wide semaphores.
    let wide = (70u32..100).prop_map(|limit| Mode::semaphore(1, limit).unwrap());
    let crowd = prop_oneof![1 => Just(Mode::Shared), 2 => wide];
    prop_oneof![
        4 => (prop_oneof![mode(), permit()], 1..4u128).prop_map(|(mode, count)| Act::Come(mode, count)),
        1 => (crowd, 60..110u128).prop_map(|(mode, count)| Act::Come(mode, count)),
        3 => (any::<Index>(), 1..60usize).prop_map(|(from, count)| Act::Go(from, count)),
        1 => (1..8u64).prop_map(Act::Pass),
        1 => Just(Act::WriteAsBefore),
    ]
}

/// Claims that come in crowds, go from the midst of the queue and expire: after each act the scripts and
/// the rule agree, and in the end the lock remembers no claim.
async fn live(
    server: &mut servers::RedisServer,
    backend: &Arc<dyn Backend>,
    lock: &LockName,
    acts: Vec<Act>,
    passed: &mut u64,
) {
    let (mut queue, mut number): (Vec<NewClaim>, u128) = (Vec::new(), 0);
    let mut held = HashMap::new();
    let key = format!("fencepost:rule:l:{}", lock.encoded());
    for act in acts {
        match act {
            Act::Come(mode, count) => {
                for _ in 0..count {
                    number += 1;
                    let mut claim = claim(number, mode);
                    let ttl = STEP / 2 + STEP * (number as u64 * 7 % 11);
                    claim.ttl = Ttl::new(Duration::from_secs(ttl)).unwrap();
                    let place = backend.acquire(lock, &claim).await.unwrap();
                    let mixes = queue.iter().all(|other| other.mode.mixes(mode));
                    assert_eq!(!mixes, matches!(place, AcquireOutcome::Refused(_)), "{place:?}");
                    if mixes {
                        queue.push(claim);
                    }
                }
            }
            Act::Go(from, count) => {
                for _ in 0..count.min(queue.len()) {
                    let gone = queue.remove(from.index(queue.len()));
                    let left = backend
                        .release(lock, ReleaseTarget::Call(&gone.id, gone.call), None)
                        .await;
                    assert!(matches!(left.unwrap().released, Released::Ended(_)));
                }
            }
            Act::Pass(steps) => {
                *passed += STEP * steps;
                server.shift_clock(i64::try_from(*passed).unwrap());
                let lives = |claim: &NewClaim| {
                    let since: Option<&u64> = held.get(&claim.id);
                    since.is_none_or(|since| since + claim.ttl.get().as_secs() > *passed)
                };
                queue.retain(lives);
            }
            Act::WriteAsBefore => {
                assert_eq!(server.cli(&["EVAL", AS_BEFORE, "1", &key]), "0");
            }
        }
        check(backend, lock, &queue).await;
        for claim in &queue[..prefix_len(queue.iter().map(|claim| claim.mode))] {
            held.entry(claim.id).or_insert(*passed);
        }
    }
    for gone in queue {
        let left = backend
            .release(lock, ReleaseTarget::Call(&gone.id, gone.call), None)
            .await;
        assert!(matches!(left.unwrap().released, Released::Ended(_)));
    }
    remembers_no_claim(server, &key);
}

fn remembers_no_claim(server: &servers::RedisServer, key: &str) {
    let fields = server.cli(&[
        "EVAL",
        "local kinds = {} for _, f in ipairs(redis.call('HKEYS', KEYS[1])) do \
                                kinds[#kinds + 1] = f:sub(1, 1) end return table.concat(kinds)",
        "1",
        key,
    ]);
    assert!(fields.chars().all(|kind| "mFfrR".contains(kind)), "{fields}");
}

async fn serving(server: &servers::RedisServer) -> Arc<dyn Backend> {
    let mut settings = Settings::new(Servers::standalone(&server.url()).unwrap());
    settings.on_empty_store = OnEmptyStore::Admit;
    let backend = Store::open(settings).namespace(&Namespace::new("rule").unwrap());
    let mut health = backend.health();
    health.wait_for(|health| *health == Health::Serving).await.unwrap();
    backend
}

#[test]
fn a_lock_that_a_release_before_has_written_goes_on_with_several_limits() {
    if !servers::available() {
        return;
    }
    let server = servers::RedisServer::start(&[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let backend = runtime.block_on(serving(&server));
    let lock = LockName::new("left").unwrap();
    runtime.block_on(async {
        let claims = [(1, 5), (1, 2), (1, 5), (1, 5)];
        let claims = (0..).zip(claims).map(|(number, (permits, limit))| {
            let mode = Mode::semaphore(permits, limit).unwrap();
            claim(number, mode)
        });
        let mut queue: Vec<_> = claims.collect();
        for claim in &queue {
            backend.acquire(&lock, claim).await.unwrap();
        }
        let gone = queue.remove(1);
        let left = backend.release(&lock, ReleaseTarget::Call(&gone.id, gone.call), None);
        left.await.unwrap();
        assert_eq!(server.cli(&["EVAL", LEFT_WAITING, "1", "fencepost:rule:l:left"]), "0");
        check(&backend, &lock, &queue).await;
    });
    for leaving in [0, 1, 2, 5, 839] {
        let lock = LockName::new(&format!("before{leaving}")).unwrap();
        runtime.block_on(walk_as_before(&server, &backend, &lock, leaving));
    }
}

#[test]
fn the_scripts_and_the_rule_agree_on_crowds_that_come_go_and_expire() {
    if !servers::available() {
        return;
    }
    let mut server = servers::RedisServer::with_clock(&[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let backend = runtime.block_on(serving(&server));
    let (mut number, mut passed) = (0, 0);
    let cases = if cfg!(feature = "soak") { 500 } else { 3 };
    let mut random = TestRunner::new(Config::default());
    for _ in 0..cases {
        let acts = prop::collection::vec(act(), 2..10)
            .new_tree(&mut random)
            .unwrap()
            .current();
        println!("{acts:?}");
        number += 1;
        let lock = LockName::new(&format!("crowd{number}")).unwrap();
        runtime.block_on(live(&mut server, &backend, &lock, acts, &mut passed));
    }
}

#[test]
fn the_scripts_and_the_rule_agree_on_every_queue() {
    if !servers::available() {
        return;
    }
    let server = servers::RedisServer::start(&[]);
    // Here by scripts, and above by functions of the same text.
    assert_eq!(server.cli(&["ACL", "SETUSER", "default", "-function"]), "OK");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let backend = runtime.block_on(serving(&server));
    let number = std::cell::Cell::new(0);
    let cases = if cfg!(feature = "soak") { 5_000 } else { 150 };
    let modes = prop_oneof![
        prop::collection::vec(mode(), 1..14),
        prop::collection::vec(permit(), 1..14),
    ];
    let steps = (modes, prop::collection::vec(any::<Index>(), 0..14));
    let walked = TestRunner::new(Config::with_cases(cases)).run(&steps, |(modes, leaving)| {
        number.set(number.get() + 1);
        let lock = LockName::new(&format!("lock{}", number.get())).unwrap();
        runtime.block_on(walk(&backend, &lock, modes, leaving));
        Ok(())
    });
    walked.unwrap();
}
