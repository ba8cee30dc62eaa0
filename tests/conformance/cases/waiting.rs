//! Waiting: who is woken, and what a waiter learns when it asks.

use std::time::Duration;

use fencepost::backend::{NewClaim, Place};

use crate::bed::{Bed, LONG};
use crate::claims::{Asking, claim};
use crate::replica::{Replica, waiting};

/// Queues claims of these owners, in order.
async fn queue_all(lock: &Replica<'_>, owners: &[&str]) -> Vec<NewClaim> {
    let mut queue = Vec::new();
    for owner in owners {
        queue.push(lock.queue(claim(owner)).await);
    }
    queue
}

pub async fn a_release_wakes_the_next_and_no_other(bed: &Bed) {
    let mut wakes = bed.wakes();
    let lock = bed.here();
    let a = lock.hold(claim("a")).await;
    let queue = queue_all(&lock, &["b", "c", "d", "e"]).await;
    wakes.all().await;
    lock.release(&a).await;
    wakes.only(lock.name(), &[&queue[0]]).await;
    let b = lock.take(&queue[0]).await;
    wakes.only(lock.name(), &[]).await;
    lock.release(&b).await;
    wakes.only(lock.name(), &[&queue[1]]).await;
}

pub async fn a_release_at_another_replica_wakes_the_next(bed: &Bed) {
    let mut wakes = bed.wakes();
    let a = bed.there().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    wakes.all().await;
    bed.there().release(&a).await;
    wakes.until(bed.here().name(), &b).await;
    bed.here().take(&b).await;
}

pub async fn a_release_wakes_every_reader_up_to_the_next_writer(bed: &Bed) {
    let mut wakes = bed.wakes();
    let lock = bed.here();
    let a = lock.hold(claim("a")).await;
    let b = lock.queue(claim("b").shared()).await;
    let c = lock.queue(claim("c").shared()).await;
    lock.queue(claim("w")).await;
    lock.queue(claim("d").shared()).await;
    wakes.all().await;
    lock.release(&a).await;
    wakes.until(lock.name(), &b).await;
    lock.take(&b).await;
    wakes.until(lock.name(), &c).await;
    lock.take(&c).await;
    wakes.only(lock.name(), &[]).await;
}

pub async fn a_release_that_makes_too_little_room_wakes_nobody(bed: &Bed) {
    let mut wakes = bed.wakes();
    let lock = bed.here();
    let a = lock.hold(claim("a").semaphore(1, 3)).await;
    let b = lock.hold(claim("b").semaphore(1, 3)).await;
    lock.hold(claim("c").semaphore(1, 3)).await;
    let two = lock.queue(claim("two").semaphore(2, 3)).await;
    let one = lock.queue(claim("one").semaphore(1, 3)).await;
    wakes.all().await;
    lock.release(&a).await;
    waiting(lock.take_up(&two).await);
    waiting(lock.take_up(&one).await);
    wakes.all().await;
    lock.release(&b).await;
    wakes.until(lock.name(), &two).await;
    lock.take(&two).await;
}

pub async fn an_expiry_wakes_the_next(bed: &Bed) {
    let mut wakes = bed.wakes();
    let lock = bed.here();
    lock.hold(claim("a").living(bed.ample())).await;
    let queue = queue_all(&lock, &["b", "c"]).await;
    wakes.until(lock.name(), &queue[0]).await;
    bed.sleep(bed.pace.slack).await;
    lock.take(&queue[0]).await;
    waiting(lock.take_up(&queue[1]).await);
}

pub async fn a_renewed_holder_wakes_nobody_at_its_first_expiry(bed: &Bed) {
    let mut wakes = bed.wakes();
    let lock = bed.here();
    let a = lock.hold(claim("a").living(bed.ample())).await;
    let b = lock.queue(claim("b")).await;
    lock.renewed(&a, Some(LONG)).await;
    bed.outlive(bed.ample()).await;
    waiting(lock.take_up(&b).await);
    lock.release(&a).await;
    wakes.until(lock.name(), &b).await;
}

pub async fn a_force_wakes_the_next(bed: &Bed) {
    let mut wakes = bed.wakes();
    let lock = bed.here();
    let a = lock.hold(claim("a")).await;
    let queue = queue_all(&lock, &["b", "c"]).await;
    wakes.all().await;
    bed.there().force(a.token()).await;
    wakes.only(lock.name(), &[&queue[0]]).await;
    lock.take(&queue[0]).await;
}

pub async fn a_take_back_wakes_the_next(bed: &Bed) {
    let mut wakes = bed.wakes();
    let lock = bed.here();
    let a = lock.hold(claim("a")).await;
    let queue = queue_all(&lock, &["b", "c"]).await;
    wakes.all().await;
    lock.undo(&a.claim).await;
    wakes.only(lock.name(), &[&queue[0]]).await;
    lock.take(&queue[0]).await;
}

pub async fn a_waiter_that_leaves_wakes_those_it_kept_out(bed: &Bed) {
    let mut wakes = bed.wakes();
    let lock = bed.here();
    lock.hold(claim("a").shared()).await;
    let w = lock.queue(claim("w")).await;
    let b = lock.queue(claim("b").shared()).await;
    wakes.all().await;
    lock.undo(&w).await;
    wakes.until(lock.name(), &b).await;
    lock.take(&b).await;
}

pub async fn an_eligible_waiter_that_leaves_wakes_the_next(bed: &Bed) {
    let mut wakes = bed.wakes();
    let lock = bed.here();
    let a = lock.hold(claim("a")).await;
    let queue = queue_all(&lock, &["b", "c"]).await;
    lock.release(&a).await;
    wakes.until(lock.name(), &queue[0]).await;
    lock.undo(&queue[0]).await;
    wakes.until(lock.name(), &queue[1]).await;
    lock.take(&queue[1]).await;
}

pub async fn a_waiter_in_the_middle_leaves_without_a_wake(bed: &Bed) {
    let mut wakes = bed.wakes();
    let lock = bed.here();
    lock.hold(claim("a")).await;
    let queue = queue_all(&lock, &["b", "c", "d"]).await;
    wakes.all().await;
    lock.undo(&queue[1]).await;
    wakes.only(lock.name(), &[]).await;
    waiting(lock.take_up(&queue[2]).await);
}

pub async fn an_adoption_wakes_the_older_call(bed: &Bed) {
    let mut wakes = bed.wakes();
    bed.there().hold(claim("a")).await;
    let older = bed.here().queue(claim("b")).await;
    wakes.all().await;
    waiting(bed.there().enter(&older.again()).await);
    wakes.until(bed.here().name(), &older).await;
    assert!(matches!(bed.here().take_up(&older).await, Place::Superseded));
}

pub async fn a_waiter_learns_its_turn_and_when_it_may_be_free(bed: &Bed) {
    let lock = bed.here();
    let a = lock.hold(claim("a")).await;
    let mut turns = Vec::new();
    for owner in ["b", "c", "d"] {
        let next = claim(owner);
        let ahead = waiting(lock.enter(&next).await);
        let frees_in = ahead.frees_in.expect("somebody holds");
        assert!(!frees_in.is_zero() && frees_in <= a.grant.ttl, "{frees_in:?}");
        turns.push((ahead.turn, next.id, next));
    }
    assert!(turns.is_sorted_by_key(|(turn, id, _)| (*turn, *id)), "{turns:?}");
    for (turn, _, next) in &turns {
        assert_eq!(waiting(lock.take_up(next).await).turn, *turn);
    }
}

pub async fn a_take_up_of_an_unknown_claim_finds_nothing(bed: &Bed) {
    assert!(matches!(bed.here().take_up(&claim("a")).await, Place::Gone));
    assert!(bed.here().is_free().await);
}

pub async fn a_repeated_take_up_gives_the_same_grant(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    bed.here().release(&a).await;
    let once = bed.here().take(&b).await;
    let twice = bed.here().take(&b).await;
    assert_eq!((once.lease, once.grant.holds), (twice.lease, twice.grant.holds));
    assert_eq!(bed.here().look().await.holder_count, 1);
}

pub async fn a_take_up_right_after_a_direct_grant_gives_it_again(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let again = bed.here().take(&a.claim).await;
    assert_eq!(again.lease, a.lease);
    assert_eq!(bed.here().tokens().await, [a.token()]);
}

pub async fn waited_runs_from_the_arrival_to_the_grant(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    assert!(a.grant.waited < bed.short(), "{:?}", a.grant.waited);
    let b = bed.here().queue(claim("b")).await;
    bed.sleep(bed.short()).await;
    bed.here().release(&a).await;
    let b = bed.here().take(&b).await;
    assert!(
        (bed.short()..2 * bed.ample()).contains(&b.grant.waited),
        "{:?}",
        b.grant.waited
    );
}

pub async fn the_ttl_of_a_waiter_starts_at_its_grant(bed: &Bed) {
    let ample = bed.ample();
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b").living(ample)).await;
    bed.sleep(ample + bed.short()).await;
    bed.here().release(&a).await;
    let b = bed.here().take(&b).await;
    assert!(b.grant.ttl >= ample, "{:?}", b.grant.ttl);
    assert!(bed.here().holders().await[0].remaining > Duration::ZERO);
    bed.sleep(bed.short()).await;
    assert_eq!(bed.here().tokens().await, [b.token()]);
}

pub async fn a_waiter_outlives_the_ttl_it_asked_for(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b").living(bed.short())).await;
    bed.outlive(2 * bed.short()).await;
    waiting(bed.here().take_up(&b).await);
    bed.here().release(&a).await;
    bed.here().take(&b).await;
}
