//! Commits that took effect, and that too few replicas confirmed: nobody is told that he holds the lock by one of these.

use fencepost_core::backend::{AcquireOutcome, BackendError, ReleaseTarget, Released};
use fencepost_core::claim::Cause;
use fencepost_core::name::Metadata;

use crate::record_store::{Database, Fate};
use crate::server::{claim, held, lease, lock, server};

fn is_unconfirmed<T>(outcome: &Result<T, BackendError>) -> bool {
    matches!(outcome, Err(BackendError::Unavailable { reason }) if reason.contains("no replica"))
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_not_confirmed_is_an_error_and_is_taken_back() {
    let database = Database::default();
    let (a, first) = (server(&database), claim());
    database.plan([Fate::Unconfirmed; 2]);
    let acquired = a.backend.acquire(&lock(), &first).await;
    assert!(is_unconfirmed(&acquired), "{acquired:?}");
    assert_eq!(a.undo(&first).await, Ok(Released::Ended(Cause::Undone)));
    assert_eq!(database.planned(), 0);
    a.hold(&claim()).await;
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_not_confirmed_is_shown_to_its_call_after_another_write() {
    let database = Database::default();
    let (a, first) = (server(&database), claim());
    database.plan([Fate::Unconfirmed; 2]);
    let acquired = a.backend.acquire(&lock(), &first).await;
    assert!(is_unconfirmed(&acquired), "{acquired:?}");
    let promoted = a.backend.promote(&lock(), &first).await;
    assert!(is_unconfirmed(&promoted), "{promoted:?}");
    assert_eq!((database.planned(), database.commits().0), (0, 2));
    // Others may look meanwhile: what they see is no promise.
    assert_eq!((a.inspect().await.holder_count, database.commits().0), (1, 2));
    for _ in 0..2 {
        held(a.promote(&first).await);
        assert_eq!(database.commits().0, 3);
    }
}

// G92
#[tokio::test(start_paused = true)]
async fn renewals_fail_without_confirmation_and_releases_do_not() {
    let database = Database::default();
    let (a, next) = (server(&database), claim());
    let grant = a.hold(&claim()).await;
    a.queue(&next).await;
    database.plan([Fate::Unconfirmed; 2]);
    let renewed = a.backend.renew(&lease(&grant), None).await;
    assert!(is_unconfirmed(&renewed), "{renewed:?}");
    // Whoever is next asks for the lock again.
    let target = lease(&grant);
    let released = a
        .backend
        .release(&lock(), ReleaseTarget::Hold(&target), Some(&next))
        .await;
    let released = released.expect("it is released");
    assert_eq!(
        (released.released, released.next),
        (Released::Ended(Cause::Released), None)
    );
    let applied = database.commits().0;
    held(a.promote(&next).await);
    assert_eq!((database.planned(), database.commits().0), (0, applied + 1));
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_is_found_after_its_answer_was_lost_is_not_confirmed() {
    let database = Database::default();
    database.set_confirms(true);
    let a = server(&database);
    database.plan([Fate::Unanswered, Fate::Unconfirmed]);
    let acquired = a.backend.acquire(&lock(), &claim()).await;
    assert!(is_unconfirmed(&acquired), "{acquired:?}");
    let other = a.backend.acquire(&lock(), &claim()).await;
    assert!(matches!(other, Ok(AcquireOutcome::Waiting(_))), "{other:?}");
}

#[tokio::test(start_paused = true)]
async fn metadata_that_is_not_confirmed_is_written_again_at_any_server() {
    let database = Database::default();
    database.set_confirms(true);
    let (a, b) = (server(&database), server(&database));
    let target = lease(&a.hold(&claim()).await);
    let note = Metadata::new([("note".into(), "x".into())]).expect("metadata");
    database.plan([Fate::Unconfirmed; 2]);
    for one in [&a, &b] {
        let updated = one.backend.update_metadata(&target, &note, None).await;
        assert!(is_unconfirmed(&updated), "{updated:?}");
    }
    assert_eq!(database.planned(), 0);
}
