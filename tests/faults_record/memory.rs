//! What the records keep: ended holds in the root and in parts, and how large a root grows.

use std::time::Duration;

use fencepost::backend::{AcquireOutcome, BackendError, FINISHED_KEPT, NewClaim, Refusal, Released, WaitPolicy};
use fencepost::claim::Cause;
use fencepost::name::{LockName, Metadata};
use tokio::time::{Instant, sleep};

use crate::record_store::Database;
use crate::server::{Server, again, claim, lock, server, trying};

/// Holds and releases so many claims, one after another.
async fn ended(server: &Server, count: usize) -> Vec<(NewClaim, fencepost::backend::Grant)> {
    let mut all = Vec::new();
    for _ in 0..count {
        let claim = claim();
        let grant = server.hold(&claim).await;
        server.release(&grant).await;
        all.push((claim, grant));
    }
    all
}

#[tokio::test(start_paused = true)]
async fn every_end_is_remembered_at_every_server() {
    let database = Database::default();
    let (a, b) = (server(&database), server(&database));
    let all = ended(&a, 150).await;
    assert!(
        database.parts_of(&lock()).len() >= 3,
        "{:?}",
        database.parts_of(&lock())
    );
    for (claim, grant) in &all {
        for one in [&a, &b] {
            let outcome = one.acquire(&again(claim)).await;
            assert!(
                matches!(outcome, AcquireOutcome::Finished(Cause::Released)),
                "{outcome:?}"
            );
            assert_eq!(one.release(grant).await, Released::EndedBefore(Cause::Released));
        }
    }
    let root = database.root(&lock()).expect("a root");
    assert!(root.body.len() < 4_096, "{}", root.body.len());
    sleep(FINISHED_KEPT).await;
    for (claim, _) in &all {
        b.hold(&again(claim)).await;
        b.undo(claim).await.expect("it answers");
        let holder = b.inspect().await.holders[0].clone();
        let forced = fencepost::backend::ReleaseTarget::Forced(holder.token);
        b.backend.release(&lock(), forced, None).await.expect("it answers");
    }
}

#[tokio::test(start_paused = true)]
async fn parts_are_deleted_when_their_ends_are_forgotten() {
    let database = Database::default();
    let a = server(&database);
    ended(&a, 300).await;
    assert!(database.parts_of(&lock()).len() >= 8);
    sleep(FINISHED_KEPT + Duration::from_secs(6)).await;
    ended(&a, 1).await;
    assert!(
        database.parts_of(&lock()).len() <= 1,
        "{:?}",
        database.parts_of(&lock())
    );
}

#[tokio::test(start_paused = true)]
async fn no_more_ends_are_remembered_than_the_limit() {
    let database = Database::default();
    let (a, b) = (server(&database), server(&database));
    let mut all = Vec::new();
    for _ in 0..250 {
        let mut claim = claim();
        claim.limits.finished = 100;
        let grant = a.hold(&claim).await;
        a.release(&grant).await;
        all.push((claim, grant));
    }
    assert!(
        database.parts_of(&lock()).len() <= 4,
        "{:?}",
        database.parts_of(&lock())
    );
    for (number, (_, grant)) in all.iter().enumerate() {
        for one in [&a, &b] {
            let expected = match number >= 150 {
                true => Released::EndedBefore(Cause::Released),
                false => Released::Nothing,
            };
            assert_eq!(one.release(grant).await, expected, "{number}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_takes_a_thousand_claims() {
    let database = Database::default();
    let a = server(&database);
    a.hold(&claim()).await;
    let claims: Vec<_> = (1..1_001).map(|_| claim()).collect();
    let outcomes = futures::future::join_all(claims.iter().map(|claim| a.acquire(claim))).await;
    let waiting = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, AcquireOutcome::Waiting(_)));
    assert_eq!(waiting.count(), 999);
    let last = outcomes.last().expect("a last one");
    assert!(
        matches!(last, AcquireOutcome::Refused(Refusal::Full { limit: 1_000 })),
        "{last:?}"
    );
    let began = Instant::now();
    assert_eq!(a.inspect().await.waiter_count, 999);
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_root_of_a_mebibyte_takes_no_more_claims() {
    let database = Database::default();
    let a = server(&database);
    let large = || NewClaim {
        metadata: Metadata::new([("note".into(), "x".repeat(4_000))]).expect("metadata"),
        wait_policy: WaitPolicy::Wait,
        ..claim()
    };
    loop {
        match a.acquire(&large()).await {
            AcquireOutcome::Refused(refusal) => {
                assert_eq!(refusal, Refusal::LockFull { limit: 1 << 20 });
                break;
            }
            AcquireOutcome::Held(_) | AcquireOutcome::Waiting(_) => {}
            other => panic!("{other:?}"),
        }
    }
    let bytes = database.root(&lock()).expect("a root").body.len();
    assert!(((1 << 20)..(1 << 20) + 8_192).contains(&bytes), "{bytes}");
}

#[tokio::test(start_paused = true)]
async fn a_root_of_a_later_release_concerns_its_lock_alone() {
    let database = Database::default();
    let (a, b) = (server(&database), server(&database));
    a.hold(&claim()).await;
    for damage in [vec![99, 0, 1, 2], vec![], vec![1, 200, 3], vec![1, 0, 255, 255, 255]] {
        database.damage(&lock(), damage.clone());
        sleep(Duration::from_secs(40)).await;
        let outcome = b.backend.acquire(&lock(), &trying(claim())).await;
        assert!(matches!(outcome, Err(BackendError::Broken { .. })), "{outcome:?}");
        assert_eq!(database.root(&lock()).expect("a root").body, damage, "it was touched");
        let other = LockName::new("other").expect("a name");
        let outcome = b.backend.acquire(&other, &trying(claim())).await;
        assert!(outcome.is_ok(), "{outcome:?}");
    }
}
