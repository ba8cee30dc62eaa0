//! Sharing: readers and writers, semaphores, and what does not mix.

use fencepost::backend::{Place, Refusal};
use fencepost::name::Mode;

use crate::bed::Bed;
use crate::claims::{Asking, claim, semaphore};
use crate::replica::{busy, refused, waiting};

pub async fn readers_hold_together(bed: &Bed) {
    let a = bed.here().hold(claim("a").shared()).await;
    let b = bed.there().hold(claim("b").shared().trying()).await;
    let mut tokens = bed.here().tokens().await;
    tokens.sort();
    assert_eq!(tokens, [a.token(), b.token()]);
}

pub async fn a_writer_waits_for_the_last_reader(bed: &Bed) {
    let a = bed.here().hold(claim("a").shared()).await;
    let b = bed.here().hold(claim("b").shared()).await;
    let w = bed.here().queue(claim("w")).await;
    bed.here().release(&a).await;
    waiting(bed.here().take_up(&w).await);
    bed.here().release(&b).await;
    bed.here().take(&w).await;
}

pub async fn a_waiting_writer_stops_new_readers(bed: &Bed) {
    let a = bed.here().hold(claim("a").shared()).await;
    let w = bed.here().queue(claim("w")).await;
    let found = busy(bed.here().enter(&claim("b").shared().trying()).await);
    assert_eq!(found.expect("a reader holds").token, a.token());
    let c = bed.there().queue(claim("c").shared()).await;
    bed.here().release(&a).await;
    waiting(bed.there().take_up(&c).await);
    let w = bed.here().take(&w).await;
    bed.here().release(&w).await;
    bed.there().take(&c).await;
}

pub async fn readers_behind_a_writer_are_granted_together(bed: &Bed) {
    let w = bed.here().hold(claim("w")).await;
    let a = bed.here().queue(claim("a").shared()).await;
    let b = bed.here().queue(claim("b").shared()).await;
    let last = bed.here().queue(claim("last")).await;
    bed.here().release(&w).await;
    bed.here().take(&b).await;
    bed.here().take(&a).await;
    waiting(bed.here().take_up(&last).await);
}

pub async fn a_semaphore_is_held_up_to_its_limit(bed: &Bed) {
    let a = bed.here().hold(claim("a").semaphore(2, 5)).await;
    bed.there().hold(claim("b").semaphore(3, 5)).await;
    busy(bed.here().enter(&claim("c").semaphore(1, 5).trying()).await);
    let c = bed.here().queue(claim("c").semaphore(2, 5)).await;
    bed.here().release(&a).await;
    bed.here().take(&c).await;
    assert_eq!(bed.here().look().await.holder_count, 2);
}

pub async fn a_big_semaphore_claim_is_not_starved(bed: &Bed) {
    let a = bed.here().hold(claim("a").semaphore(1, 3)).await;
    let big = bed.here().queue(claim("big").semaphore(3, 3)).await;
    busy(bed.here().enter(&claim("try").semaphore(1, 3).trying()).await);
    let small = bed.here().queue(claim("small").semaphore(1, 3)).await;
    bed.here().release(&a).await;
    waiting(bed.here().take_up(&small).await);
    let big = bed.here().take(&big).await;
    waiting(bed.here().take_up(&small).await);
    bed.here().release(&big).await;
    bed.here().take(&small).await;
}

pub async fn an_exclusive_claim_shares_with_no_permit(bed: &Bed) {
    let a = bed.here().hold(claim("a").semaphore(1, 3)).await;
    let x = bed.here().queue(claim("x")).await;
    let b = bed.here().queue(claim("b").semaphore(1, 3)).await;
    bed.here().release(&a).await;
    waiting(bed.here().take_up(&b).await);
    let x = bed.here().take(&x).await;
    waiting(bed.here().take_up(&b).await);
    bed.here().release(&x).await;
    bed.here().take(&b).await;
}

pub async fn a_semaphore_of_another_limit_is_refused_both_ways(bed: &Bed) {
    refuses(bed, "up", semaphore(1, 5), semaphore(1, 6)).await;
    refuses(bed, "down", semaphore(1, 6), semaphore(1, 5)).await;
}

pub async fn shared_and_semaphore_are_refused_both_ways(bed: &Bed) {
    refuses(bed, "shared first", Mode::Shared, semaphore(1, 5)).await;
    refuses(bed, "semaphore first", semaphore(1, 5), Mode::Shared).await;
}

/// `there` holds; `comes` is refused, as a waiter and as a try, and leaves nothing behind.
async fn refuses(bed: &Bed, lock: &str, there: Mode, comes: Mode) {
    let lock = bed.here().on(lock);
    let of = |owner, mode| fencepost::backend::NewClaim { mode, ..claim(owner) };
    let a = lock.hold(of("a", there)).await;
    for patient in [of("b", comes), of("b", comes).trying()] {
        assert_eq!(refused(lock.enter(&patient).await), Refusal::LimitMismatch { there });
    }
    assert_eq!(lock.owners().await, (vec!["a".into()], vec![]));
    lock.release(&a).await;
    lock.hold(of("b", comes)).await;
}

pub async fn a_mismatch_with_a_waiter_is_refused_too(bed: &Bed) {
    let x = bed.here().hold(claim("x")).await;
    let reader = bed.here().queue(claim("r").shared()).await;
    let permit = claim("p").semaphore(1, 5);
    let mismatch = Refusal::LimitMismatch { there: Mode::Shared };
    assert_eq!(refused(bed.there().enter(&permit).await), mismatch);
    bed.here().release(&x).await;
    let reader = bed.here().take(&reader).await;
    assert_eq!(refused(bed.there().enter(&permit).await), mismatch);
    bed.here().release(&reader).await;
    bed.there().hold(permit).await;
}

pub async fn a_waiting_permit_does_not_pass_one_that_does_not_fit(bed: &Bed) {
    let a = bed.here().hold(claim("a").semaphore(2, 4)).await;
    let b = bed.here().hold(claim("b").semaphore(2, 4)).await;
    let three = bed.here().queue(claim("three").semaphore(3, 4)).await;
    let one = bed.here().queue(claim("one").semaphore(1, 4)).await;
    bed.here().release(&a).await;
    assert!(matches!(bed.here().take_up(&one).await, Place::Waiting(_)));
    bed.here().release(&b).await;
    bed.here().take(&three).await;
    bed.here().take(&one).await;
}
