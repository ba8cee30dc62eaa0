//! Sharing: readers and writers, semaphores, and what does not mix.

use fencepost::backend::{AcquireOutcome, Refusal};
use fencepost::name::Mode;

use crate::claims::{Asking, claim, semaphore};
use crate::fixture::Fixture;
use crate::replica::{busy, refused, waiting};

// G1
pub async fn readers_hold_together(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").shared()).await;
    let b = fixture.there().hold(claim("b").shared().trying()).await;
    let mut tokens = fixture.here().tokens().await;
    tokens.sort();
    assert_eq!(tokens, [a.token(), b.token()]);
}

pub async fn a_writer_waits_for_the_last_reader(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").shared()).await;
    let b = fixture.here().hold(claim("b").shared()).await;
    let w = fixture.here().queue(claim("w")).await;
    fixture.here().release(&a).await;
    waiting(fixture.here().promote(&w).await);
    fixture.here().release(&b).await;
    fixture.here().take(&w).await;
}

// G2
pub async fn a_waiting_writer_stops_new_readers(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").shared()).await;
    let w = fixture.here().queue(claim("w")).await;
    let found = busy(fixture.here().acquire(&claim("b").shared().trying()).await);
    assert_eq!(found.expect("a reader holds").token, a.token());
    let c = fixture.there().queue(claim("c").shared()).await;
    fixture.here().release(&a).await;
    waiting(fixture.there().promote(&c).await);
    let w = fixture.here().take(&w).await;
    fixture.here().release(&w).await;
    fixture.there().take(&c).await;
}

pub async fn readers_behind_a_writer_are_granted_together(fixture: &Fixture) {
    let w = fixture.here().hold(claim("w")).await;
    let a = fixture.here().queue(claim("a").shared()).await;
    let b = fixture.here().queue(claim("b").shared()).await;
    let last = fixture.here().queue(claim("last")).await;
    fixture.here().release(&w).await;
    fixture.here().take(&b).await;
    fixture.here().take(&a).await;
    waiting(fixture.here().promote(&last).await);
}

// G1
pub async fn a_semaphore_is_held_up_to_its_limit(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").semaphore(2, 5)).await;
    fixture.there().hold(claim("b").semaphore(3, 5)).await;
    busy(fixture.here().acquire(&claim("c").semaphore(1, 5).trying()).await);
    let c = fixture.here().queue(claim("c").semaphore(2, 5)).await;
    fixture.here().release(&a).await;
    fixture.here().take(&c).await;
    assert_eq!(fixture.here().inspect().await.holder_count, 2);
}

// G2
pub async fn a_big_semaphore_claim_is_not_starved(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").semaphore(1, 3)).await;
    let big = fixture.here().queue(claim("big").semaphore(3, 3)).await;
    busy(fixture.here().acquire(&claim("try").semaphore(1, 3).trying()).await);
    let small = fixture.here().queue(claim("small").semaphore(1, 3)).await;
    fixture.here().release(&a).await;
    waiting(fixture.here().promote(&small).await);
    let big = fixture.here().take(&big).await;
    waiting(fixture.here().promote(&small).await);
    fixture.here().release(&big).await;
    fixture.here().take(&small).await;
}

// G1
pub async fn an_exclusive_claim_shares_with_no_permit(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").semaphore(1, 3)).await;
    let x = fixture.here().queue(claim("x")).await;
    let b = fixture.here().queue(claim("b").semaphore(1, 3)).await;
    fixture.here().release(&a).await;
    waiting(fixture.here().promote(&b).await);
    let x = fixture.here().take(&x).await;
    waiting(fixture.here().promote(&b).await);
    fixture.here().release(&x).await;
    fixture.here().take(&b).await;
}

// G4
pub async fn shared_and_semaphore_are_refused_both_ways(fixture: &Fixture) {
    refuses(fixture, "shared first", Mode::Shared, semaphore(1, 5)).await;
    refuses(fixture, "semaphore first", semaphore(1, 5), Mode::Shared).await;
}

/// `there` holds; `comes` is refused, as a waiter and as a try, and leaves nothing behind.
async fn refuses(fixture: &Fixture, lock: &str, there: Mode, comes: Mode) {
    let lock = fixture.here().on(lock);
    let of = |owner, mode| fencepost::backend::NewClaim { mode, ..claim(owner) };
    let a = lock.hold(of("a", there)).await;
    for patient in [of("b", comes), of("b", comes).trying()] {
        assert_eq!(
            refused(lock.acquire(&patient).await),
            Refusal::LimitMismatch { existing: there }
        );
    }
    assert_eq!(lock.owners().await, (vec!["a".into()], vec![]));
    lock.release(&a).await;
    lock.hold(of("b", comes)).await;
}

// G4
pub async fn a_mismatch_with_a_waiter_is_refused_too(fixture: &Fixture) {
    let x = fixture.here().hold(claim("x")).await;
    let reader = fixture.here().queue(claim("r").shared()).await;
    let permit = claim("p").semaphore(1, 5);
    let mismatch = Refusal::LimitMismatch { existing: Mode::Shared };
    assert_eq!(refused(fixture.there().acquire(&permit).await), mismatch);
    fixture.here().release(&x).await;
    let reader = fixture.here().take(&reader).await;
    assert_eq!(refused(fixture.there().acquire(&permit).await), mismatch);
    fixture.here().release(&reader).await;
    fixture.there().hold(permit).await;
}

pub async fn a_waiting_permit_does_not_pass_one_that_does_not_fit(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").semaphore(2, 4)).await;
    let b = fixture.here().hold(claim("b").semaphore(2, 4)).await;
    let three = fixture.here().queue(claim("three").semaphore(3, 4)).await;
    let one = fixture.here().queue(claim("one").semaphore(1, 4)).await;
    fixture.here().release(&a).await;
    assert!(matches!(fixture.here().promote(&one).await, AcquireOutcome::Waiting(_)));
    fixture.here().release(&b).await;
    fixture.here().take(&three).await;
    fixture.here().take(&one).await;
}
