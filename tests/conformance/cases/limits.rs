//! What a store declares, refuses and says when it is closed.

use fencepost::backend::{
    AcquireOutcome, BackendError, Health, InspectLimit, PageRequest, Refusal, ReleaseTarget, UpdateOutcome,
};
use fencepost::name::Mode;

use crate::claims::{Asking, claim, note_of, semaphore};
use crate::fixture::{Fixture, LONG};
use crate::replica::refused;

/// Asserts that a claim was refused at a limit of this size.
#[track_caller]
pub fn is_full(place: AcquireOutcome, limit: u32) {
    assert_eq!(refused(place), Refusal::Full { limit });
}

pub async fn a_store_that_answers_is_serving(fixture: &Fixture) {
    fixture.here().hold(claim("a")).await;
    assert_eq!(*fixture.first.health().borrow(), Health::Serving);
    let capabilities = fixture.capabilities();
    assert!(!capabilities.kind.is_empty());
    assert_eq!(capabilities, fixture.second.capabilities());
}

// G73
pub async fn a_mode_is_offered_or_refused(fixture: &Fixture) {
    for mode in [Mode::Shared, semaphore(1, 3)] {
        let asking = fencepost::backend::NewClaim { mode, ..claim("a") };
        let lock = fixture.here().on(mode.as_str());
        let answer = fixture.first.acquire(lock.name(), &asking).await;
        match fixture.capabilities().sharing {
            true => assert!(matches!(answer, Ok(AcquireOutcome::Held(_))), "{answer:?}"),
            false => assert!(matches!(answer, Err(BackendError::Unsupported { .. })), "{answer:?}"),
        }
    }
}

// G73
pub async fn re_entry_is_offered_or_refused(fixture: &Fixture) {
    let answer = fixture
        .first
        .acquire(fixture.here().name(), &claim("a").reentrant())
        .await;
    match fixture.capabilities().reentry {
        true => assert!(matches!(answer, Ok(AcquireOutcome::Held(_))), "{answer:?}"),
        false => assert!(matches!(answer, Err(BackendError::Unsupported { .. })), "{answer:?}"),
    }
}

// G73
pub async fn a_change_of_metadata_is_offered_or_refused(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").noting("before")).await;
    let answer = fixture.first.update_metadata(&a.lease, &note_of("after"), None).await;
    let shown = fixture.here().holders().await[0].metadata.clone();
    match fixture.capabilities().updates_metadata {
        true => assert_eq!((answer, shown), (Ok(UpdateOutcome::Updated), note_of("after"))),
        false => {
            assert!(matches!(answer, Err(BackendError::Unsupported { .. })), "{answer:?}");
            assert_eq!(shown, note_of("before"));
        }
    }
}

pub async fn a_request_is_remembered_or_declared_forgotten(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    fixture.here().release(&a).await;
    let answer = fixture.here().acquire(&a.claim.again()).await;
    match fixture.capabilities().remembers_requests {
        true => assert!(matches!(answer, AcquireOutcome::Finished(_)), "{answer:?}"),
        false => assert!(matches!(answer, AcquireOutcome::Held(_)), "{answer:?}"),
    }
}

// G210
pub async fn a_kept_lock_is_offered_or_refused(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let target = ReleaseTarget::Keeping(&a.lease, LONG);
    let answer = fixture.first.release(fixture.here().name(), target, None).await;
    match fixture.capabilities().remembers_requests {
        true => assert!(
            answer.as_ref().is_ok_and(|outcome| outcome.kept == Some(LONG)),
            "{answer:?}"
        ),
        false => assert!(matches!(answer, Err(BackendError::Unsupported { .. })), "{answer:?}"),
    }
    assert_eq!(fixture.there().tokens().await, [a.token()]);
}

pub async fn a_closed_store_answers_nothing(fixture: &Fixture) {
    let notifications = fixture.notifications();
    let a = fixture.here().hold(claim("a")).await;
    let (lock, b) = (fixture.here(), claim("b"));
    fixture.first.close().await;
    is_unavailable(fixture.first.acquire(lock.name(), &b).await);
    is_unavailable(fixture.first.promote(lock.name(), &b).await);
    is_unavailable(
        fixture
            .first
            .release(lock.name(), ReleaseTarget::Hold(&a.lease), None)
            .await,
    );
    is_unavailable(fixture.first.renew(&a.lease, None).await);
    if fixture.capabilities().updates_metadata {
        is_unavailable(fixture.first.update_metadata(&a.lease, &note_of("late"), None).await);
    }
    is_unavailable(fixture.first.inspect(lock.name(), InspectLimit::of_each(1)).await);
    is_unavailable(fixture.first.list("", PageRequest { after: None, size: 1 }).await);
    notifications.end().await;
}

#[track_caller]
fn is_unavailable<T: std::fmt::Debug>(answer: Result<T, BackendError>) {
    assert!(
        matches!(
            answer,
            Err(BackendError::Unavailable { .. } | BackendError::NotSent { .. })
        ),
        "{answer:?}"
    );
}
