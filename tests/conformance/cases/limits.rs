//! What a store declares, refuses and says when it is closed.

use fencepost::backend::{BackendError, Health, Leaving, Most, Page, Place, Refusal};
use fencepost::name::Mode;

use crate::bed::Bed;
use crate::claims::{Asking, claim, semaphore};
use crate::replica::refused;

/// Asserts that a claim was refused at a limit of this size.
#[track_caller]
pub fn is_full(place: Place, limit: u32) {
    assert_eq!(refused(place), Refusal::Full { limit });
}

pub async fn a_store_that_answers_is_serving(bed: &Bed) {
    bed.here().hold(claim("a")).await;
    assert_eq!(*bed.first.health().borrow(), Health::Serving);
    let offers = bed.offers();
    assert!(!offers.kind.is_empty());
    assert_eq!(offers, bed.second.offers());
}

pub async fn a_mode_is_offered_or_refused(bed: &Bed) {
    for mode in [Mode::Shared, semaphore(1, 3)] {
        let asking = fencepost::backend::NewClaim { mode, ..claim("a") };
        let lock = bed.here().on(mode.word());
        let answer = bed.first.enter(lock.name(), &asking).await;
        match bed.offers().sharing {
            true => assert!(matches!(answer, Ok(Place::Held(_))), "{answer:?}"),
            false => assert!(matches!(answer, Err(BackendError::Unsupported { .. })), "{answer:?}"),
        }
    }
}

pub async fn re_entry_is_offered_or_refused(bed: &Bed) {
    let answer = bed.first.enter(bed.here().name(), &claim("a").reentrant()).await;
    match bed.offers().reentry {
        true => assert!(matches!(answer, Ok(Place::Held(_))), "{answer:?}"),
        false => assert!(matches!(answer, Err(BackendError::Unsupported { .. })), "{answer:?}"),
    }
}

pub async fn a_request_is_remembered_or_declared_forgotten(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    bed.here().release(&a).await;
    let answer = bed.here().enter(&a.claim.again()).await;
    match bed.offers().remembers_requests {
        true => assert!(matches!(answer, Place::Finished(_)), "{answer:?}"),
        false => assert!(matches!(answer, Place::Held(_)), "{answer:?}"),
    }
}

pub async fn a_closed_store_answers_nothing(bed: &Bed) {
    let wakes = bed.wakes();
    let a = bed.here().hold(claim("a")).await;
    let (lock, b) = (bed.here(), claim("b"));
    bed.first.close().await;
    is_away(bed.first.enter(lock.name(), &b).await);
    is_away(bed.first.take_up(lock.name(), &b).await);
    is_away(bed.first.leave(lock.name(), Leaving::Hold(&a.lease), None).await);
    is_away(bed.first.renew(&a.lease, None).await);
    is_away(bed.first.look(lock.name(), Most::of_each(1)).await);
    is_away(bed.first.list("", Page { after: None, size: 1 }).await);
    wakes.end().await;
}

#[track_caller]
fn is_away<T: std::fmt::Debug>(answer: Result<T, BackendError>) {
    assert!(
        matches!(answer, Err(BackendError::Away { .. } | BackendError::Unsent { .. })),
        "{answer:?}"
    );
}
