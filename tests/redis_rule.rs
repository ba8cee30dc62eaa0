//! The prefix rule stands twice: in Rust, and in the scripts. Random queues hold the second to the
//! first.
#![cfg(feature = "redis")]

use std::sync::Arc;
use std::time::Duration;

use fencepost::backend::redis::Store;
use fencepost::backend::redis_server::settings::{FirstStart, Servers, Settings};
use fencepost::backend::{Backend, ClaimLimits, Health, Leaving, Most, NewClaim, Patience, Place};
use fencepost::claim::prefix_len;
use fencepost::name::{CallId, ClaimId, Identity, LockName, Metadata, Mode, Namespace, Owner, Secret, Ttl};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};

#[path = "common/redis.rs"]
mod servers;

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        Just(Mode::Exclusive),
        Just(Mode::Shared),
        (1u32..4, 3u32..5).prop_map(|(permits, limit)| Mode::semaphore(permits, limit).unwrap()),
    ]
}

fn claim(number: u8, mode: Mode) -> NewClaim {
    NewClaim {
        id: ClaimId::from_bytes([number; 16]),
        call: CallId::from_bytes([number; 16]),
        secret: Secret::from_bytes([number; 16]),
        retryable: false,
        owner: Owner::new("walker").unwrap(),
        identity: Identity::anonymous(),
        mode,
        reentrant: false,
        ttl: Ttl::new(Duration::from_secs(60)).unwrap(),
        metadata: Metadata::default(),
        patience: Patience::Wait,
        limits: ClaimLimits {
            queue: 1_000,
            finished: 1_000,
            holds: 10,
        },
        arrived: tokio::time::Instant::now(),
    }
}

/// Enters these modes, lets some leave, and after each step compares who may hold: the waiters that
/// the rule lets in must be taken up, the next one must not.
async fn walk(backend: &Arc<dyn Backend>, lock: &LockName, modes: Vec<Mode>, leaving: Vec<Index>) {
    let mut queue: Vec<NewClaim> = Vec::new();
    for (number, mode) in modes.into_iter().enumerate() {
        let claim = claim(number as u8, mode);
        let place = backend.enter(lock, &claim).await.unwrap();
        let mixes = queue.iter().all(|other| other.mode.mixes(mode));
        assert_eq!(!mixes, matches!(place, Place::Refused(_)), "{place:?}");
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
            .leave(lock, Leaving::Call(&gone.id, gone.call), None)
            .await
            .unwrap();
        check(backend, lock, &queue).await;
    }
}

async fn check(backend: &Arc<dyn Backend>, lock: &LockName, queue: &[NewClaim]) {
    let holders = prefix_len(queue.iter().map(|claim| claim.mode));
    for (at, claim) in queue.iter().enumerate() {
        let place = backend.take_up(lock, claim).await.unwrap();
        assert_eq!(
            at < holders,
            matches!(place, Place::Held(_)),
            "{at} of {queue:?}: {place:?}"
        );
    }
    let seen = backend.look(lock, Most::of_each(0)).await.unwrap();
    assert_eq!((seen.holder_count, seen.waiter_count), (holders, queue.len() - holders));
}

#[test]
fn the_scripts_and_the_rule_agree_on_every_queue() {
    if !servers::available() {
        return;
    }
    let server = servers::RedisServer::start(&[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut settings = Settings::new(Servers::standalone(&server.url()).unwrap());
    settings.first_start = FirstStart::Admit;
    let backend: Arc<dyn Backend> = runtime.block_on(async {
        let backend = Store::open(settings).namespace(&Namespace::new("rule").unwrap());
        backend
            .health()
            .wait_for(|health| *health == Health::Serving)
            .await
            .unwrap();
        backend
    });
    let number = std::cell::Cell::new(0);
    let cases = if cfg!(feature = "soak") { 5_000 } else { 150 };
    let steps = (
        prop::collection::vec(mode(), 1..14),
        prop::collection::vec(any::<Index>(), 0..14),
    );
    let walked = TestRunner::new(Config::with_cases(cases)).run(&steps, |(modes, leaving)| {
        number.set(number.get() + 1);
        let lock = LockName::new(&format!("lock{}", number.get())).unwrap();
        runtime.block_on(walk(&backend, &lock, modes, leaving));
        Ok(())
    });
    walked.unwrap();
}
