//! What may happen next.

use super::calls::{
    Stage, decide, deliver, give_back, hand_over, inspect, look, release, revoke, stop_counting, to, undo, undo_unread,
};
use super::conditions::holds;
use super::effects::{act, arrive, give_up};
use super::requests::together;
use super::store::{Lease, Request, Step};
use super::{Flaw, State, World};

/// What happens: to which call, and with which step.
#[derive(Debug, Clone, Copy)]
#[allow(dead_code, reason = "shown where something is wrong")]
pub enum Event {
    Decides(usize),
    LooksAtItsRequest(usize),
    Arrives(usize, Step),
    ArrivesLate(usize, Step),
    IsGivenUp(usize, Step),
    Looks(usize),
    IsCancelled(usize),
    GetsItsAnswer(usize),
    EndsBeforeItsAnswer(usize),
    Releases(usize),
    CountsNoMore(usize),
    SendsItsRelease(usize),
    SendsItsReleaseWithTheNext(usize),
    Undoes(usize),
    UndoesUnread(usize),
    Revokes(usize),
    GoTogether(usize, Step, usize, Step),
    TheSpareTimePasses(u8),
    ATtlPasses(u8),
    LeaseEnds(u8),
    SessionEnds(u8),
    IsForgotten(u8),
    IsSaidToHaveExpired(u8),
}

/// All states that may follow.
pub fn next(world: &World, state: &State) -> Vec<(Event, State)> {
    let mut next = Vec::new();
    for at in 0..state.calls.len() {
        of_call(world, state, at, &mut next);
    }
    next.extend(together(world, state));
    if state.times > 0 {
        let leases = 0..state.store.leases.len();
        next.extend(leases.clone().filter_map(|lease| time(world, state, lease)));
        next.extend(leases.filter_map(|lease| spare_time(state, lease)));
    }
    for replica in 0..2_u8 {
        if state.ends > 0 {
            let mut after = state.clone();
            after.ends -= 1;
            after.store.end_session(replica);
            after.used[usize::from(replica)].clear();
            next.push((Event::SessionEnds(replica), after));
        }
    }
    for claim in 0..state.store.requests.len() as u8 {
        next.extend(forgotten(world, state, claim));
    }
    next
}

fn of_call(world: &World, state: &State, at: usize, next: &mut Vec<(Event, State)>) {
    let call = &state.calls[at];
    let mut then = |what, after: Option<State>| next.extend(after.map(|after| (what, after)));
    match call.stage {
        Stage::Wants => then(Event::Decides(at), decide(world, state, at)),
        Stage::Looks { suffix } => then(Event::LooksAtItsRequest(at), look(world, state, at, suffix)),
        Stage::Sent((step, session)) => {
            then(Event::Arrives(at, step), Some(arrive(world, state, at, step, session)));
            then(Event::IsGivenUp(at, step), give_up(world, state, at, step, session));
        }
        Stage::Waiting => {
            then(Event::Looks(at), inspect(world, state, at));
            then(Event::IsCancelled(at), Some(to(state, at, Stage::ReleaseTarget)));
        }
        Stage::Granted { lease } => {
            then(Event::GetsItsAnswer(at), Some(deliver(world, state, at, lease)));
            let undone = Some(to(state, at, Stage::ReleaseTarget));
            then(Event::EndsBeforeItsAnswer(at), undone);
        }
        Stage::Held { lease } => {
            then(Event::Releases(at), Some(give_back(state, at, lease)));
            then(Event::CountsNoMore(at), Some(stop_counting(state, at)));
        }
        Stage::Releasing { lease } => {
            then(Event::SendsItsRelease(at), Some(release(world, state, at, lease)));
            let with = hand_over(world, state, at, lease);
            then(Event::SendsItsReleaseWithTheNext(at), with);
        }
        Stage::ReleaseTarget => {
            then(Event::Undoes(at), Some(undo(world, state, at)));
            then(Event::UndoesUnread(at), undo_unread(state, at));
        }
        Stage::Left => then(Event::Revokes(at), revoke(world, state, at)),
        Stage::Done => {}
    }
    for (place, (step, session)) in call.late.iter().enumerate() {
        let mut after = state.clone();
        after.calls[at].late.remove(place);
        if holds(world, &after, at, *step, *session) {
            act(world, state, &mut after, at, *step);
            next.push((Event::ArrivesLate(at, *step), after));
        }
    }
}

/// The record of an ended request is deleted: its lease ends, or too many are kept. Each delete compares the record, for
/// it may be that of a newer claim.
fn forgotten(world: &World, state: &State, claim: u8) -> Vec<(Event, State)> {
    let Some(request) = state.store.request(claim) else {
        return Vec::new();
    };
    let held = state.store.holders.iter().any(|holder| holder.claim == claim);
    let over = state.ended[usize::from(claim)];
    let mut next = Vec::new();
    let may_go = match request {
        Request::Ended => true,
        Request::Holds { .. } => !held || world.flaw == Flaw::MemoryEndsFirst,
        Request::Waits { .. } => false,
    };
    if state.forgets > 0 && (may_go || world.flaw == Flaw::ForgetsBlindly && over) {
        let mut after = state.clone();
        after.forgets -= 1;
        after.store.requests[usize::from(claim)] = None;
        next.push((Event::IsForgotten(claim), after));
    }
    if world.flaw == Flaw::NotesExpiryBlindly && over {
        let mut after = state.clone();
        after.store.requests[usize::from(claim)] = Some(Request::Ended);
        next.push((Event::IsSaidToHaveExpired(claim), after));
    }
    next
}

/// Forgets what can have no effect any more, and frees the key suffixes whose claims are over.
pub fn settle(world: &World, state: &mut State) {
    for at in 0..state.calls.len() {
        let late = std::mem::take(&mut state.calls[at].late);
        let store = &state.store;
        let kept = late.into_iter().filter(|(step, session)| {
            let over = step.comes() && (store.is_marked(at as u8) && world.ends == 0);
            let changed = step.judged_by().is_some_and(|modified| {
                let holder = step.suffix().and_then(|suffix| store.holder(suffix));
                let waiter = step.suffix().and_then(|suffix| store.waiter(suffix));
                holder.is_none_or(|holder| holder.modified != modified)
                    && waiter.is_none_or(|waiter| waiter.modified != modified)
            });
            let past = *session != store.sessions[usize::from(state.calls[at].replica)];
            match world.flaw {
                Flaw::Without(_, super::conditions::Condition::Mark) => !past,
                Flaw::Without(..) | Flaw::NoFenceOfOwn => true,
                _ => !(over || changed || past && step.comes()),
            }
        });
        state.calls[at].late = kept.collect();
    }
    for replica in 0..2_u8 {
        let session = state.store.sessions[usize::from(replica)];
        let used = std::mem::take(&mut state.used[usize::from(replica)]);
        let is_used = |number: &u8| {
            let suffix = super::store::KeySuffix {
                replica,
                session,
                number: *number,
            };
            is_in_use(world, state, suffix)
        };
        let kept: Vec<u8> = used.into_iter().filter(is_used).collect();
        state.used[usize::from(replica)] = kept;
    }
    if !matches!(world.flaw, Flaw::ForgetsBlindly | Flaw::NotesExpiryBlindly) {
        state.ended.fill(false);
    }
    for call in &mut state.calls {
        if matches!(call.stage, Stage::Done | Stage::Left) {
            (call.own, call.queued, call.stale, call.uncovered) = (None, None, false, false);
        }
        if call.stage == Stage::Done {
            call.at = None;
        }
    }
}

/// Whether a key suffix may not be given to another claim: its call may still make a claim under it, or one is
/// there. (A replica frees it later, when it knows of that.)
fn is_in_use(world: &World, state: &State, suffix: super::store::KeySuffix) -> bool {
    let may_make = |call: &super::calls::Call| {
        let active = !matches!(call.stage, Stage::Done | Stage::Left);
        call.own == Some(suffix) && (active || !call.late.iter().all(|(step, _)| step.makes().is_none()))
    };
    let there = !state.store.is_empty_at(suffix);
    let counts = match world.flaw {
        Flaw::FreesWhatWasAdopted => false,
        _ => there,
    };
    counts || state.calls.iter().any(may_make)
}

/// The time passes by which a lease that may be used again outlives a TTL.
fn spare_time(state: &State, at: usize) -> Option<(Event, State)> {
    let lease = at as u8;
    let is_pooled = state.pools.iter().any(|pool| pool.contains(&lease));
    (is_pooled && state.store.leases[at] == Lease::Kept).then(|| {
        let mut after = state.clone();
        after.store.leases[at] = Lease::Fresh;
        (Event::TheSpareTimePasses(lease), after)
    })
}

/// A whole TTL passes for a lease, or it ends.
fn time(world: &World, state: &State, at: usize) -> Option<(Event, State)> {
    let lease = at as u8;
    let mut after = state.clone();
    after.times -= 1;
    // Whoever was granted it in time has stopped counting on it when it gets stale.
    let holds = |call: &super::calls::Call| call.stage == Stage::Held { lease } && !call.uncovered;
    let is_counted_on = state.believes.contains(&Some(lease)) && state.calls.iter().any(holds);
    match state.store.leases[at] {
        Lease::Kept | Lease::Fresh if !is_counted_on => {
            after.store.leases[at] = Lease::Stale;
            let handed = state.calls.iter().filter_map(|call| match call.stage {
                Stage::Sent((Step::HandOver { next, lease, .. }, _)) if lease == at as u8 => Some(next),
                _ => None,
            });
            for next in handed {
                after.calls[usize::from(next)].stale = true;
            }
            for call in &mut after.calls {
                let on = match call.stage {
                    Stage::Granted { lease } => Some(lease),
                    Stage::Sent((Step::HandOver { .. }, _)) => None,
                    Stage::Sent((step, _)) => step.lease(),
                    _ => None,
                };
                call.stale |= on == Some(lease);
            }
            Some((Event::ATtlPasses(lease), after))
        }
        Lease::Stale => {
            for holder in &state.store.holders {
                if holder.lease == lease {
                    after.ended[usize::from(holder.claim)] = true;
                }
            }
            after.store.end_lease(world, lease);
            Some((Event::LeaseEnds(lease), after))
        }
        _ => None,
    }
}
