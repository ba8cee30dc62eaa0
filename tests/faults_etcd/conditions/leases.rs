//! Which etcd leases are used again, and what a used one needs before a grant on it counts.

use std::time::{Duration, Instant};

use fencepost::backend::{BackendError, ReleaseTarget, RenewOutcome};

use crate::claims::{Asking, claim};
use crate::fixture::{Fixture, LONG, step};
use crate::proxy::{Fate, varint};
use crate::replica::{Held, held, waiting};

/// Acquires and releases at the first replica; the lease that is free for the next grant.
async fn used_lease(fixture: &Fixture) -> i64 {
    let hold = fixture.here().hold(claim("first")).await;
    let lease = fixture.lease().await;
    fixture.here().release(&hold).await;
    lease
}

/// Acquires the lock at the first replica; its lease.
async fn next_lease(fixture: &Fixture) -> i64 {
    fixture.here().hold(claim("next")).await;
    fixture.lease().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_used_again_lives_for_its_whole_ttl_from_the_grant_on() {
    let Some(fixture) = Fixture::new().await else { return };
    let lease = used_lease(&fixture).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let granted = Instant::now();
    assert_eq!(next_lease(&fixture).await, lease, "another lease was taken");
    let left = fixture.etcd.clone().lease_time_to_live(lease, None).await;
    let left = Duration::from_secs(left.expect("etcd answers").ttl().unsigned_abs());
    // Etcd says whole seconds, and a lease outlives its TTL by one.
    let shortest = LONG.saturating_sub(granted.elapsed());
    assert!(left >= shortest, "{left:?} are left, and not {shortest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_used_again_within_a_second_gets_no_keep_alive_and_outlives_its_ttl_by_that_second() {
    let Some(fixture) = Fixture::new().await else { return };
    let (begun, lease) = (Instant::now(), used_lease(&fixture).await);
    let before = fixture.proxy.signs_of_life(lease);
    for _ in 0..20 {
        assert_eq!(used_lease(&fixture).await, lease, "another lease was taken");
    }
    let signs = fixture.proxy.signs_of_life(lease) - before;
    assert!(signs as u64 <= 1 + begun.elapsed().as_secs(), "{signs} keep-alives");
    let granted = fixture.here().hold(claim("last")).await.grant.ttl;
    let granted_by_etcd = fixture
        .etcd
        .clone()
        .lease_time_to_live(lease, None)
        .await
        .expect("etcd answers");
    let whole = Duration::from_secs(granted_by_etcd.granted_ttl().unsigned_abs());
    assert_eq!(whole, granted + Duration::from_secs(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_without_a_keep_alive_lives_for_its_whole_ttl() {
    let Some(fixture) = Fixture::new().await else { return };
    let (ttl, margin) = (Duration::from_secs(2), Duration::from_millis(50));
    let (here, there) = (fixture.here(), fixture.there());
    for _ in 0..5 {
        let first = here.hold(claim("first").living(ttl)).await;
        let lease = fixture.lease().await;
        here.release(&first).await;
        tokio::time::sleep(Duration::from_millis(900)).await;
        let (before, sent) = (fixture.proxy.signs_of_life(lease), Instant::now());
        let hold = here.hold(claim("next").living(ttl)).await;
        assert_eq!(fixture.lease().await, lease, "another lease was taken");
        // A busy machine may have taken more than the spare second.
        let is_kept_alive = fixture.proxy.signs_of_life(lease) != before;
        tokio::time::sleep_until((sent + ttl - margin).into()).await;
        let renewed = there.renew(&hold, None).await;
        let is_late = sent.elapsed() >= ttl;
        assert!(is_late || matches!(renewed, RenewOutcome::Renewed(_)), "{renewed:?}");
        there.release(&hold).await;
        if !is_kept_alive && !is_late {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_is_told_what_remains_of_its_ttl_less_a_second_at_most() {
    let Some(fixture) = Fixture::new().await else { return };
    let ttl = Duration::from_secs(10);
    let (here, there) = (fixture.here(), fixture.there());
    for _ in 0..5 {
        let first = here.hold(claim("first").living(ttl)).await;
        let lease = fixture.lease().await;
        here.release(&first).await;
        tokio::time::sleep(Duration::from_millis(920)).await;
        let (before, sent) = (fixture.proxy.signs_of_life(lease), Instant::now());
        let hold = here.hold(claim("next").living(ttl)).await;
        // A busy machine may have taken more than the spare second.
        let is_kept_alive = fixture.proxy.signs_of_life(lease) != before;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let found = held(there.acquire(&hold.claim.again()).await);
        // Etcd says whole seconds.
        let least = ttl.saturating_sub(sent.elapsed() + Duration::from_secs(1));
        assert!(
            found.ttl >= least && found.ttl <= ttl,
            "{:?}, and not {least:?}",
            found.ttl
        );
        here.release(&hold).await;
        if !is_kept_alive {
            return;
        }
    }
}

/// As one that etcd has prolonged when its leader changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_lease_that_lives_for_longer_than_its_ttl_no_more_than_that_is_shown() {
    let Some(fixture) = Fixture::new().await else { return };
    let ttl = LONG / 2;
    let mut hold = fixture.there().on("other").hold(claim("holder").living(ttl)).await;
    fixture.plant_holder("other").await;
    hold.lease.lock.name = fixture.here().name().clone();
    hold.lease.token = fixture.here().tokens().await[0];
    let shown = fixture.here().holders().await[0].remaining;
    assert_eq!(shown, ttl);
    let found = held(fixture.here().acquire(&hold.claim.again()).await);
    assert_eq!(found.ttl, ttl);
    // What this replica knows of it, it says to its waiters.
    fixture.here().renewed(&hold, None).await;
    let queued = waiting(fixture.here().acquire(&claim("waiter")).await);
    assert!(queued.frees_in.is_some_and(|left| left <= ttl), "{queued:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ttl_of_one_second_is_granted_as_it_is() {
    let Some(fixture) = Fixture::new().await else { return };
    let second = Duration::from_secs(1);
    let hold = fixture.here().hold(claim("short").living(second)).await;
    assert_eq!(hold.grant.ttl, second);
}

// G34
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ttl_of_part_of_a_second_is_raised_and_answered_so() {
    let Some(fixture) = Fixture::new().await else { return };
    let raised = Duration::from_millis(1_500);
    let hold = fixture.here().hold(claim("fraction").living(raised)).await;
    assert_eq!(hold.grant.ttl, Duration::from_secs(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_on_a_lease_that_ended_before_its_sign_of_life_fails() {
    let Some(fixture) = Fixture::new().await else { return };
    let lease = used_lease(&fixture).await;
    // Its last keep-alive is too long ago for another grant.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let mut sign = fixture
        .proxy
        .catch(Fate::Held, &[b"LeaseKeepAlive".to_vec(), varint(lease)]);
    let ended = async {
        sign.is_here().await;
        while fixture.there().is_free().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        fixture.revoke(lease).await;
        sign.let_go().await;
    };
    let (here, new) = (fixture.here(), claim("next"));
    let (acquired, ()) = tokio::join!(fixture.first.acquire(here.name(), &new), ended);
    assert!(
        matches!(acquired, Err(BackendError::Unavailable { .. })),
        "{acquired:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_of_a_hold_that_another_call_found_is_not_used_again() {
    let Some(fixture) = Fixture::new().await else { return };
    let hold = fixture.here().hold(claim("first")).await;
    let lease = fixture.lease().await;
    held(fixture.there().acquire(&hold.claim.again()).await);
    fixture.here().release(&hold).await;
    assert_ne!(next_lease(&fixture).await, lease);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_of_a_holder_that_another_joined_is_not_used_again() {
    let Some(fixture) = Fixture::new().await else { return };
    let hold = fixture.here().hold(claim("owner").reentrant()).await;
    let lease = fixture.lease().await;
    let other = fixture.there().hold(claim("owner").reentrant()).await;
    fixture.there().release(&other).await;
    fixture.here().release(&hold).await;
    assert_ne!(next_lease(&fixture).await, lease);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_that_another_moved_a_holder_to_is_not_used_again() {
    let Some(fixture) = Fixture::new().await else { return };
    let hold = fixture.here().hold(claim("first").living(LONG / 2)).await;
    fixture.there().renewed(&hold, Some(LONG)).await;
    let lease = fixture.lease().await;
    fixture.here().release(&hold).await;
    assert_ne!(next_lease(&fixture).await, lease);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_of_a_holder_that_was_forced_out_is_not_used_again() {
    let Some(fixture) = Fixture::new().await else { return };
    let hold = fixture.there().hold(claim("first")).await;
    let lease = fixture.lease().await;
    fixture.here().force(hold.token()).await;
    assert_ne!(next_lease(&fixture).await, lease);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_of_a_release_or_a_grant_without_an_answer_is_not_used_again() {
    let Some(fixture) = Fixture::new().await else { return };
    let hold = fixture.here().hold(claim("first")).await;
    let lease = fixture.lease().await;
    lose_release(&fixture, &hold).await;
    let (here, lost) = (fixture.here(), claim("lost"));
    let _answer = fixture.proxy.catch(Fate::AnswerLost, &step(&lost, "h/x/"));
    let acquired = fixture.first.acquire(here.name(), &lost).await;
    assert!(
        matches!(acquired, Err(BackendError::Unavailable { .. })),
        "{acquired:?}"
    );
    let second = fixture.lease().await;
    assert_ne!(second, lease);
    here.on("other").hold(claim("next")).await;
    let third = fixture.leases_under(&fixture.key("lock/other\th/")).await;
    assert!(third.len() == 1 && third[0] != lease && third[0] != second, "{third:?}");
}

/// Releases, and loses the answer.
async fn lose_release(fixture: &Fixture, hold: &Held) {
    let key = "\th/x/".to_owned();
    let _answer = fixture.proxy.catch(Fate::AnswerLost, &["KV/Txn".to_owned(), key]);
    let left = fixture
        .first
        .release(fixture.here().name(), ReleaseTarget::Hold(&hold.lease), None)
        .await;
    assert!(matches!(left, Err(BackendError::Unavailable { .. })), "{left:?}");
}
