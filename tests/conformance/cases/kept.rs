//! A release that keeps its lock: the hold has ended, and the lock stays taken for the time that the release says.

use std::time::Duration;

use fencepost::backend::{AcquireOutcome, ReleaseOutcome, ReleaseTarget, Released, RenewOutcome, UpdateOutcome};
use fencepost::claim::Cause;
use tokio::time::Instant;

use crate::claims::{Asking, claim};
use crate::fixture::{Fixture, LONG};
use crate::replica::{Held, Replica, busy};

/// Pauses between two looks at a lock.
const AGAIN: Duration = Duration::from_millis(20);

/// Releases a lease, and keeps its lock for this time.
async fn keep(replica: &Replica<'_>, held: &Held, time: Duration) -> ReleaseOutcome {
    replica.end(ReleaseTarget::Keeping(&held.lease, time), None).await
}

/// The outcome of the release that decides.
fn kept(time: Duration) -> ReleaseOutcome {
    ReleaseOutcome {
        kept: Some(time),
        ..Released::Ended(Cause::Released).into()
    }
}

/// Tries until the lock is free. Returns how long that took since `from`.
async fn freed_after(fixture: &Fixture, replica: &Replica<'_>, from: Instant) -> Duration {
    let mut z = claim("z").trying();
    while let AcquireOutcome::Busy(_) = replica.acquire(&z).await {
        assert!(from.elapsed() < LONG / 2, "it is free in time");
        fixture.sleep(AGAIN).await;
        z = z.again();
    }
    let free = from.elapsed();
    assert_eq!(replica.undo(&z).await, Released::Ended(Cause::Undone));
    free
}

// G210
pub async fn the_lock_stays_taken_for_the_time_and_no_shorter(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let sent = Instant::now();
    assert_eq!(keep(&fixture.here(), &a, fixture.ample()).await, kept(fixture.ample()));
    for replica in [fixture.here(), fixture.there()] {
        let holder = busy(replica.acquire(&claim("b").trying()).await).expect("a holder");
        assert_eq!((holder.token, holder.holds), (a.token(), 0));
        assert!(holder.remaining <= fixture.ample(), "{holder:?}");
    }
    let there = fixture.there();
    let shown = fixture.second.holder(there.name(), a.token()).await;
    assert!(shown.expect("the store answers").is_some(), "its token is held");
    assert!(freed_after(fixture, &there, sent).await >= fixture.ample());
}

// G210
pub async fn a_kept_lock_serves_its_waiter_after_the_time(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").living(LONG)).await;
    let b = fixture.there().queue(claim("b")).await;
    let sent = Instant::now();
    keep(&fixture.here(), &a, fixture.short()).await;
    while let AcquireOutcome::Waiting(_) = fixture.there().promote(&b).await {
        assert!(
            sent.elapsed() < LONG / 2,
            "a shorter time than that of the lease counts"
        );
        fixture.sleep(AGAIN).await;
    }
    assert!(sent.elapsed() >= fixture.short());
    let held = fixture.there().take(&b).await;
    assert!(held.token() > a.token());
}

// G210
pub async fn the_time_counts_at_other_replicas_when_the_one_that_released_is_gone(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").living(LONG)).await;
    let b = fixture.there().queue(claim("b")).await;
    let sent = Instant::now();
    keep(&fixture.here(), &a, fixture.short()).await;
    if fixture.has_two_replicas() {
        fixture.first.close().await;
    }
    while let AcquireOutcome::Waiting(_) = fixture.there().promote(&b).await {
        assert!(sent.elapsed() < LONG / 2, "it is free in time");
        fixture.sleep(AGAIN).await;
    }
    assert!(sent.elapsed() >= fixture.short());
}

// G211
pub async fn the_lease_of_a_kept_lock_is_released(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    keep(&fixture.here(), &a, LONG).await;
    for replica in [fixture.here(), fixture.there()] {
        let renewed = replica.renew(&a, None).await;
        assert_eq!(renewed, RenewOutcome::Gone(Some(Cause::Released)));
        let retried = replica.acquire(&a.claim.again()).await;
        assert!(
            matches!(retried, AcquireOutcome::Finished(Cause::Released)),
            "{retried:?}"
        );
        if fixture.capabilities().updates_metadata {
            let updated = replica.update(&a, "late").await;
            assert_eq!(updated, UpdateOutcome::Gone(Some(Cause::Released)));
        }
    }
    let undone = fixture.here().undo(&a.claim).await;
    assert!(matches!(undone, Released::Nothing | Released::Adopted), "{undone:?}");
    assert_eq!(fixture.there().tokens().await, [a.token()]);
}

// G211
pub async fn the_first_release_of_a_lease_decides_the_time(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let sent = Instant::now();
    keep(&fixture.here(), &a, fixture.ample()).await;
    for replica in [fixture.here(), fixture.there()] {
        for target in [ReleaseTarget::Hold(&a.lease), ReleaseTarget::Keeping(&a.lease, LONG)] {
            let again = replica.end(target, None).await;
            assert_eq!(again.released, Released::EndedBefore(Cause::Released));
            assert!(again.kept.is_some_and(|left| left <= fixture.ample()), "{again:?}");
        }
    }
    let free = freed_after(fixture, &fixture.there(), sent).await;
    assert!(free >= fixture.ample(), "{free:?}");
    let again = fixture.here().end(ReleaseTarget::Keeping(&a.lease, LONG), None).await;
    assert_eq!(
        (again.released, again.kept),
        (Released::EndedBefore(Cause::Released), None)
    );
}

// G211
pub async fn a_release_without_a_time_is_not_followed_by_one_with_it(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    fixture.here().release(&a).await;
    let again = keep(&fixture.here(), &a, LONG).await;
    assert_eq!(
        (again.released, again.kept),
        (Released::EndedBefore(Cause::Released), None)
    );
    assert!(fixture.there().is_free().await);
}

// G210
pub async fn only_a_force_frees_a_kept_lock_sooner(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    keep(&fixture.here(), &a, LONG).await;
    assert_eq!(fixture.there().force(a.token()).await, Released::Ended(Cause::Forced));
    assert!(fixture.here().is_free().await);
    fixture.there().hold(claim("b")).await;
}

// G211
pub async fn a_reentry_queues_behind_a_kept_lock(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").reentrant()).await;
    keep(&fixture.here(), &a, LONG).await;
    fixture.here().queue(claim("a").reentrant()).await;
}

// G210
pub async fn a_claim_lives_while_a_hold_does_and_for_the_time_of_each_release(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").reentrant()).await;
    let b = fixture.there().hold(claim("a").reentrant()).await;
    let sent = Instant::now();
    keep(&fixture.here(), &a, fixture.ample()).await;
    assert_eq!(fixture.here().renewed(&b, None).await.holds, 1);
    assert_eq!(fixture.there().release(&b).await, Released::Ended(Cause::Released));
    let free = freed_after(fixture, &fixture.here(), sent).await;
    assert!((fixture.ample()..LONG / 2).contains(&free), "{free:?}");
    // A hold that lives longer than the time keeps its claim.
    let c = fixture.here().hold(claim("c").reentrant()).await;
    let d = fixture.here().hold(claim("c").reentrant()).await;
    keep(&fixture.here(), &c, fixture.short()).await;
    fixture.outlive(fixture.short()).await;
    assert_eq!(fixture.there().renewed(&d, None).await.holds, 1);
    // A store without a clock counts the time anew where another server has renewed the claim.
    fixture.here().release(&d).await;
    freed_after(fixture, &fixture.there(), Instant::now()).await;
}

// G210
pub async fn a_kept_reader_excludes_as_a_reader(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").shared()).await;
    keep(&fixture.here(), &a, LONG).await;
    let b = fixture.there().hold(claim("b").shared()).await;
    fixture.there().release(&b).await;
    busy(fixture.there().acquire(&claim("c").trying()).await);
}
