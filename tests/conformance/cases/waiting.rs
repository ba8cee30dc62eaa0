//! Waiting: who is woken, and what a waiter learns when it asks.

use std::task::Poll;
use std::time::Duration;

use fencepost::backend::{AcquireOutcome, NewClaim, ReleaseTarget};
use futures::{join, poll};

use crate::claims::{Asking, claim};
use crate::fixture::{Fixture, LONG};
use crate::replica::{Replica, waiting};
use crate::streams::Watching;

/// Queues claims of these owners, in order.
async fn queue_all(lock: &Replica<'_>, owners: &[&str]) -> Vec<NewClaim> {
    let mut queue = Vec::new();
    for owner in owners {
        queue.push(lock.queue(claim(owner)).await);
    }
    queue
}

// G12
pub async fn a_release_wakes_the_next_and_no_other(fixture: &Fixture) {
    let mut notifications = fixture.notifications();
    let lock = fixture.here();
    let a = lock.hold(claim("a")).await;
    let queue = queue_all(&lock, &["b", "c", "d", "e"]).await;
    notifications.all().await;
    lock.release(&a).await;
    notifications.only(lock.name(), &[&queue[0]]).await;
    let b = lock.take(&queue[0]).await;
    notifications.only(lock.name(), &[]).await;
    lock.release(&b).await;
    notifications.only(lock.name(), &[&queue[1]]).await;
}

// G13
pub async fn a_release_at_another_replica_wakes_the_next(fixture: &Fixture) {
    let mut notifications = fixture.notifications();
    let a = fixture.there().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    notifications.all().await;
    fixture.there().release(&a).await;
    notifications.until(fixture.here().name(), &b).await;
    fixture.here().take(&b).await;
}

pub async fn a_release_wakes_every_reader_up_to_the_next_writer(fixture: &Fixture) {
    let mut notifications = fixture.notifications();
    let lock = fixture.here();
    let a = lock.hold(claim("a")).await;
    let b = lock.queue(claim("b").shared()).await;
    let c = lock.queue(claim("c").shared()).await;
    lock.queue(claim("w")).await;
    lock.queue(claim("d").shared()).await;
    notifications.all().await;
    lock.release(&a).await;
    notifications.until(lock.name(), &b).await;
    lock.take(&b).await;
    notifications.until(lock.name(), &c).await;
    lock.take(&c).await;
    notifications.only(lock.name(), &[]).await;
}

pub async fn a_release_that_makes_too_little_room_wakes_nobody(fixture: &Fixture) {
    let mut notifications = fixture.notifications();
    let lock = fixture.here();
    let a = lock.hold(claim("a").semaphore(1, 3)).await;
    let b = lock.hold(claim("b").semaphore(1, 3)).await;
    lock.hold(claim("c").semaphore(1, 3)).await;
    let two = lock.queue(claim("two").semaphore(2, 3)).await;
    let one = lock.queue(claim("one").semaphore(1, 3)).await;
    notifications.all().await;
    lock.release(&a).await;
    waiting(lock.promote(&two).await);
    waiting(lock.promote(&one).await);
    notifications.all().await;
    lock.release(&b).await;
    notifications.until(lock.name(), &two).await;
    lock.take(&two).await;
}

// G12
pub async fn an_expiry_wakes_the_next(fixture: &Fixture) {
    let mut notifications = fixture.notifications();
    let lock = fixture.here();
    lock.hold(claim("a").living(fixture.ample())).await;
    let queue = queue_all(&lock, &["b", "c"]).await;
    notifications.until(lock.name(), &queue[0]).await;
    fixture.sleep(fixture.pace.slack).await;
    lock.take(&queue[0]).await;
    waiting(lock.promote(&queue[1]).await);
}

pub async fn a_renewed_holder_wakes_nobody_at_its_first_expiry(fixture: &Fixture) {
    let mut notifications = fixture.notifications();
    let lock = fixture.here();
    let a = lock.hold(claim("a").living(fixture.ample())).await;
    let b = lock.queue(claim("b")).await;
    lock.renewed(&a, Some(LONG)).await;
    fixture.outlive(fixture.ample()).await;
    waiting(lock.promote(&b).await);
    lock.release(&a).await;
    notifications.until(lock.name(), &b).await;
}

// G12
pub async fn a_force_wakes_the_next(fixture: &Fixture) {
    let mut notifications = fixture.notifications();
    let lock = fixture.here();
    let a = lock.hold(claim("a")).await;
    let queue = queue_all(&lock, &["b", "c"]).await;
    notifications.all().await;
    fixture.there().force(a.token()).await;
    notifications.only(lock.name(), &[&queue[0]]).await;
    lock.take(&queue[0]).await;
}

// G12
pub async fn a_take_back_wakes_the_next(fixture: &Fixture) {
    let mut notifications = fixture.notifications();
    let lock = fixture.here();
    let a = lock.hold(claim("a")).await;
    let queue = queue_all(&lock, &["b", "c"]).await;
    notifications.all().await;
    lock.undo(&a.claim).await;
    notifications.only(lock.name(), &[&queue[0]]).await;
    lock.take(&queue[0]).await;
}

pub async fn a_waiter_that_leaves_wakes_those_it_kept_out(fixture: &Fixture) {
    let mut notifications = fixture.notifications();
    let lock = fixture.here();
    lock.hold(claim("a").shared()).await;
    let w = lock.queue(claim("w")).await;
    let b = lock.queue(claim("b").shared()).await;
    notifications.all().await;
    lock.undo(&w).await;
    notifications.until(lock.name(), &b).await;
    lock.take(&b).await;
}

pub async fn an_eligible_waiter_that_leaves_wakes_the_next(fixture: &Fixture) {
    let mut notifications = fixture.notifications();
    let lock = fixture.here();
    let a = lock.hold(claim("a")).await;
    let queue = queue_all(&lock, &["b", "c"]).await;
    lock.release(&a).await;
    notifications.until(lock.name(), &queue[0]).await;
    lock.undo(&queue[0]).await;
    notifications.until(lock.name(), &queue[1]).await;
    lock.take(&queue[1]).await;
}

pub async fn a_waiter_in_the_middle_leaves_without_a_wake(fixture: &Fixture) {
    let mut notifications = fixture.notifications();
    let lock = fixture.here();
    lock.hold(claim("a")).await;
    let queue = queue_all(&lock, &["b", "c", "d"]).await;
    notifications.all().await;
    lock.undo(&queue[1]).await;
    notifications.only(lock.name(), &[]).await;
    waiting(lock.promote(&queue[2]).await);
}

pub async fn an_adoption_wakes_the_older_call(fixture: &Fixture) {
    let mut notifications = fixture.notifications();
    fixture.there().hold(claim("a")).await;
    let older = fixture.here().queue(claim("b")).await;
    notifications.all().await;
    waiting(fixture.there().acquire(&older.again()).await);
    notifications.until(fixture.here().name(), &older).await;
    assert!(matches!(
        fixture.here().promote(&older).await,
        AcquireOutcome::Superseded
    ));
}

pub async fn a_waiter_learns_its_turn_and_when_it_may_be_free(fixture: &Fixture) {
    let lock = fixture.here();
    let a = lock.hold(claim("a")).await;
    let mut turns = Vec::new();
    for owner in ["b", "c", "d"] {
        let next = claim(owner);
        let ahead = waiting(lock.acquire(&next).await);
        let frees_in = ahead.frees_in.expect("somebody holds");
        assert!(!frees_in.is_zero() && frees_in <= a.grant.ttl, "{frees_in:?}");
        turns.push((ahead.position, next.id, next));
    }
    assert!(turns.is_sorted_by_key(|(turn, id, _)| (*turn, *id)), "{turns:?}");
    for (turn, _, next) in &turns {
        assert_eq!(waiting(lock.promote(next).await).position, *turn);
    }
}

pub async fn promoting_an_unknown_claim_finds_nothing(fixture: &Fixture) {
    assert!(matches!(
        fixture.here().promote(&claim("a")).await,
        AcquireOutcome::Gone
    ));
    assert!(fixture.here().is_free().await);
}

pub async fn a_repeated_promotion_gives_the_same_grant(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    fixture.here().release(&a).await;
    let once = fixture.here().take(&b).await;
    let twice = fixture.here().take(&b).await;
    assert_eq!((once.lease, once.grant.holds), (twice.lease, twice.grant.holds));
    assert_eq!(fixture.here().inspect().await.holder_count, 1);
}

pub async fn a_promotion_right_after_a_direct_grant_gives_it_again(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let again = fixture.here().take(&a.claim).await;
    assert_eq!(again.lease, a.lease);
    assert_eq!(fixture.here().tokens().await, [a.token()]);
}

// G28
pub async fn waited_runs_from_the_arrival_to_the_grant(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    assert!(a.grant.waited < fixture.short(), "{:?}", a.grant.waited);
    let b = fixture.here().queue(claim("b")).await;
    fixture.sleep(fixture.short()).await;
    fixture.here().release(&a).await;
    let b = fixture.here().take(&b).await;
    assert!(
        (fixture.short()..2 * fixture.ample()).contains(&b.grant.waited),
        "{:?}",
        b.grant.waited
    );
}

// G28
pub async fn the_ttl_of_a_waiter_starts_at_its_grant(fixture: &Fixture) {
    let ample = fixture.ample();
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b").living(ample)).await;
    fixture.sleep(ample + fixture.short()).await;
    fixture.here().release(&a).await;
    let b = fixture.here().take(&b).await;
    assert!(b.grant.ttl >= ample, "{:?}", b.grant.ttl);
    assert!(fixture.here().holders().await[0].remaining > Duration::ZERO);
    fixture.sleep(fixture.short()).await;
    assert_eq!(fixture.here().tokens().await, [b.token()]);
}

pub async fn a_waiter_outlives_the_ttl_it_asked_for(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b").living(fixture.short())).await;
    fixture.outlive(2 * fixture.short()).await;
    waiting(fixture.here().promote(&b).await);
    fixture.here().release(&a).await;
    fixture.here().take(&b).await;
}

/// A session begins a release as soon as its store orders it behind the acquires before it.
pub async fn a_release_takes_effect_after_the_acquires_that_are_ordered_before_it(fixture: &Fixture) {
    let (lock, replica) = (fixture.here(), &fixture.first);
    let (kind, mut ordered) = (replica.capabilities().kind, 0);
    for round in 0..20 {
        let a = lock.hold(claim("a")).await;
        // A lock that is watched is known, and an acquire needs no look at it first.
        let _watching = Watching::begin(replica.watch(lock.name())).await;
        let new = claim("b");
        let mut acquire = replica.acquire(lock.name(), &new);
        // A store in memory answers at once.
        let outcome = match poll!(&mut acquire) {
            Poll::Ready(outcome) => {
                lock.release(&a).await;
                outcome
            }
            Poll::Pending => {
                let is_ordered = replica.orders_acquires(lock.name());
                ordered += usize::from(is_ordered);
                let release = replica.release(lock.name(), ReleaseTarget::Hold(&a.lease), None);
                let (outcome, released) = join!(acquire, release);
                released.expect("it answers");
                if !is_ordered {
                    lock.undo(&new).await;
                    continue;
                }
                outcome
            }
        };
        // A waiter of the tree engine looks at the lock again when it has its place; `common::tree::order` shows the order.
        let is_later = ["zookeeper", "etcd", "tree"].contains(&kind) && matches!(outcome, Ok(AcquireOutcome::Held(_)));
        let is_waiting = matches!(outcome, Ok(AcquireOutcome::Waiting(_)));
        assert!(is_waiting || is_later, "round {round}: {outcome:?}");
        lock.undo(&new).await;
    }
    println!("{ordered} of 20 were ordered");
    assert!(ordered > 0 || kind != "zookeeper", "it orders none");
}
