//! What one call moves between a server and Redis is bounded at the longest queue that a lock may have.

use std::sync::Arc;

use fencepost::backend::{AcquireOutcome, Backend, InspectLimit, NewClaim, Refusal, ReleaseTarget, Released};
use fencepost::claim::Cause;
use fencepost::name::{LeaseKey, LockKey, LockName, Metadata, Mode, Namespace, Owner};
use futures::future::join_all;

use crate::opened::{claim, open};
use crate::servers::{RedisServer, available};

/// How often a call is made: the one with the fewest steps counts, because beats are steps, too.
const TIMES: usize = 3;
/// How many bytes one call may move between a server and Redis.
const MOST_BYTES: u64 = 600 << 10;
/// How many bytes one may move that need not send or read the record, with what the test itself asks.
const FEW_BYTES: u64 = 16 << 10;
/// Of how many steps of Redis one call may consist.
const MOST_STEPS: u64 = 2;
/// As many claims as a lock may have.
const MOST: u128 = 1_000;

fn lock() -> LockName {
    LockName::new("a").unwrap()
}

fn key() -> LockKey {
    LockKey {
        namespace: Namespace::new("long").unwrap(),
        name: lock(),
    }
}

fn named(number: u128) -> NewClaim {
    NewClaim {
        owner: Owner::new("the-name-of-a-pod-as-others-are-7f6c9").unwrap(),
        retryable: true,
        ..claim(number)
    }
}

/// A store on a server of its own; absent where there is no Redis.
async fn opened() -> Option<(RedisServer, Arc<dyn Backend>)> {
    if !available() {
        return None;
    }
    let server = RedisServer::start(&[]);
    let backend = open(&server).await;
    Some((server, backend))
}

/// How many functions a Redis was called for, and how many bytes it took and gave.
fn moved(server: &RedisServer) -> (u64, u64) {
    let bytes = ["total_net_input_bytes", "total_net_output_bytes"].map(|field| server.info("stats", field));
    (server.scripts(), bytes.iter().sum())
}

/// Makes a call several times: each moves at most so many bytes, and one of them has few steps.
async fn is_short(server: &RedisServer, what: &str, most: u64, mut call: impl AsyncFnMut()) {
    let mut fewest = u64::MAX;
    for _ in 0..TIMES {
        let before = moved(server);
        call().await;
        let after = moved(server);
        fewest = fewest.min(after.0 - before.0);
        let bytes = after.1 - before.1;
        assert!(bytes <= most, "{what}: {bytes} bytes");
    }
    assert!(fewest <= MOST_STEPS, "{what}: {fewest} steps");
}

/// What each call costs on the lock of so many holders, of whom one has this lease.
async fn renewals_and_looks_are_short(server: &RedisServer, backend: &dyn Backend, lease: &LeaseKey, holders: usize) {
    let look = async |backend: &dyn Backend| {
        let seen = backend
            .inspect(&lease.lock.name, InspectLimit::of_each(100))
            .await
            .unwrap();
        assert_eq!(seen.holder_count, holders);
    };
    is_short(server, "renewal", MOST_BYTES, async || {
        backend.renew(lease, None).await.unwrap();
    })
    .await;
    is_short(server, "look", FEW_BYTES, async || look(backend).await).await;
    // Another server has to read it all.
    let other = open(server).await;
    is_short(
        server,
        "renewal and look of another server",
        2 * MOST_BYTES,
        async || {
            backend.renew(lease, None).await.unwrap();
            look(&*other).await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_holders_costs_little() {
    for mode in [Mode::Shared, Mode::semaphore(1, 1_000).unwrap()] {
        let Some((server, backend)) = opened().await else {
            return;
        };
        let lock = lock();
        let claim = |number| NewClaim { mode, ..named(number) };
        let claims: Vec<NewClaim> = (1..=MOST).map(claim).collect();
        let held = join_all(claims.iter().map(|claim| backend.acquire(&lock, claim))).await;
        let Ok(AcquireOutcome::Held(last)) = held.last().unwrap() else {
            panic!("{:?}", held.last())
        };
        renewals_and_looks_are_short(&server, &*backend, &last.lease(key()), claims.len()).await;
        let more = backend.acquire(&lock, &claim(MOST + 1)).await.unwrap();
        assert!(
            matches!(more, AcquireOutcome::Refused(Refusal::Full { limit: 1_000 })),
            "{more:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_waiters_costs_little() {
    let Some((server, backend)) = opened().await else {
        return;
    };
    let lock = lock();
    let claims: Vec<NewClaim> = (1..MOST).map(named).collect();
    join_all(claims.iter().map(|claim| backend.acquire(&lock, claim))).await;
    let mut number = MOST;
    is_short(&server, "enter and leave", MOST_BYTES, async || {
        number += 1;
        let late = named(number);
        let place = backend.acquire(&lock, &late).await.unwrap();
        assert!(matches!(place, AcquireOutcome::Waiting(_)), "{place:?}");
        let call = ReleaseTarget::Call(&late.id, late.call);
        let left = backend.release(&lock, call, None).await.unwrap();
        assert_eq!(left.released, Released::Ended(Cause::Cancelled));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_the_largest_records_costs_little() {
    let Some((server, backend)) = opened().await else {
        return;
    };
    let lock = lock();
    let large = |number| NewClaim {
        metadata: Metadata::new([("note".into(), "x".repeat(4_000))]).unwrap(),
        mode: Mode::Shared,
        ..named(number)
    };
    let (mut number, mut leases) = (0, Vec::new());
    let full = loop {
        number += 1;
        match backend.acquire(&lock, &large(number)).await.unwrap() {
            AcquireOutcome::Held(grant) => leases.push(grant.lease(key())),
            other => break other,
        }
    };
    assert!(
        matches!(full, AcquireOutcome::Refused(Refusal::LockFull { .. })),
        "{full:?}"
    );
    renewals_and_looks_are_short(&server, &*backend, &leases[0], leases.len()).await;
    is_short(&server, "release", MOST_BYTES, async || {
        let lease = leases.pop().unwrap();
        backend.release(&lock, ReleaseTarget::Hold(&lease), None).await.unwrap();
    })
    .await;
}
