//! What one script does is bounded, however many claims a lock has and had.

use std::time::Duration;

use fencepost::backend::redis::Redis;
use fencepost::backend::{
    AcquireOutcome, Backend, InspectLimit, NewClaim, ReleaseOutcome, ReleaseTarget, Released, WaitPolicy,
};
use fencepost::claim::Cause;
use fencepost::name::{FencingToken, LockKey, LockName, Mode, Namespace, Ttl};
use futures::{StreamExt, stream};

use crate::long_queues::{claim, open, worked};
use crate::servers::{RedisServer, available};

/// For how long one script may work.
const LONGEST: Duration = Duration::from_millis(5);
/// How often a call is measured; the fastest counts, for the machine does other things too.
const TIMES: usize = 5;

const WAITERS: u128 = if cfg!(feature = "soak") { 10_000 } else { 3_000 };
const HOLDERS: u128 = if cfg!(feature = "soak") { 20_000 } else { 4_000 };
/// Turns that were issued and given back behind a holder.
const TURNS: u128 = if cfg!(feature = "soak") { 1_000_000 } else { 6_000 };

fn lock() -> LockName {
    LockName::new("a").unwrap()
}

fn semaphore(number: u128) -> NewClaim {
    let mut claim = NewClaim {
        mode: Mode::semaphore(1, 1_000_000).unwrap(),
        ..claim(number)
    };
    claim.limits.queue = 1_000_000;
    claim
}

/// Acquires with all of them, many at once.
async fn acquire_all(backend: &Redis, claims: impl Iterator<Item = NewClaim>) -> Vec<AcquireOutcome> {
    let acquired = stream::iter(claims).map(|claim| async move { backend.acquire(&lock(), &claim).await.unwrap() });
    acquired.buffer_unordered(100).collect().await
}

/// The longest script that took more than [`LONGEST`] by the server's own log since it was last asked.
fn slow(server: &RedisServer) -> Duration {
    let log = server.cli(&["--json", "SLOWLOG", "GET", "-1"]);
    server.cli(&["SLOWLOG", "RESET"]);
    let log: serde_json::Value = serde_json::from_str(&log).unwrap();
    let is_script = |entry: &&serde_json::Value| {
        let command = entry[3][0].as_str();
        command.is_some_and(|command| command.starts_with("EVAL") || command == "FCALL")
    };
    let scripts = log.as_array().unwrap().iter().filter(is_script);
    let took = scripts.map(|entry| entry[2].as_u64().unwrap()).max();
    Duration::from_micros(took.unwrap_or_default())
}

/// A server that logs each script that takes longer than it may.
const LOGGED: &[&str] = &["--slowlog-log-slower-than", "5000", "--slowlog-max-len", "1000"];

fn server() -> RedisServer {
    RedisServer::start(LOGGED)
}

/// The longest script of a call that is made several times, in the fastest of them: by the server's log, or
/// by what its thread has worked, where the machine let it wait.
async fn longest<T>(server: &RedisServer, what: &str, mut call: impl AsyncFnMut() -> T) -> Duration {
    let mut fastest = Duration::MAX;
    for _ in 0..TIMES {
        slow(server);
        let before = worked(server);
        call().await;
        let thread = worked(server) - before;
        let logged = slow(server);
        println!("{what}: {thread:?} of work, {logged:?} in the log");
        // What the log does not name was fast enough; what it names may have waited for the machine.
        fastest = fastest.min(thread.min(logged));
    }
    assert!(fastest < LONGEST, "{what}: {fastest:?}");
    fastest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_that_were_given_back_cost_nothing() {
    if !available() {
        return;
    }
    let server = server();
    let backend = open(&server).await;
    let held = backend.acquire(&lock(), &claim(1)).await.unwrap();
    let AcquireOutcome::Held(held) = held else {
        panic!("{held:?}")
    };
    let first = backend.acquire(&lock(), &claim(2)).await.unwrap();
    assert!(matches!(first, AcquireOutcome::Waiting(_)), "{first:?}");
    let polled = stream::iter(10..10 + TURNS).map(|number| {
        let (backend, gone) = (&backend, claim(number));
        async move {
            backend.acquire(&lock(), &gone).await.unwrap();
            let left = backend
                .release(&lock(), ReleaseTarget::Call(&gone.id, gone.call), None)
                .await;
            left.unwrap().released == Released::Ended(Cause::Cancelled)
        }
    });
    let gave_back = polled
        .buffer_unordered(100)
        .filter(|left| futures::future::ready(*left));
    assert_eq!(gave_back.count().await as u128, TURNS);
    backend.acquire(&lock(), &claim(3)).await.unwrap();
    longest(&server, "look", async || {
        let seen = backend.inspect(&lock(), InspectLimit::of_each(1_000)).await.unwrap();
        assert_eq!((seen.holder_count, seen.waiter_count), (1, 2));
    })
    .await;
    let fields: usize = server.cli(&["HLEN", "fencepost:long:l:a"]).parse().unwrap();
    assert!(fields < 20, "{fields}");
    // The lock goes on past all of them.
    let lease = held.lease(LockKey {
        namespace: Namespace::new("long").unwrap(),
        name: lock(),
    });
    let left = backend
        .release(&lock(), ReleaseTarget::Hold(&lease), Some(&claim(2)))
        .await
        .unwrap();
    assert!(left.next.is_some());
    slow(&server);
    let left = backend
        .release(&lock(), ReleaseTarget::Call(&claim(2).id, claim(2).call), None)
        .await;
    assert_eq!(left.unwrap().released, Released::Ended(Cause::Undone));
    let next = backend.promote(&lock(), &claim(3)).await.unwrap();
    assert!(matches!(next, AcquireOutcome::Held(_)), "{next:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_thousands_of_waiters_costs_what_one_of_few_does() {
    if !available() {
        return;
    }
    let server = server();
    let backend = open(&server).await;
    let AcquireOutcome::Held(held) = backend.acquire(&lock(), &claim(1)).await.unwrap() else {
        panic!("not held")
    };
    let reader = |number| NewClaim {
        mode: Mode::Shared,
        ..claim(number)
    };
    acquire_all(&backend, (2..2 + WAITERS).map(reader)).await;
    let mut number = 1_000_000;
    longest(&server, "enter and leave", async || {
        number += 1;
        let late = reader(number);
        let place = backend.acquire(&lock(), &late).await.unwrap();
        assert!(matches!(place, AcquireOutcome::Waiting(_)), "{place:?}");
        let left = backend
            .release(&lock(), ReleaseTarget::Call(&late.id, late.call), None)
            .await;
        assert_eq!(left.unwrap().released, Released::Ended(Cause::Cancelled));
    })
    .await;
    longest(&server, "promote of the last", async || {
        backend.promote(&lock(), &reader(1 + WAITERS)).await.unwrap();
    })
    .await;
    longest(&server, "look", async || {
        let seen = backend.inspect(&lock(), InspectLimit::of_each(100)).await.unwrap();
        assert_eq!(seen.waiter_count as u128, WAITERS);
    })
    .await;
    // All of them fit at once, and no script tells them all.
    let lease = held.lease(LockKey {
        namespace: Namespace::new("long").unwrap(),
        name: lock(),
    });
    slow(&server);
    let before = worked(&server);
    let left = backend
        .release(&lock(), ReleaseTarget::Hold(&lease), None)
        .await
        .unwrap();
    let (thread, script) = (worked(&server) - before, slow(&server));
    println!("release: {script:?}, {thread:?}");
    assert_eq!(left.released, Released::Ended(Cause::Released));
    assert!(script.min(thread) < LONGEST, "{script:?}, {thread:?}");
    let mut held = 0;
    for round in 0..1_000 {
        assert!(round < 999, "only {held} of the readers hold");
        for number in 2..2 + WAITERS {
            let place = backend.promote(&lock(), &reader(number)).await.unwrap();
            held += u128::from(matches!(place, AcquireOutcome::Held(_)));
        }
        if held >= WAITERS {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_thousands_of_holders_costs_what_one_of_few_does() {
    if !available() {
        return;
    }
    let server = server();
    let backend = open(&server).await;
    // TTLs and limits of all sizes, so that they are in no order.
    let varied = |number: u128| NewClaim {
        ttl: Ttl::new(Duration::from_millis(600_000 + (number as u64 * 7_919) % 300_000)).unwrap(),
        mode: Mode::semaphore(1, 500_000 + (number as u32 * 7_919) % 300_000).unwrap(),
        ..semaphore(number)
    };
    let places = acquire_all(&backend, (1..=HOLDERS).map(varied)).await;
    let mut grants: Vec<_> = places
        .into_iter()
        .map(|place| match place {
            AcquireOutcome::Held(grant) => grant,
            other => panic!("{other:?}"),
        })
        .collect();
    let key = LockKey {
        namespace: Namespace::new("long").unwrap(),
        name: lock(),
    };
    let mut at = 0;
    longest(&server, "renew", async || {
        at += grants.len() / TIMES - 1;
        backend.renew(&grants[at].lease(key.clone()), None).await.unwrap();
    })
    .await;
    longest(&server, "release", async || {
        let grant = grants.swap_remove(grants.len() / 2);
        let lease = grant.lease(key.clone());
        let left = backend
            .release(&lock(), ReleaseTarget::Hold(&lease), None)
            .await
            .unwrap();
        assert_eq!(left.released, Released::Ended(Cause::Released));
    })
    .await;
    longest(&server, "force", async || {
        let grant = grants.swap_remove(grants.len() / 3);
        let left = backend
            .release(&lock(), ReleaseTarget::Forced(grant.token), None)
            .await
            .unwrap();
        assert_eq!(left.released, Released::Ended(Cause::Forced));
    })
    .await;
    longest(&server, "force of nobody", async || {
        let nobody = ReleaseTarget::Forced(FencingToken::new(1).unwrap());
        let left: ReleaseOutcome = backend.release(&lock(), nobody, None).await.unwrap();
        assert_eq!(left.released, Released::Nothing);
    })
    .await;
    longest(&server, "look", async || {
        let seen = backend.inspect(&lock(), InspectLimit::of_each(100)).await.unwrap();
        assert_eq!(seen.holder_count, grants.len());
        assert!(seen.holders.is_sorted_by_key(|holder| holder.token));
    })
    .await;
    longest(&server, "a claim that cannot share it", async || {
        let shared = NewClaim {
            mode: Mode::Shared,
            ..claim(2_000_000)
        };
        let refused = backend.acquire(&lock(), &shared).await.unwrap();
        assert!(matches!(refused, AcquireOutcome::Refused(_)), "{refused:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_that_expire_at_once_leave_a_few_at_a_time() {
    if !available() {
        return;
    }
    let mut server = RedisServer::with_clock(LOGGED);
    let backend = open(&server).await;
    let short = |number| NewClaim {
        ttl: Ttl::new(Duration::from_secs(60)).unwrap(),
        ..semaphore(number)
    };
    acquire_all(&backend, (1..=HOLDERS).map(short)).await;
    server.shift_clock(120);
    slow(&server);
    let (before, called) = (worked(&server), server.scripts());
    // One that cannot share it, and does not wait, gets it all the same: nobody holds it any more.
    let writer = NewClaim {
        wait_policy: WaitPolicy::NoWait,
        ..claim(1_000_000)
    };
    let place = backend.acquire(&lock(), &writer).await.unwrap();
    assert!(matches!(place, AcquireOutcome::Held(_)), "{place:?}");
    let (thread, called, logged) = (worked(&server) - before, server.scripts() - called, slow(&server));
    let each = thread / u32::try_from(called.max(1)).unwrap();
    println!("{called} scripts, each worked {each:?}, {logged:?} in the log");
    assert!(u128::from(called) >= HOLDERS / 100, "{called}");
    assert!(each < LONGEST, "{each:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_place_changed_still_expires_in_time() {
    if !available() {
        return;
    }
    let mut server = RedisServer::with_clock(&[]);
    let backend = open(&server).await;
    let lives = |hundreds: u64| NewClaim {
        ttl: Ttl::new(Duration::from_secs(100 * hundreds)).unwrap(),
        ..semaphore(u128::from(hundreds))
    };
    // In this order the third of those that stay is put below one that expires later, unless it rises.
    acquire_all_in_turn(&backend, [1, 10, 2, 11, 12, 3].map(lives)).await;
    for gone in [11, 2].map(lives) {
        let left = backend
            .release(&lock(), ReleaseTarget::Call(&gone.id, gone.call), None)
            .await;
        assert!(matches!(left.unwrap().released, Released::Ended(_)));
    }
    acquire_all_in_turn(&backend, [20, 21].map(lives)).await;
    for (passed, left) in [(150, 5), (350, 4)] {
        server.shift_clock(passed);
        let seen = backend.inspect(&lock(), InspectLimit::of_each(10)).await.unwrap();
        assert_eq!(seen.holder_count, left, "after {passed} s");
    }
}

async fn acquire_all_in_turn(backend: &Redis, claims: impl IntoIterator<Item = NewClaim>) {
    for claim in claims {
        let place = backend.acquire(&lock(), &claim).await.unwrap();
        assert!(matches!(place, AcquireOutcome::Held(_)), "{place:?}");
    }
}
