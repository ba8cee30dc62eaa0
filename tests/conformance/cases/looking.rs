//! Looking, listing and watching.

use fencepost::backend::{ChangeKind, InspectLimit, NewClaim, PageRequest, ReleaseTarget, Released};
use fencepost::claim::{Cause, ClaimLabels};
use fencepost::name::LockName;

use crate::claims::{Asking, claim, note_of};
use crate::fixture::{Fixture, LONG};
use crate::streams::Watching;

pub async fn a_lock_that_nobody_uses_is_free(fixture: &Fixture) {
    assert!(fixture.here().is_free().await);
    assert!(names(fixture, "").await.is_empty());
}

pub async fn an_inspection_shows_what_the_claims_say(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").proven("alice").noting("holds")).await;
    let b = fixture
        .here()
        .queue(claim("b").shared().proven("bob").noting("waits"))
        .await;
    let queue = fixture.there().inspect().await;
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

// G38
pub async fn an_inspection_counts_more_than_it_shows(fixture: &Fixture) {
    for n in 0..4 {
        fixture.here().hold(claim(&format!("r{n}")).shared()).await;
    }
    for n in 0..5 {
        fixture.here().queue(claim(&format!("w{n}"))).await;
    }
    let most = InspectLimit { holders: 3, waiters: 2 };
    let queue = fixture
        .first
        .inspect(fixture.here().name(), most)
        .await
        .expect("the store answers");
    assert_eq!((queue.holders.len(), queue.waiters.len()), (3, 2));
    assert_eq!((queue.holder_count, queue.waiter_count), (4, 5));
    let first: Vec<_> = queue.waiters.iter().map(|waiter| waiter.owner.as_str()).collect();
    assert_eq!(first, ["w0", "w1"]);
}

pub async fn an_inspection_shows_no_expired_holder(fixture: &Fixture) {
    fixture.here().hold(claim("a").living(fixture.short())).await;
    fixture.outlive(fixture.short()).await;
    assert!(fixture.there().is_free().await);
}

/// The names of a whole list, page by page of two.
async fn names(fixture: &Fixture, prefix: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut page = PageRequest { after: None, size: 2 };
    loop {
        let listing = fixture
            .first
            .list(prefix, page.clone())
            .await
            .expect("the store answers");
        assert!(listing.locks.len() <= page.size, "{listing:?}");
        names.extend(listing.locks.iter().map(|summary| summary.lock.to_string()));
        match listing.next {
            None => return names,
            after => page.after = after,
        }
    }
}

pub async fn a_list_shows_the_locks_in_use_by_name(fixture: &Fixture) {
    for name in ["b", "a/2", "a", "ü", "a/1", "A", "ab"] {
        fixture.here().on(name).hold(claim("a")).await;
    }
    fixture.elsewhere().on("a/3").hold(claim("a")).await;
    assert_eq!(names(fixture, "").await, ["A", "a", "a/1", "a/2", "ab", "b", "ü"]);
    assert_eq!(names(fixture, "a").await, ["a", "a/1", "a/2", "ab"]);
    assert_eq!(names(fixture, "a/").await, ["a/1", "a/2"]);
    assert_eq!(names(fixture, "ü").await, ["ü"]);
    assert!(names(fixture, "c").await.is_empty());
}

pub async fn a_page_begins_no_sooner_than_its_prefix(fixture: &Fixture) {
    for name in ["a/1", "b/1", "b/2", "c/1"] {
        fixture.here().on(name).hold(claim("a")).await;
    }
    for after in ["", "a", "a/1", "b"] {
        let page = PageRequest {
            after: Some(after.into()),
            size: 9,
        };
        let listing = fixture.first.list("b/", page).await.expect("the store answers");
        let found: Vec<_> = listing.locks.iter().map(|summary| summary.lock.as_str()).collect();
        assert_eq!(found, ["b/1", "b/2"], "after {after:?}");
    }
}

pub async fn a_prefix_is_text_and_no_pattern(fixture: &Fixture) {
    for name in ["a*b", "axb", "[a]", "a%2Fb", "a?", "a_b"] {
        fixture.here().on(name).hold(claim("a")).await;
    }
    for (prefix, found) in [
        ("a*", "a*b"),
        ("[a", "[a]"),
        ("a%", "a%2Fb"),
        ("a?", "a?"),
        ("a_", "a_b"),
    ] {
        assert_eq!(names(fixture, prefix).await, [found]);
    }
}

pub async fn a_lock_leaves_the_list_with_its_last_claim(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    let listing = fixture
        .first
        .list("", PageRequest { after: None, size: 9 })
        .await
        .expect("the store answers");
    let summary = &listing.locks[0];
    assert_eq!((summary.holders, summary.waiters), (1, 1));
    assert_eq!(summary.first.as_ref().expect("a holder").token, a.token());
    fixture.here().release(&a).await;
    assert_eq!(names(fixture, "").await, ["lock"]);
    fixture.here().undo(&b).await;
    assert!(names(fixture, "").await.is_empty());
}

pub async fn an_expired_lock_leaves_the_list(fixture: &Fixture) {
    fixture.here().hold(claim("a").living(fixture.short())).await;
    fixture.outlive(fixture.short()).await;
    assert!(names(fixture, "").await.is_empty());
}

/// Watches at another replica, where it sees the changes of all; else at the one that makes them.
async fn watch(fixture: &Fixture) -> (Watching, fencepost::claim::Queue) {
    let name: LockName = fixture.here().name().clone();
    let replica = if fixture.capabilities().global_order && fixture.pace.tells_changes {
        &fixture.second
    } else {
        &fixture.first
    };
    Watching::begin(replica.watch(&name)).await
}

// G36a
pub async fn a_watch_begins_with_the_state(fixture: &Fixture) {
    let (_, free) = watch(fixture).await;
    assert_eq!(free, fencepost::claim::Queue::default());
    let a = fixture.here().hold(claim("a")).await;
    fixture.here().queue(claim("b")).await;
    let (_, state) = watch(fixture).await;
    assert_eq!((state.holder_count, state.waiter_count), (1, 1));
    assert_eq!(state.holders[0].token, a.token());
    assert_eq!(state.waiters[0].owner.as_str(), "b");
}

// G37
pub async fn a_watch_at_another_replica_sees_who_holds(fixture: &Fixture) {
    let name: LockName = fixture.here().name().clone();
    let (mut watching, _) = Watching::begin(fixture.second.watch(&name)).await;
    let a = fixture.here().hold(claim("a")).await;
    if !fixture.pace.tells_changes {
        let seen = watching.comes_to(|queue| !queue.holders.is_empty()).await;
        assert_eq!(seen.holders[0].token, a.token());
        fixture.here().release(&a).await;
        watching.comes_to(|queue| queue.holders.is_empty()).await;
        return;
    }
    let seen = watching.sees(ChangeKind::Granted, "a").await;
    assert_eq!((seen.token, seen.holders), (Some(a.token()), 1));
    fixture.here().release(&a).await;
    let seen = watching.sees(ChangeKind::Ended(Cause::Released), "a").await;
    assert_eq!((seen.token, seen.holders), (Some(a.token()), 0));
}

/// A claim of somebody who was proven, with metadata.
fn labelled(owner: &str) -> NewClaim {
    let (identity, note) = (format!("identity of {owner}"), format!("note of {owner}"));
    claim(owner).proven(&identity).noting(&note)
}

/// What each change of a claim shows.
fn labels(claim: &NewClaim) -> ClaimLabels {
    ClaimLabels::of(&claim.owner, &claim.identity, &claim.metadata)
}

// G36b
pub async fn a_watch_shows_each_change(fixture: &Fixture) {
    let (mut watching, _) = watch(fixture).await;
    let a = fixture.here().hold(labelled("a")).await;
    let seen = watching.sees(ChangeKind::Granted, "a").await;
    assert_eq!((seen.token, seen.holders, seen.waiters), (Some(a.token()), 1, 0));
    assert_eq!(seen.claim, labels(&a.claim));
    let b = fixture.here().queue(labelled("b")).await;
    let seen = watching.sees(ChangeKind::Queued, "b").await;
    assert_eq!((seen.token, seen.holders, seen.waiters), (None, 1, 1));
    assert_eq!(seen.claim, labels(&b));
    fixture.here().release(&a).await;
    let seen = watching.sees(ChangeKind::Ended(Cause::Released), "a").await;
    assert_eq!((seen.token, seen.holders), (Some(a.token()), 0));
    assert_eq!(seen.claim, labels(&a.claim));
    let b = fixture.here().take(&b).await;
    let seen = watching.sees(ChangeKind::Granted, "b").await;
    assert_eq!((seen.token, seen.holders, seen.waiters), (Some(b.token()), 1, 0));
    assert_eq!(seen.claim, labels(&b.claim));
}

// G36b
pub async fn a_watch_shows_every_kind_of_end(fixture: &Fixture) {
    let (mut watching, _) = watch(fixture).await;
    let a = fixture.here().hold(labelled("a")).await;
    watching.sees(ChangeKind::Granted, "a").await;
    let b = fixture.here().queue(labelled("b")).await;
    watching.sees(ChangeKind::Queued, "b").await;
    fixture.here().undo(&b).await;
    let seen = watching.sees(ChangeKind::Ended(Cause::Cancelled), "b").await;
    assert_eq!((seen.waiters, seen.claim), (0, labels(&b)));
    fixture.here().force(a.token()).await;
    let seen = watching.sees(ChangeKind::Ended(Cause::Forced), "a").await;
    assert_eq!((seen.token, seen.claim), (Some(a.token()), labels(&a.claim)));
    let c = fixture.here().hold(labelled("c")).await;
    watching.sees(ChangeKind::Granted, "c").await;
    fixture.here().undo(&c.claim).await;
    let seen = watching.sees(ChangeKind::Ended(Cause::Undone), "c").await;
    assert_eq!(seen.claim, labels(&c.claim));
    let d = fixture.here().hold(labelled("d").living(fixture.short())).await;
    watching.sees(ChangeKind::Granted, "d").await;
    let seen = watching.sees(ChangeKind::Ended(Cause::Expired), "d").await;
    assert_eq!((seen.holders, seen.claim), (0, labels(&d.claim)));
}

pub async fn a_watch_shows_a_hand_over_as_end_and_grant(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    let (mut watching, _) = watch(fixture).await;
    fixture.here().release_to(&a, &b).await;
    watching.sees(ChangeKind::Ended(Cause::Released), "a").await;
    let seen = watching.sees(ChangeKind::Granted, "b").await;
    assert_eq!((seen.holders, seen.waiters), (1, 0));
}

// G211
pub async fn a_watch_shows_the_release_of_a_kept_lock_and_then_its_end(fixture: &Fixture) {
    let (mut watching, _) = watch(fixture).await;
    let a = fixture.here().hold(claim("a")).await;
    watching.sees(ChangeKind::Granted, "a").await;
    let target = ReleaseTarget::Keeping(&a.lease, fixture.short());
    fixture.here().end(target, None).await;
    let seen = watching.sees(ChangeKind::Ended(Cause::Released), "a").await;
    assert_eq!((seen.token, seen.holders), (Some(a.token()), 1));
    let seen = watching.sees(ChangeKind::Ended(Cause::Expired), "a").await;
    assert_eq!((seen.token, seen.holders), (Some(a.token()), 0));
}

// G211
pub async fn a_watch_shows_the_forced_end_of_a_kept_lock(fixture: &Fixture) {
    let (mut watching, _) = watch(fixture).await;
    let a = fixture.here().hold(claim("a")).await;
    watching.sees(ChangeKind::Granted, "a").await;
    let target = ReleaseTarget::Keeping(&a.lease, LONG);
    fixture.here().end(target, None).await;
    watching.sees(ChangeKind::Ended(Cause::Released), "a").await;
    let replica = match fixture.pace.tells_changes {
        true => fixture.there(),
        false => fixture.here(),
    };
    assert_eq!(replica.force(a.token()).await, Released::Ended(Cause::Forced));
    let seen = watching.sees(ChangeKind::Ended(Cause::Forced), "a").await;
    assert_eq!((seen.token, seen.holders), (Some(a.token()), 0));
}

pub async fn a_watch_sees_its_own_lock_alone(fixture: &Fixture) {
    let (mut watching, _) = watch(fixture).await;
    fixture.here().on("other").hold(claim("x")).await;
    fixture.elsewhere().hold(claim("y")).await;
    fixture.here().hold(claim("a")).await;
    let seen = watching.sees(ChangeKind::Granted, "a").await;
    assert_eq!(seen.holders, 1);
}
