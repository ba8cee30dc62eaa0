//! Which etcd leases are used again, and what a used one needs before a grant on it counts.

use std::time::{Duration, Instant};

use fencepost::backend::{BackendError, Leaving};

use crate::bed::{Bed, LONG, step};
use crate::claims::{Asking, claim};
use crate::proxy::{Fate, varint};
use crate::replica::{Held, held};

/// Acquires and releases at the first replica; the lease that is free for the next grant.
async fn used_lease(bed: &Bed) -> i64 {
    let hold = bed.here().hold(claim("first")).await;
    let lease = bed.lease().await;
    bed.here().release(&hold).await;
    lease
}

/// Acquires the lock at the first replica; its lease.
async fn next_lease(bed: &Bed) -> i64 {
    bed.here().hold(claim("next")).await;
    bed.lease().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_used_again_lives_for_its_whole_ttl_from_the_grant_on() {
    let Some(bed) = Bed::new().await else { return };
    let lease = used_lease(&bed).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let granted = Instant::now();
    assert_eq!(next_lease(&bed).await, lease, "another lease was taken");
    let left = bed.etcd.clone().lease_time_to_live(lease, None).await;
    let left = Duration::from_secs(left.expect("etcd answers").ttl().unsigned_abs());
    // Etcd says whole seconds.
    let shortest = LONG.saturating_sub(granted.elapsed() + Duration::from_secs(1));
    assert!(left >= shortest, "{left:?} are left, and not {shortest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_used_again_at_once_gets_a_sign_of_life_after_each_call_came() {
    let Some(bed) = Bed::new().await else { return };
    let lease = used_lease(&bed).await;
    let before = bed.proxy.signs_of_life(lease);
    for round in 1..=20 {
        assert_eq!(used_lease(&bed).await, lease, "another lease was taken");
        assert_eq!(bed.proxy.signs_of_life(lease), before + round);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_without_a_sign_of_life_of_its_own_counts_from_the_last_one() {
    let Some(bed) = Bed::new().await else { return };
    for _ in 0..100 {
        let new = claim("next");
        let first = bed.here().hold(claim("first")).await;
        let sent_before = new.arrived.elapsed();
        let lease = bed.lease().await;
        bed.here().release(&first).await;
        let signs = bed.proxy.signs_of_life(lease);
        let next = bed.here().hold(new).await;
        assert_eq!(bed.lease().await, lease, "another lease was taken");
        bed.here().release(&next).await;
        // On a busy machine the last one is too long ago.
        if bed.proxy.signs_of_life(lease) == signs {
            assert!(
                next.grant.waited <= sent_before,
                "{:?} > {sent_before:?}",
                next.grant.waited
            );
            return;
        }
    }
    panic!("each grant had a sign of life of its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_on_a_lease_that_ended_before_its_sign_of_life_fails() {
    let Some(bed) = Bed::new().await else { return };
    let lease = used_lease(&bed).await;
    let mut sign = bed
        .proxy
        .catch(Fate::Held, &[b"LeaseKeepAlive".to_vec(), varint(lease)]);
    let ended = async {
        sign.is_here().await;
        while bed.there().is_free().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bed.revoke(lease).await;
        sign.let_go().await;
    };
    let (here, new) = (bed.here(), claim("next"));
    let (entered, ()) = tokio::join!(bed.first.enter(here.name(), &new), ended);
    assert!(matches!(entered, Err(BackendError::Away { .. })), "{entered:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_of_a_hold_that_another_call_found_is_not_used_again() {
    let Some(bed) = Bed::new().await else { return };
    let hold = bed.here().hold(claim("first")).await;
    let lease = bed.lease().await;
    held(bed.there().enter(&hold.claim.again()).await);
    bed.here().release(&hold).await;
    assert_ne!(next_lease(&bed).await, lease);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_of_a_holder_that_another_joined_is_not_used_again() {
    let Some(bed) = Bed::new().await else { return };
    let hold = bed.here().hold(claim("owner").reentrant()).await;
    let lease = bed.lease().await;
    let other = bed.there().hold(claim("owner").reentrant()).await;
    bed.there().release(&other).await;
    bed.here().release(&hold).await;
    assert_ne!(next_lease(&bed).await, lease);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_that_another_moved_a_holder_to_is_not_used_again() {
    let Some(bed) = Bed::new().await else { return };
    let hold = bed.here().hold(claim("first").living(LONG / 2)).await;
    bed.there().renewed(&hold, Some(LONG)).await;
    let lease = bed.lease().await;
    bed.here().release(&hold).await;
    assert_ne!(next_lease(&bed).await, lease);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_of_a_holder_that_was_forced_out_is_not_used_again() {
    let Some(bed) = Bed::new().await else { return };
    let hold = bed.there().hold(claim("first")).await;
    let lease = bed.lease().await;
    bed.here().force(hold.token()).await;
    assert_ne!(next_lease(&bed).await, lease);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_of_a_release_or_a_grant_without_an_answer_is_not_used_again() {
    let Some(bed) = Bed::new().await else { return };
    let hold = bed.here().hold(claim("first")).await;
    let lease = bed.lease().await;
    lose_release(&bed, &hold).await;
    let (here, lost) = (bed.here(), claim("lost"));
    let _answer = bed.proxy.catch(Fate::AnswerLost, &step(&lost, "h/x/"));
    let entered = bed.first.enter(here.name(), &lost).await;
    assert!(matches!(entered, Err(BackendError::Away { .. })), "{entered:?}");
    let second = bed.lease().await;
    assert_ne!(second, lease);
    here.on("other").hold(claim("next")).await;
    let third = bed.leases_under(&bed.key("lock/other\th/")).await;
    assert!(third.len() == 1 && third[0] != lease && third[0] != second, "{third:?}");
}

/// Releases, and loses the answer.
async fn lose_release(bed: &Bed, hold: &Held) {
    let key = format!("\th/x/{}", hold.claim.id);
    let _answer = bed.proxy.catch(Fate::AnswerLost, &["KV/Txn".to_owned(), key]);
    let left = bed
        .first
        .leave(bed.here().name(), Leaving::Hold(&hold.lease), None)
        .await;
    assert!(matches!(left, Err(BackendError::Away { .. })), "{left:?}");
}
