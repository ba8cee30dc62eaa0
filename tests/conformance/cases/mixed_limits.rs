//! Semaphore claims of different limits in one queue: the smallest limit in the prefix counts.

use fencepost::backend::{NewClaim, Refusal};

use crate::claims::{Asking, claim, semaphore};
use crate::fixture::Fixture;
use crate::replica::{busy, refused, waiting};

// G3
pub async fn the_smallest_limit_counts(fixture: &Fixture) {
    let (here, there) = (fixture.here(), fixture.there());
    let a = here.hold(claim("a").semaphore(1, 5)).await;
    let b = there.hold(claim("b").semaphore(1, 5)).await;
    here.hold(claim("c").semaphore(1, 5)).await;
    busy(there.acquire(&claim("try").semaphore(1, 3).trying()).await);
    let small = there.queue(claim("small").semaphore(1, 3)).await;
    let late = here.queue(claim("late").semaphore(1, 5)).await;
    busy(here.acquire(&claim("try").semaphore(1, 5).trying()).await);
    here.release(&a).await;
    waiting(here.promote(&late).await);
    let small = there.take(&small).await;
    waiting(here.promote(&late).await);
    there.release(&b).await;
    here.take(&late).await;
    busy(there.acquire(&claim("try").semaphore(1, 5).trying()).await);
    there.release(&small).await;
    there.hold(claim("three of five").semaphore(3, 5)).await;
    busy(here.acquire(&claim("try").semaphore(1, 5).trying()).await);
    assert_eq!(here.inspect().await.holder_count, 3);
}

// G3
pub async fn a_larger_limit_counts_when_the_smaller_ones_are_gone(fixture: &Fixture) {
    let (here, there) = (fixture.here(), fixture.there());
    let a = here.hold(claim("a").semaphore(1, 2)).await;
    let b = there.hold(claim("b").semaphore(1, 2)).await;
    let one = here.queue(claim("one").semaphore(1, 4)).await;
    let two = there.queue(claim("two").semaphore(2, 4)).await;
    there.release(&a).await;
    waiting(there.promote(&two).await);
    here.take(&one).await;
    waiting(there.promote(&two).await);
    busy(here.acquire(&claim("try").semaphore(1, 4).trying()).await);
    here.release(&b).await;
    there.take(&two).await;
    here.hold(claim("last").semaphore(1, 4)).await;
    busy(there.acquire(&claim("try").semaphore(1, 4).trying()).await);
}

pub async fn waiters_are_woken_as_far_as_the_limit_that_is_left_allows(fixture: &Fixture) {
    let mut notifications = fixture.notifications();
    let lock = fixture.here();
    let a = lock.hold(claim("a").semaphore(1, 2)).await;
    let b = fixture.there().hold(claim("b").semaphore(1, 2)).await;
    let mut queue = Vec::new();
    for (owner, permits) in [("c", 1), ("d", 1), ("e", 1), ("three", 3)] {
        queue.push(lock.queue(claim(owner).semaphore(permits, 5)).await);
    }
    notifications.all().await;
    fixture.there().release(&a).await;
    // A holder with the small limit stays.
    notifications.only(lock.name(), &[&queue[0]]).await;
    lock.take(&queue[0]).await;
    waiting(lock.promote(&queue[1]).await);
    notifications.all().await;
    fixture.there().release(&b).await;
    notifications.only(lock.name(), &[&queue[1], &queue[2]]).await;
    lock.take(&queue[2]).await;
    lock.take(&queue[1]).await;
    waiting(lock.promote(&queue[3]).await);
}

pub async fn an_end_of_any_cause_leaves_the_limit_of_the_others(fixture: &Fixture) {
    let (here, there) = (fixture.here(), fixture.there());
    here.hold(claim("a").semaphore(1, 4)).await;
    here.hold(claim("expires").semaphore(1, 2).living(fixture.ample()))
        .await;
    let forced = there.queue(claim("forced").semaphore(1, 3)).await;
    let undone = here.queue(claim("undone").semaphore(2, 4)).await;
    let last = there.queue(claim("last").semaphore(3, 4)).await;
    fixture.outlive(fixture.ample()).await;
    let forced = there.take(&forced).await;
    waiting(here.promote(&undone).await);
    here.force(forced.token()).await;
    let undone = here.take(&undone).await;
    waiting(there.promote(&last).await);
    here.undo(&undone.claim).await;
    there.take(&last).await;
}

pub async fn nobody_overtakes_a_claim_with_a_smaller_limit(fixture: &Fixture) {
    let (here, there) = (fixture.here(), fixture.there());
    here.hold(claim("a").semaphore(2, 5)).await;
    let small = there.queue(claim("small").semaphore(1, 2)).await;
    let late = here.queue(claim("late").semaphore(1, 5)).await;
    waiting(here.promote(&late).await);
    busy(here.acquire(&claim("try").semaphore(1, 5).trying()).await);
    there.undo(&small).await;
    here.take(&late).await;
}

pub async fn a_big_claim_is_not_starved_by_smaller_limits(fixture: &Fixture) {
    let (here, there) = (fixture.here(), fixture.there());
    let a = here.hold(claim("a").semaphore(1, 2)).await;
    let b = there.hold(claim("b").semaphore(1, 5)).await;
    let big = here.queue(claim("big").semaphore(5, 5)).await;
    let small = there.queue(claim("small").semaphore(1, 2)).await;
    busy(there.acquire(&claim("try").semaphore(1, 2).trying()).await);
    here.release(&a).await;
    waiting(there.promote(&small).await);
    waiting(here.promote(&big).await);
    there.release(&b).await;
    waiting(there.promote(&small).await);
    let big = here.take(&big).await;
    waiting(there.promote(&small).await);
    here.release(&big).await;
    there.take(&small).await;
}

pub async fn a_next_is_passed_that_the_limit_of_another_holder_keeps_waiting(fixture: &Fixture) {
    let here = fixture.here();
    let a = here.hold(claim("a").semaphore(1, 2)).await;
    let b = here.hold(claim("b").semaphore(1, 2)).await;
    let two = here.queue(claim("two").semaphore(2, 5)).await;
    assert_eq!(here.release_to(&a, &two).await.next, None);
    let grant = here.release_to(&b, &two).await.next.expect("handed over");
    assert_eq!(grant.claim, two.id);
    let two = here.known(two, grant);
    let c = here.hold(claim("c").semaphore(1, 5)).await;
    let one = here.queue(claim("one").semaphore(1, 1)).await;
    assert_eq!(here.release_to(&two, &one).await.next, None);
    let handed = here.release_to(&c, &one).await.next;
    assert_eq!(handed.expect("handed over").claim, one.id);
    assert_eq!(here.owners().await, (vec!["one".into()], vec![]));
}

pub async fn a_retry_with_another_limit_is_refused(fixture: &Fixture) {
    let here = fixture.here();
    let other = |claim: &NewClaim| NewClaim {
        mode: semaphore(1, 3),
        ..claim.again()
    };
    let a = here.hold(claim("a").semaphore(1, 1)).await;
    let b = here.queue(claim("b").semaphore(1, 5)).await;
    for known in [&a.claim, &b] {
        let refusal = refused(fixture.there().acquire(&other(known)).await);
        assert_eq!(refusal, Refusal::OtherParameters { field: "mode" });
    }
    assert_eq!(here.owners().await, (vec!["a".into()], vec!["b".into()]));
}

pub async fn a_reentry_with_another_limit_is_refused(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").semaphore(1, 5).reentrant()).await;
    let again = claim("a").semaphore(1, 3).reentrant();
    let refusal = refused(fixture.there().acquire(&again).await);
    assert_eq!(refusal, Refusal::OtherParameters { field: "mode" });
    assert_eq!(fixture.here().tokens().await, [a.token()]);
}
