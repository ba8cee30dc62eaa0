//! What the records keep: ended holds in the root and in parts, and how large a root grows.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{
    AcquireOutcome, BackendError, FINISHED_KEPT, NewClaim, PageRequest, Refusal, ReleaseTarget, Released,
    UpdateOutcome, WaitPolicy,
};
use fencepost_core::claim::Cause;
use fencepost_core::name::{LockName, Metadata, Mode};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::record_store::Database;
use crate::server::{Server, again, claim, lease, lock, server, trying};

/// Holds and releases so many claims, one after another.
async fn ended(server: &Server, count: usize) -> Vec<(NewClaim, fencepost_core::backend::Grant)> {
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
        let forced = fencepost_core::backend::ReleaseTarget::Forced(holder.token);
        b.backend.release(&lock(), forced, None).await.expect("it answers");
    }
}

#[tokio::test(start_paused = true)]
async fn the_ends_that_a_failover_lost_are_forgotten() {
    let database = Database::default();
    let (a, b) = (server(&database), server(&database));
    let kept = ended(&a, 40).await;
    let old = database.copy(&lock());
    let lost = ended(&a, 60).await;
    // Both are in parts that this server has loaded.
    for claim in [&kept[0].0, &lost[10].0] {
        let outcome = a.acquire(&again(claim)).await;
        assert!(matches!(outcome, AcquireOutcome::Finished(_)), "{outcome:?}");
    }
    database.restore(&lock(), old);
    let others = ended(&b, 60).await;
    for claim in [&kept[0].0, &others[10].0] {
        let outcome = a.acquire(&again(claim)).await;
        assert!(matches!(outcome, AcquireOutcome::Finished(_)), "{outcome:?}");
    }
    a.hold(&again(&lost[10].0)).await;
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
async fn one_commit_deletes_no_more_than_256_parts() {
    let database = Database::default();
    let a = server(&database);
    for _ in 0..50 {
        let mut claims: Vec<_> = (0..200).map(|_| claim()).collect();
        for claim in &mut claims {
            claim.mode = Mode::Shared;
            claim.limits.finished = 20_000;
        }
        let held = futures::future::join_all(claims.iter().map(|claim| a.hold(claim))).await;
        futures::future::join_all(held.iter().map(|grant| a.release(grant))).await;
    }
    sleep(FINISHED_KEPT + Duration::from_secs(6)).await;
    let grant = a.hold(&claim()).await;
    let left = database.parts_of(&lock()).len();
    assert!((30..=100).contains(&left), "{left}");
    a.release(&grant).await;
    let left = database.parts_of(&lock()).len();
    assert!(left <= 1, "{left}");
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

// G130
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

// G130
#[tokio::test(start_paused = true)]
async fn a_root_of_half_a_mebibyte_takes_no_more_claims_and_no_longer_metadata() {
    let database = Database::default();
    let a = server(&database);
    let large = || NewClaim {
        metadata: note("x"),
        wait_policy: WaitPolicy::Wait,
        ..claim()
    };
    let first = a.hold(&large()).await;
    loop {
        match a.acquire(&large()).await {
            AcquireOutcome::Refused(refusal) => {
                assert_eq!(refusal, FULL);
                break;
            }
            AcquireOutcome::Waiting(_) => {}
            other => panic!("{other:?}"),
        }
    }
    let bytes = database.root(&lock()).expect("a root").body.len();
    assert!(((1 << 19)..(1 << 19) + 8_192).contains(&bytes), "{bytes}");
    for (length, expected) in [
        (4_001, UpdateOutcome::Refused(FULL)),
        (4_000, UpdateOutcome::Updated),
        (3_999, UpdateOutcome::Updated),
        (4_000, UpdateOutcome::Refused(FULL)),
    ] {
        let metadata = Metadata::new([("note".into(), "y".repeat(length))]).expect("metadata");
        let updated = a.backend.update_metadata(&lease(&first), &metadata, None).await;
        assert_eq!(updated, Ok(expected), "{length}");
    }
}

const FULL: Refusal = Refusal::LockFull { limit: 1 << 19 };

/// Metadata of 4,000 bytes.
fn note(text: &str) -> Metadata {
    Metadata::new([("note".into(), text.repeat(4_000))]).expect("metadata")
}

#[tokio::test(start_paused = true)]
async fn one_batch_of_holders_or_of_their_metadata_makes_no_root_too_large() {
    let database = Database::default();
    let a = server(&database);
    let shared = |metadata| NewClaim {
        mode: Mode::Shared,
        metadata,
        ..claim()
    };
    // Granted in one step.
    let claims: Vec<_> = (0..200).map(|_| shared(note("x"))).collect();
    futures::future::join_all(claims.iter().map(|claim| a.acquire(claim))).await;
    let bytes = database.root(&lock()).expect("a root").body.len();
    assert!(((1 << 18)..(1 << 19) + 8_192).contains(&bytes), "{bytes}");
    let database = Database::default();
    let a = server(&database);
    let claims: Vec<_> = (0..200).map(|_| shared(Metadata::default())).collect();
    let held = futures::future::join_all(claims.iter().map(|claim| a.hold(claim))).await;
    let leases: Vec<_> = held.iter().map(lease).collect();
    let note = note("x");
    let updates = leases.iter().map(|lease| a.backend.update_metadata(lease, &note, None));
    let updates = futures::future::join_all(updates).await;
    assert!(updates.contains(&Ok(UpdateOutcome::Refused(FULL))));
    let bytes = database.root(&lock()).expect("a root").body.len();
    assert!(bytes < (1 << 19) + 8_192, "{bytes}");
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
        match damage.first() {
            Some(99) => assert!(matches!(outcome, Err(BackendError::NotSent { .. })), "{outcome:?}"),
            _ => assert!(matches!(outcome, Err(BackendError::Broken { .. })), "{outcome:?}"),
        }
        assert_eq!(database.root(&lock()).expect("a root").body, damage, "it was touched");
        let other = LockName::new("other").expect("a name");
        let outcome = b.backend.acquire(&other, &trying(claim())).await;
        assert!(outcome.is_ok(), "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_leaves_out_a_root_that_it_cannot_read_and_logs_it_once() {
    let database = Database::default();
    let a = server(&database);
    let log = Log::default();
    let written = log.clone();
    let heard = tracing_subscriber::fmt().with_writer(move || written.clone()).finish();
    let _heard = tracing::subscriber::set_default(heard);
    a.hold(&claim()).await;
    let other = LockName::new("other").expect("a name");
    a.backend.acquire(&other, &claim()).await.expect("it answers");
    database.damage(&other, vec![99, 0]);
    for _ in 0..2 {
        let page = a.backend.list("", PageRequest { after: None, size: 9 }).await;
        let names = page.expect("it answers").locks.into_iter().map(|summary| summary.lock);
        assert_eq!(names.collect::<Vec<_>>(), [lock()]);
    }
    let log = String::from_utf8(log.0.lock().clone()).expect("text");
    let lines: Vec<_> = log.lines().filter(|line| line.contains("is not listed")).collect();
    assert!(
        lines.len() == 1 && lines[0].contains("other") && lines[0].contains("format 99"),
        "{log}"
    );
}

/// What is logged.
#[derive(Clone, Default)]
pub struct Log(pub Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_too_large_concerns_its_lock_alone() {
    let database = Database::default();
    let (a, b) = (server(&database), server(&database));
    let grant = a.hold(&claim()).await;
    a.release(&grant).await;
    let root = database.root(&lock()).expect("a root");
    // The format, the log, and then the token, which is a number of variable length.
    let (begin, rest) = root.body.split_at(2 + 8 * usize::from(root.body[1]));
    let end = rest.iter().position(|byte| *byte < 128).expect("a token") + 1;
    let token = [&[255; 8], &[1_u8][..]].concat();
    database.damage(&lock(), [begin, &token, &rest[end..]].concat());
    sleep(Duration::from_secs(3_600)).await;
    let other = LockName::new("other").expect("a name");
    let outcome = b.backend.acquire(&other, &claim()).await;
    assert!(matches!(outcome, Ok(AcquireOutcome::Held(_))), "{outcome:?}");
    let outcome = b.backend.acquire(&lock(), &claim()).await;
    assert!(matches!(outcome, Err(BackendError::Broken { .. })), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_page_of_locks_looks_at_a_thousand_roots_at_most() {
    let database = Database::default();
    let a = server(&database);
    let name = |number| LockName::new(&format!("{number:04}")).expect("a name");
    for number in 0..2_100 {
        let (name, claim) = (name(number), claim());
        a.backend.acquire(&name, &claim).await.expect("it answers");
        if number < 2_099 {
            let target = ReleaseTarget::Call(&claim.id, claim.call);
            a.backend.release(&name, target, None).await.expect("it answers");
        }
    }
    let mut pages = Vec::new();
    let mut after = None;
    loop {
        let page = a.backend.list("", PageRequest { after, size: 1 }).await;
        let page = page.expect("it answers");
        pages.push((page.locks.len(), page.next.clone()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let next = |number: usize| Some(format!("{number:04}"));
    assert_eq!(pages, [(0, next(999)), (0, next(1_999)), (1, None)]);
    assert!(database.pages() < 60, "{}", database.pages());
}
