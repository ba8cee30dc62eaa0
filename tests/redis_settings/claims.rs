//! What the scripts make of claims, beyond what every store is asked.

use std::time::Duration;

use fencepost::backend::{Backend, BackendError, Released, ReleaseTarget, NewClaim, WaitPolicy, AcquireOutcome, Refusal, Notification};
use fencepost::claim::Cause;
use fencepost::name::{CallId, LockKey, LockName, Mode, Namespace, Owner};
use futures::{StreamExt, stream};

use crate::long_queues::{claim, open};
use crate::servers::{RedisServer, available};

/// How long something that must come may take.
const SOON: Duration = Duration::from_secs(30);

fn lock() -> LockName {
    LockName::new("a").unwrap()
}

/// A claim that retries look for.
fn request(number: u128) -> NewClaim {
    NewClaim {
        retryable: true,
        ..claim(number)
    }
}

/// A reader that may enter again.
fn reader(number: u128) -> NewClaim {
    NewClaim {
        mode: Mode::Shared,
        reentrant: true,
        owner: Owner::new("reader").unwrap(),
        ..request(number)
    }
}

/// The same request in another call.
fn again(of: &NewClaim, call: u128) -> NewClaim {
    NewClaim {
        call: CallId::from_bytes(call.to_be_bytes()),
        ..of.clone()
    }
}

async fn hold(backend: &dyn Backend, claim: &NewClaim) -> fencepost::backend::Grant {
    match backend.acquire(&lock(), claim).await.unwrap() {
        AcquireOutcome::Held(grant) => grant,
        other => panic!("{other:?}"),
    }
}

async fn wait(backend: &dyn Backend, claim: &NewClaim) {
    let place = backend.acquire(&lock(), claim).await.unwrap();
    assert!(matches!(place, AcquireOutcome::Waiting(_)), "{place:?}");
}

async fn release(backend: &dyn Backend, grant: &fencepost::backend::Grant, next: Option<&NewClaim>) {
    let lease = grant.lease(LockKey {
        namespace: Namespace::new("long").unwrap(),
        name: lock(),
    });
    let left = backend.release(&lock(), ReleaseTarget::Hold(&lease), next).await.unwrap();
    assert_eq!(left.found, Released::Ended(Cause::Released));
}

async fn undo(backend: &dyn Backend, claim: &NewClaim) {
    let left = backend.release(&lock(), ReleaseTarget::Call(&claim.id, claim.call), None).await;
    assert_eq!(left.unwrap().found, Released::Ended(Cause::TakenBack));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_take_back_that_is_forgotten_takes_no_later_end_along() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let backend = open(&server).await;
    let narrow = |number| {
        let mut claim = request(number);
        claim.limits.finished = 2;
        claim
    };
    let first = narrow(1);
    hold(&*backend, &first).await;
    undo(&*backend, &first).await;
    let second = hold(&*backend, &again(&first, 101)).await;
    release(&*backend, &second, None).await;
    let other = hold(&*backend, &narrow(2)).await;
    release(&*backend, &other, None).await;
    let third = backend.acquire(&lock(), &again(&first, 102)).await.unwrap();
    assert!(matches!(third, AcquireOutcome::Finished(Cause::Released)), "{third:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_id_of_a_claim_that_lives_on_without_its_first_hold_is_not_given_twice() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let backend = open(&server).await;
    let first = reader(1);
    hold(&*backend, &first).await;
    let more = hold(&*backend, &reader(2)).await;
    undo(&*backend, &first).await;
    let mut retry = again(&first, 101);
    retry.reentrant = false;
    let place = backend.acquire(&lock(), &retry).await.unwrap();
    let refused = matches!(place, AcquireOutcome::Refused(Refusal::OtherParameters { field: "reentrant" }));
    assert!(refused, "{place:?}");
    // As it was before it comes again, and the lock is free when all have left.
    retry.reentrant = true;
    let joined = hold(&*backend, &again(&retry, 102)).await;
    assert_eq!((joined.token, joined.holds), (more.token, 2));
    release(&*backend, &joined, None).await;
    release(&*backend, &more, None).await;
    hold(&*backend, &claim(3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_reenters_whichever_of_its_readers_is_left() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let backend = open(&server).await;
    let writer = hold(&*backend, &claim(1)).await;
    let readers = [reader(2), reader(3)];
    for reader in &readers {
        wait(&*backend, reader).await;
    }
    release(&*backend, &writer, None).await;
    let mut held = Vec::new();
    for reader in &readers {
        match backend.promote(&lock(), reader).await.unwrap() {
            AcquireOutcome::Held(grant) => held.push(grant),
            other => panic!("{other:?}"),
        }
    }
    wait(&*backend, &claim(4)).await;
    release(&*backend, &held[0], None).await;
    let more = hold(&*backend, &reader(5)).await;
    assert_eq!((more.token, more.holds), (held[1].token, 2));
    release(&*backend, &held[1], None).await;
    release(&*backend, &more, None).await;
    let next = backend.promote(&lock(), &claim(4)).await.unwrap();
    assert!(matches!(next, AcquireOutcome::Held(_)), "{next:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_next_that_a_call_elsewhere_has_taken_over_is_told_there() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let (here, there) = (open(&server).await, open(&server).await);
    let mut notifications = there.notifications();
    // Who has seen the state of any lock hears messages, the wakes too.
    let state = there.watch(&LockName::new("warm").unwrap()).next().await;
    assert!(matches!(state, Some(Ok(_))), "{state:?}");
    let held = hold(&*here, &claim(1)).await;
    let older = request(2);
    wait(&*here, &older).await;
    wait(&*there, &again(&older, 102)).await;
    // Named by who does not know yet that its call is superseded.
    release(&*here, &held, Some(&older)).await;
    let told = async {
        while let Some(wake) = notifications.next().await {
            if wake == Notification::Next(lock(), older.id) {
                return;
            }
        }
    };
    tokio::time::timeout(SOON, told).await.expect("its turn is told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_marks_of_a_lock_are_bounded() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let backend = open(&server).await;
    let left = stream::iter(1..=12_000u128).map(|number| {
        let (backend, gone) = (&backend, claim(number));
        async move {
            let who = ReleaseTarget::Call(&gone.id, gone.call);
            backend.release(&lock(), who, None).await.unwrap().found
        }
    });
    let found: Vec<Released> = left.buffer_unordered(100).collect().await;
    assert!(found.iter().all(|found| *found == Released::Nothing));
    let fields: usize = server.cli(&["HLEN", "fencepost:long:l:a"]).parse().unwrap();
    // Two for each, and some that are on their way out.
    assert!((20_000..20_100).contains(&fields), "{fields}");
    // The latest ones keep their calls out.
    let late = backend.acquire(&lock(), &claim(12_000)).await.unwrap();
    assert!(matches!(late, AcquireOutcome::Cancelled), "{late:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_another_layout_is_left_alone() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let backend = open(&server).await;
    hold(&*backend, &claim(1)).await;
    let another = "local m = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'm')) m[1] = 1 \
                   return redis.call('HSET', KEYS[1], 'm', cmsgpack.pack(m))";
    assert_eq!(server.cli(&["EVAL", another, "1", "fencepost:long:l:a"]), "0");
    let before = server.cli(&["DUMP", "fencepost:long:l:a"]);
    let mut trying = claim(2);
    trying.wait_policy = WaitPolicy::Try;
    let refused = backend.acquire(&lock(), &trying).await.unwrap_err();
    assert!(
        matches!(&refused, BackendError::Unavailable { reason } if reason.contains("LAYOUT")),
        "{refused:?}"
    );
    assert_eq!(server.cli(&["DUMP", "fencepost:long:l:a"]), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_next_is_gone_tells_it_and_whoever_stands_first() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let (here, there) = (open(&server).await, open(&server).await);
    let mut notifications = here.notifications();
    let (held, gone) = (hold(&*here, &claim(1)).await, claim(2));
    wait(&*there, &claim(3)).await;
    release(&*here, &held, None).await;
    // The first waiter has been told, and might not have heard it.
    let published = || {
        let said = server.cli(&["INFO", "commandstats"]);
        let line = said
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_publish:calls="));
        line.and_then(|line| line.split(',').next()?.parse::<u64>().ok())
            .unwrap_or_default()
    };
    let before = published();
    let lease = held.lease(LockKey {
        namespace: Namespace::new("long").unwrap(),
        name: lock(),
    });
    let left = here.end(&lock(), ReleaseTarget::Hold(&lease), Some(&gone)).await.unwrap();
    assert_eq!(left.found, Released::EndedBefore(Cause::Released));
    assert_eq!(published(), before + 1);
    let told = async {
        while let Some(wake) = notifications.next().await {
            if wake == Notification::Next(lock(), gone.id) {
                return;
            }
        }
    };
    tokio::time::timeout(SOON, told).await.expect("it is told to ask");
}
