//! What one call costs Redis is bounded at the longest queue that a lock may have: Redis does nothing else meanwhile.

use std::time::Duration;

use fencepost::backend::{AcquireOutcome, InspectLimit, NewClaim, Refusal, ReleaseTarget, Released};
use fencepost::claim::Cause;
use fencepost::name::{LockKey, LockName, Mode, Namespace, Owner};
use futures::future::join_all;

use crate::long_queues::{claim, open, worked};
use crate::servers::{RedisServer, available};

/// For how long one call may work.
const LONGEST: Duration = Duration::from_millis(1);
/// How often a call is measured; the fastest counts, for the machine does other things too.
const TIMES: usize = 9;
/// As many claims as a lock may have.
const MOST: u128 = 1_000;

fn lock() -> LockName {
    LockName::new("a").unwrap()
}

fn named(number: u128) -> NewClaim {
    NewClaim {
        owner: Owner::new("the-name-of-a-pod-as-others-are-7f6c9").unwrap(),
        retryable: true,
        ..claim(number)
    }
}

fn reader(number: u128) -> NewClaim {
    NewClaim {
        mode: Mode::Shared,
        ..named(number)
    }
}

/// The longest script since it was last asked, by the server's own log.
fn logged(server: &RedisServer) -> Duration {
    let log = server.cli(&["--json", "SLOWLOG", "GET", "-1"]);
    server.cli(&["SLOWLOG", "RESET"]);
    let log: serde_json::Value = serde_json::from_str(&log).unwrap();
    let scripts = log.as_array().unwrap().iter().filter(|entry| entry[3][0] == "FCALL");
    let took = scripts.map(|entry| entry[2].as_u64().unwrap()).max();
    Duration::from_micros(took.unwrap_or_default())
}

/// A server that logs each call that takes longer than it may.
fn server() -> RedisServer {
    RedisServer::start(&["--slowlog-log-slower-than", "1000", "--slowlog-max-len", "1000"])
}

/// Makes a call several times. In the fastest of them, no script takes longer than it may: by the server's log, or by what
/// its thread has worked, where the machine let it wait.
async fn is_short(server: &RedisServer, what: &str, mut call: impl AsyncFnMut()) {
    let mut fastest = Duration::MAX;
    for _ in 0..TIMES {
        logged(server);
        let before = worked(server);
        call().await;
        fastest = fastest.min((worked(server) - before).min(logged(server)));
    }
    assert!(fastest < LONGEST, "{what}: {fastest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_holders_costs_little() {
    if !available() {
        return;
    }
    let server = server();
    let backend = open(&server).await;
    let lock = lock();
    let claims: Vec<NewClaim> = (1..=MOST).map(reader).collect();
    let held = join_all(claims.iter().map(|claim| backend.acquire(&lock, claim))).await;
    let Ok(AcquireOutcome::Held(last)) = held.last().unwrap() else {
        panic!("{:?}", held.last())
    };
    let lease = last.lease(LockKey {
        namespace: Namespace::new("long").unwrap(),
        name: lock.clone(),
    });
    is_short(&server, "renewal", async || {
        backend.renew(&lease, None).await.unwrap();
    })
    .await;
    is_short(&server, "look", async || {
        let seen = backend.inspect(&lock, InspectLimit::of_each(100)).await.unwrap();
        assert_eq!(seen.holder_count as u128, MOST);
    })
    .await;
    // Another server has to read it all.
    let other = open(&server).await;
    is_short(&server, "look of another server", async || {
        let seen = other.inspect(&lock, InspectLimit::of_each(100)).await.unwrap();
        assert_eq!(seen.holder_count as u128, MOST);
    })
    .await;
    let more = backend.acquire(&lock, &reader(MOST + 1)).await.unwrap();
    assert!(
        matches!(more, AcquireOutcome::Refused(Refusal::Full { limit: 1_000 })),
        "{more:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_waiters_costs_little() {
    if !available() {
        return;
    }
    let server = server();
    let backend = open(&server).await;
    let lock = lock();
    let claims: Vec<NewClaim> = (1..MOST).map(named).collect();
    join_all(claims.iter().map(|claim| backend.acquire(&lock, claim))).await;
    let mut number = MOST;
    is_short(&server, "enter and leave", async || {
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
