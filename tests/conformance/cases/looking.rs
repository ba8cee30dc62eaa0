//! Looking, listing and watching.

use fencepost::backend::{ChangeKind, Most, Page};
use fencepost::claim::Cause;
use fencepost::name::LockName;

use crate::bed::Bed;
use crate::claims::{Asking, claim, note_of};
use crate::streams::Watching;

pub async fn a_lock_that_nobody_uses_is_free(bed: &Bed) {
    assert!(bed.here().is_free().await);
    assert!(names(bed, "").await.is_empty());
}

pub async fn a_look_shows_what_the_claims_say(bed: &Bed) {
    let a = bed.here().hold(claim("a").proven("alice").noting("holds")).await;
    let b = bed
        .here()
        .queue(claim("b").shared().proven("bob").noting("waits"))
        .await;
    let queue = bed.there().look().await;
    let (holder, waiter) = (&queue.holders[0], &queue.waiters[0]);
    assert_eq!(
        (holder.claim, &holder.owner, &holder.identity),
        (a.claim.id, &a.claim.owner, &a.claim.identity)
    );
    assert_eq!((holder.token, holder.holds, holder.mode), (a.token(), 1, a.claim.mode));
    assert_eq!(holder.metadata, note_of("holds"));
    assert!(!holder.remaining.is_zero() && holder.remaining <= a.grant.ttl);
    assert_eq!(
        (waiter.claim, &waiter.owner, &waiter.identity),
        (b.id, &b.owner, &b.identity)
    );
    assert_eq!((waiter.mode, &waiter.metadata), (b.mode, &note_of("waits")));
    assert_eq!((queue.holder_count, queue.waiter_count), (1, 1));
}

pub async fn a_look_counts_more_than_it_shows(bed: &Bed) {
    for n in 0..4 {
        bed.here().hold(claim(&format!("r{n}")).shared()).await;
    }
    for n in 0..5 {
        bed.here().queue(claim(&format!("w{n}"))).await;
    }
    let most = Most { holders: 3, waiters: 2 };
    let queue = bed
        .first
        .look(bed.here().name(), most)
        .await
        .expect("the store answers");
    assert_eq!((queue.holders.len(), queue.waiters.len()), (3, 2));
    assert_eq!((queue.holder_count, queue.waiter_count), (4, 5));
    let first: Vec<_> = queue.waiters.iter().map(|waiter| waiter.owner.as_str()).collect();
    assert_eq!(first, ["w0", "w1"]);
}

pub async fn a_look_shows_no_expired_holder(bed: &Bed) {
    bed.here().hold(claim("a").living(bed.short())).await;
    bed.outlive(bed.short()).await;
    assert!(bed.there().is_free().await);
}

/// The names of a whole list, page by page of two.
async fn names(bed: &Bed, prefix: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut page = Page { after: None, size: 2 };
    loop {
        let listing = bed.first.list(prefix, page.clone()).await.expect("the store answers");
        assert!(listing.locks.len() <= page.size, "{listing:?}");
        names.extend(listing.locks.iter().map(|summary| summary.lock.to_string()));
        match listing.next {
            None => return names,
            after => page.after = after,
        }
    }
}

pub async fn a_list_shows_the_locks_in_use_by_name(bed: &Bed) {
    for name in ["b", "a/2", "a", "ü", "a/1", "A", "ab"] {
        bed.here().on(name).hold(claim("a")).await;
    }
    bed.elsewhere().on("a/3").hold(claim("a")).await;
    assert_eq!(names(bed, "").await, ["A", "a", "a/1", "a/2", "ab", "b", "ü"]);
    assert_eq!(names(bed, "a").await, ["a", "a/1", "a/2", "ab"]);
    assert_eq!(names(bed, "a/").await, ["a/1", "a/2"]);
    assert_eq!(names(bed, "ü").await, ["ü"]);
    assert!(names(bed, "c").await.is_empty());
}

pub async fn a_page_begins_no_sooner_than_its_prefix(bed: &Bed) {
    for name in ["a/1", "b/1", "b/2", "c/1"] {
        bed.here().on(name).hold(claim("a")).await;
    }
    for after in ["", "a", "a/1", "b"] {
        let page = Page {
            after: Some(after.into()),
            size: 9,
        };
        let listing = bed.first.list("b/", page).await.expect("the store answers");
        let found: Vec<_> = listing.locks.iter().map(|summary| summary.lock.as_str()).collect();
        assert_eq!(found, ["b/1", "b/2"], "after {after:?}");
    }
}

pub async fn a_prefix_is_text_and_no_pattern(bed: &Bed) {
    for name in ["a*b", "axb", "[a]", "a%2Fb", "a?", "a_b"] {
        bed.here().on(name).hold(claim("a")).await;
    }
    for (prefix, found) in [
        ("a*", "a*b"),
        ("[a", "[a]"),
        ("a%", "a%2Fb"),
        ("a?", "a?"),
        ("a_", "a_b"),
    ] {
        assert_eq!(names(bed, prefix).await, [found]);
    }
}

pub async fn a_lock_leaves_the_list_with_its_last_claim(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    let listing = bed
        .first
        .list("", Page { after: None, size: 9 })
        .await
        .expect("the store answers");
    let summary = &listing.locks[0];
    assert_eq!((summary.holders, summary.waiters), (1, 1));
    assert_eq!(summary.first.as_ref().expect("a holder").token, a.token());
    bed.here().release(&a).await;
    assert_eq!(names(bed, "").await, ["lock"]);
    bed.here().undo(&b).await;
    assert!(names(bed, "").await.is_empty());
}

pub async fn an_expired_lock_leaves_the_list(bed: &Bed) {
    bed.here().hold(claim("a").living(bed.short())).await;
    bed.outlive(bed.short()).await;
    assert!(names(bed, "").await.is_empty());
}

/// Watches at another replica, where it sees the waiters of all; else at the one where they wait.
async fn watch(bed: &Bed) -> (Watching, fencepost::claim::Queue) {
    let name: LockName = bed.here().name().clone();
    let replica = if bed.offers().global_order {
        &bed.second
    } else {
        &bed.first
    };
    Watching::begin(replica.watch(&name)).await
}

pub async fn a_watch_begins_with_the_state(bed: &Bed) {
    let (_, free) = watch(bed).await;
    assert_eq!(free, fencepost::claim::Queue::default());
    let a = bed.here().hold(claim("a")).await;
    bed.here().queue(claim("b")).await;
    let (_, state) = watch(bed).await;
    assert_eq!((state.holder_count, state.waiter_count), (1, 1));
    assert_eq!(state.holders[0].token, a.token());
    assert_eq!(state.waiters[0].owner.as_str(), "b");
}

pub async fn a_watch_at_another_replica_sees_who_holds(bed: &Bed) {
    let name: LockName = bed.here().name().clone();
    let (mut watching, _) = Watching::begin(bed.second.watch(&name)).await;
    let a = bed.here().hold(claim("a")).await;
    let seen = watching.sees(ChangeKind::Granted, "a").await;
    assert_eq!((seen.token, seen.holders), (Some(a.token()), 1));
    bed.here().release(&a).await;
    let seen = watching.sees(ChangeKind::Ended(Cause::Released), "a").await;
    assert_eq!((seen.token, seen.holders), (Some(a.token()), 0));
}

pub async fn a_watch_shows_each_change(bed: &Bed) {
    let (mut watching, _) = watch(bed).await;
    let a = bed.here().hold(claim("a")).await;
    let seen = watching.sees(ChangeKind::Granted, "a").await;
    assert_eq!((seen.token, seen.holders, seen.waiters), (Some(a.token()), 1, 0));
    let b = bed.here().queue(claim("b")).await;
    let seen = watching.sees(ChangeKind::Queued, "b").await;
    assert_eq!((seen.token, seen.holders, seen.waiters), (None, 1, 1));
    bed.here().release(&a).await;
    let seen = watching.sees(ChangeKind::Ended(Cause::Released), "a").await;
    assert_eq!((seen.token, seen.holders), (Some(a.token()), 0));
    let b = bed.here().take(&b).await;
    let seen = watching.sees(ChangeKind::Granted, "b").await;
    assert_eq!((seen.token, seen.holders, seen.waiters), (Some(b.token()), 1, 0));
}

pub async fn a_watch_shows_every_kind_of_end(bed: &Bed) {
    let (mut watching, _) = watch(bed).await;
    let a = bed.here().hold(claim("a")).await;
    watching.sees(ChangeKind::Granted, "a").await;
    let b = bed.here().queue(claim("b")).await;
    watching.sees(ChangeKind::Queued, "b").await;
    bed.here().undo(&b).await;
    assert_eq!(watching.sees(ChangeKind::Ended(Cause::Left), "b").await.waiters, 0);
    bed.here().force(a.token()).await;
    assert_eq!(
        watching.sees(ChangeKind::Ended(Cause::Forced), "a").await.token,
        Some(a.token())
    );
    let c = bed.here().hold(claim("c")).await;
    watching.sees(ChangeKind::Granted, "c").await;
    bed.here().undo(&c.claim).await;
    watching.sees(ChangeKind::Ended(Cause::TakenBack), "c").await;
    bed.here().hold(claim("d").living(bed.short())).await;
    watching.sees(ChangeKind::Granted, "d").await;
    assert_eq!(watching.sees(ChangeKind::Ended(Cause::Expired), "d").await.holders, 0);
}

pub async fn a_watch_shows_a_hand_over_as_end_and_grant(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    let (mut watching, _) = watch(bed).await;
    bed.here().release_to(&a, &b).await;
    watching.sees(ChangeKind::Ended(Cause::Released), "a").await;
    let seen = watching.sees(ChangeKind::Granted, "b").await;
    assert_eq!((seen.holders, seen.waiters), (1, 0));
}

pub async fn a_watch_sees_its_own_lock_alone(bed: &Bed) {
    let (mut watching, _) = watch(bed).await;
    bed.here().on("other").hold(claim("x")).await;
    bed.elsewhere().hold(claim("y")).await;
    bed.here().hold(claim("a")).await;
    let seen = watching.sees(ChangeKind::Granted, "a").await;
    assert_eq!(seen.holders, 1);
}
