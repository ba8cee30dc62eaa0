//! A change of metadata: it replaces what the holder shows, and nothing else.

use fencepost::backend::{ChangeKind, ReleaseTarget, UpdateOutcome};
use fencepost::claim::Cause;

use super::release::forgeries;
use crate::claims::{Asking, claim, note_of};
use crate::fixture::{Fixture, LONG};
use crate::replica::{busy, held};
use crate::streams::Watching;

// G35
pub async fn an_update_replaces_what_the_holder_shows(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").proven("alice").noting("first")).await;
    let before = fixture.here().holders().await.remove(0);
    assert_eq!(fixture.there().update(&a, "second").await, UpdateOutcome::Updated);
    for replica in [fixture.here(), fixture.there()] {
        let after = replica.holders().await.remove(0);
        assert_eq!(after.metadata, note_of("second"));
        assert!(after.remaining <= before.remaining + fixture.short() / 2, "{after:?}");
        assert_eq!(
            (
                after.token,
                after.claim,
                after.owner,
                after.identity,
                after.holds,
                after.mode
            ),
            (
                before.token,
                before.claim,
                before.owner.clone(),
                before.identity.clone(),
                1,
                before.mode
            )
        );
    }
}

pub async fn an_update_sent_twice_is_one(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").noting("first")).await;
    for replica in [fixture.here(), fixture.there(), fixture.here()] {
        assert_eq!(replica.update(&a, "second").await, UpdateOutcome::Updated);
    }
    assert_eq!(fixture.there().holders().await[0].metadata, note_of("second"));
}

// G35
pub async fn updates_and_renewals_at_several_replicas_keep_each_other(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    for (round, (here, there)) in [
        (fixture.here(), fixture.there()),
        (fixture.there(), fixture.here()),
        (fixture.here(), fixture.here()),
    ]
    .into_iter()
    .enumerate()
    {
        let factor = u32::try_from(round).expect("a small number") + 2;
        let note = format!("round {round}");
        assert_eq!(here.update(&a, &note).await, UpdateOutcome::Updated);
        there.renewed(&a, Some(factor * LONG)).await;
        let holder = here.holders().await.remove(0);
        assert_eq!(holder.metadata, note_of(&note));
        assert_eq!(there.update(&a, "after").await, UpdateOutcome::Updated);
        let holder = here.holders().await.remove(0);
        assert_eq!(holder.metadata, note_of("after"));
        assert!(holder.remaining > (factor - 1) * LONG, "{holder:?}");
    }
    fixture.there().release(&a).await;
    assert!(fixture.here().is_free().await);
}

// G35
pub async fn an_update_gives_no_time(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").living(fixture.short())).await;
    fixture.here().update(&a, "late").await;
    fixture.outlive(fixture.short()).await;
    assert!(fixture.there().is_free().await);
    assert_eq!(
        fixture.here().update(&a, "too late").await,
        UpdateOutcome::Gone(Some(Cause::Expired))
    );
}

pub async fn a_late_update_gives_no_time(fixture: &Fixture) {
    let ttl = 2 * fixture.ample();
    let a = fixture.here().hold(claim("a").living(ttl)).await;
    fixture.sleep(fixture.ample()).await;
    assert_eq!(fixture.here().update(&a, "late").await, UpdateOutcome::Updated);
    for replica in [fixture.here(), fixture.there()] {
        let left = replica.holders().await[0].remaining;
        assert!(left < ttl * 3 / 4, "{left:?} of {ttl:?}");
    }
}

pub async fn a_retry_after_a_late_update_is_told_what_is_left(fixture: &Fixture) {
    let ttl = 2 * fixture.ample();
    let a = fixture.here().hold(claim("a").living(ttl)).await;
    fixture.sleep(fixture.ample()).await;
    assert_eq!(fixture.here().update(&a, "late").await, UpdateOutcome::Updated);
    let again = held(fixture.here().acquire(&a.claim.again()).await);
    assert_eq!(again.token, a.token());
    assert!(again.ttl < ttl * 3 / 4, "{:?} of {ttl:?}", again.ttl);
}

// G35
pub async fn an_update_elsewhere_gives_and_takes_no_time(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").living(fixture.ample())).await;
    fixture.sleep(fixture.ample() / 3).await;
    assert_eq!(fixture.there().update(&a, "early").await, UpdateOutcome::Updated);
    fixture.sleep(fixture.ample() / 3).await;
    busy(fixture.here().acquire(&claim("b").trying()).await);
    assert_eq!(fixture.here().tokens().await, [a.token()]);
    fixture.outlive(fixture.ample() / 3).await;
    assert!(fixture.here().is_free().await);
}

// G35
pub async fn an_update_after_the_end_learns_its_cause_and_changes_nobody(fixture: &Fixture) {
    for cause in [Cause::Released, Cause::Forced] {
        let a = fixture.here().hold(claim("a")).await;
        match cause {
            Cause::Forced => fixture.here().force(a.token()).await,
            _ => fixture.here().release(&a).await,
        };
        let b = fixture.here().hold(claim("b").noting("mine")).await;
        for replica in [fixture.here(), fixture.there()] {
            assert_eq!(replica.update(&a, "not mine").await, UpdateOutcome::Gone(Some(cause)));
        }
        assert_eq!(fixture.there().holders().await[0].metadata, note_of("mine"));
        fixture.here().end(ReleaseTarget::Hold(&b.lease), None).await;
    }
}

pub async fn a_lease_with_a_false_part_updates_nothing(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").noting("mine")).await;
    for (part, lease) in forgeries(&a) {
        let answer = fixture.first.update_metadata(&lease, &note_of("not mine"), None).await;
        assert_eq!(answer, Ok(UpdateOutcome::Gone(None)), "{part}");
    }
    assert_eq!(fixture.there().holders().await[0].metadata, note_of("mine"));
}

pub async fn each_hold_of_a_claim_updates_it(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").reentrant()).await;
    let again = fixture.there().hold(claim("a").reentrant()).await;
    assert_eq!(fixture.here().update(&again, "second").await, UpdateOutcome::Updated);
    assert_eq!(fixture.there().holders().await[0].metadata, note_of("second"));
    fixture.here().release(&again).await;
    assert_eq!(
        fixture.there().update(&again, "third").await,
        UpdateOutcome::Gone(Some(Cause::Released))
    );
    assert_eq!(fixture.there().update(&a, "fourth").await, UpdateOutcome::Updated);
    assert_eq!(fixture.here().holders().await[0].metadata, note_of("fourth"));
}

pub async fn an_update_of_one_of_several_holders_leaves_the_others(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").shared().noting("a")).await;
    fixture.here().hold(claim("b").shared().noting("b")).await;
    fixture.there().update(&a, "new").await;
    let shown: Vec<_> = fixture
        .here()
        .holders()
        .await
        .into_iter()
        .map(|one| one.metadata)
        .collect();
    assert_eq!(shown, [note_of("new"), note_of("b")]);
}

pub async fn a_watch_shows_an_update_and_no_renewal(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").noting("first")).await;
    let name = fixture.here().name().clone();
    let replica = match fixture.pace.tells_changes {
        true => &fixture.second,
        false => &fixture.first,
    };
    let (mut watching, state) = Watching::begin(replica.watch(&name)).await;
    assert_eq!(state.holders[0].metadata, note_of("first"));
    fixture.here().renewed(&a, Some(2 * LONG)).await;
    // Another change shows that the renewal was none.
    let b = fixture.here().queue(claim("b")).await;
    watching.sees(ChangeKind::Queued, "b").await;
    fixture.here().undo(&b).await;
    watching.sees(ChangeKind::Ended(Cause::Cancelled), "b").await;
    fixture.here().update(&a, "second").await;
    let seen = watching.sees(ChangeKind::Updated, "a").await;
    assert_eq!((seen.token, seen.holders, seen.waiters), (Some(a.token()), 1, 0));
    assert_eq!(seen.claim.metadata, note_of("second"));
    fixture.there().renewed(&a, Some(3 * LONG)).await;
    fixture.there().update(&a, "third").await;
    if fixture.pace.tells_changes {
        let seen = watching.sees(ChangeKind::Updated, "a").await;
        assert_eq!(seen.claim.metadata, note_of("third"));
    } else {
        let third = note_of("third");
        watching.comes_to(|queue| queue.holders[0].metadata == third).await;
    }
    assert_eq!(fixture.there().holders().await[0].metadata, note_of("third"));
    fixture.here().release(&a).await;
    let seen = watching.sees(ChangeKind::Ended(Cause::Released), "a").await;
    assert_eq!(seen.claim.metadata, note_of("third"));
}
