//! What transactions write, and what their answers tell.

use super::calls::{Call, Stage, next_in_line};
use super::conditions::holds;
use super::store::{Request, Step};
use super::{Flaw, State, World};

/// What a step does whose conditions were met before its request was written.
pub fn act(world: &World, before: &State, state: &mut State, at: usize, step: Step) {
    let (claim, replica, id) = (state.calls[at].claim, state.calls[at].replica, at as u8);
    let wrong = judge(world, before, at, step);
    state.wrong = state.wrong.or(wrong);
    let store = &mut state.store;
    match step {
        Step::Enter { suffix, lease, .. } => {
            store.hold(suffix, claim, id, lease);
            store.put_request(world, claim, Some(Request::Holds { suffix }));
        }
        Step::Queue { suffix } => {
            store.queue(suffix, claim, id, replica);
            store.put_request(world, claim, Some(Request::Waits { suffix, replica }));
        }
        Step::AdoptWaiter { suffix, .. } => {
            store.revision += 1;
            let revision = store.revision;
            for waiter in store.waiters.iter_mut().filter(|waiter| waiter.suffix == suffix) {
                (waiter.call, waiter.replica, waiter.modified) = (id, replica, revision);
            }
            if world.flaw != Flaw::AdoptionLeavesTheRequest {
                store.put_request(world, claim, Some(Request::Waits { suffix, replica }));
            }
        }
        Step::AdoptHolder { suffix, .. } => {
            store.revision += 1;
            let revision = store.revision;
            for holder in store.holders.iter_mut().filter(|holder| holder.suffix == suffix) {
                (holder.adopted, holder.modified) = (true, revision);
            }
        }
        Step::Promote { suffix, lease, .. } => {
            let claim = store.waiter(suffix).map_or(claim, |waiter| waiter.claim);
            store.waiters.retain(|waiter| waiter.suffix != suffix);
            store.hold(suffix, claim, id, lease);
            if world.flaw != Flaw::PromotionLeavesTheRequest {
                store.put_request(world, claim, Some(Request::Holds { suffix }));
            }
        }
        Step::UndoWaiter { suffix, .. } => {
            store.waiters.retain(|waiter| waiter.suffix != suffix);
            if world.flaw != Flaw::UndoLeavesTheRequest {
                store.put_request(world, claim, None);
            }
        }
        Step::UndoHolder { suffix, .. } => {
            store.holders.retain(|holder| holder.suffix != suffix);
            store.put_request(world, claim, None);
        }
        Step::Release { suffix, .. } => {
            store.holders.retain(|holder| holder.suffix != suffix);
            store.put_request(world, claim, world.remembers.then_some(Request::Ended));
            state.ended[usize::from(claim)] = true;
        }
        Step::Mark => store.marks.push((id, replica)),
        Step::Revoke { lease } => store.end_lease(world, lease),
        Step::HandOver {
            suffix,
            next,
            next_suffix,
            lease,
            ..
        } => {
            store.holders.retain(|holder| holder.suffix != suffix);
            store.put_request(world, claim, world.remembers.then_some(Request::Ended));
            state.ended[usize::from(claim)] = true;
            let claim = state.calls[usize::from(next)].claim;
            let suffix = next_suffix;
            store.waiters.retain(|waiter| waiter.suffix != suffix);
            store.hold(suffix, claim, next, lease);
            store.put_request(world, claim, Some(Request::Holds { suffix }));
        }
    }
}

/// What goes wrong with the effect of a step.
fn judge(world: &World, state: &State, at: usize, step: Step) -> Option<&'static str> {
    let store = &state.store;
    let leased = |lease| store.holders.iter().any(|holder| holder.lease == lease);
    let mut wrong = None;
    if step.comes() && state.calls[at].stage == Stage::Left {
        wrong = Some("a call that had left took effect");
    }
    if step.lease().is_some_and(leased) {
        wrong = Some("two claims on one lease");
    }
    if step.makes().is_some_and(|suffix| !store.is_empty_at(suffix)) {
        wrong = Some("a claim was overwritten");
    }
    if let Step::Enter { .. } = step {
        let tail = super::store::Waiter {
            suffix: super::store::KeySuffix {
                replica: 0,
                session: 0,
                number: 0,
            },
            claim: state.calls[at].claim,
            call: at as u8,
            replica: 0,
            created: u8::MAX,
            modified: 0,
        };
        if !next_in_line(world, state, &tail) {
            wrong = Some("a newcomer did not fit behind all that were there");
        }
    }
    let (gone, granted) = match step {
        Step::Promote { suffix, .. } => (None, store.waiter(suffix)),
        Step::HandOver {
            suffix, next_suffix, ..
        } => (Some(suffix), store.waiter(next_suffix)),
        _ => (None, None),
    };
    if let Some(granted) = granted {
        let mut without = state.clone();
        without.store.holders.retain(|holder| Some(holder.suffix) != gone);
        if !next_in_line(world, &without, granted) {
            wrong = Some("a waiter was overtaken");
        }
    }
    if let Step::UndoWaiter { suffix, .. } = step
        && let Some(waiter) = store.waiter(suffix)
        && waiter.call != at as u8
        && state.calls[usize::from(waiter.call)].stage == Stage::Waiting
    {
        wrong = Some("a place was taken from a call that waits");
    }
    wrong
}

/// A step is judged, and its answer comes back.
pub fn arrive(world: &World, state: &State, at: usize, step: Step, session: u8) -> State {
    let mut after = state.clone();
    let met = holds(world, state, at, step, session);
    if met {
        act(world, state, &mut after, at, step);
    } else if let Some(lease) = step.lease() {
        keep(&mut after, at, lease);
    }
    answered(world, state, &mut after, at, step, met);
    after
}

fn keep(state: &mut State, at: usize, lease: u8) {
    let pool = &mut state.pools[usize::from(state.calls[at].replica)];
    if pool.is_empty() && state.store.is_alive(lease) {
        pool.push(lease);
    }
}

pub fn answered(world: &World, before: &State, after: &mut State, at: usize, step: Step, met: bool) {
    let there = step.suffix().and_then(|suffix| before.store.holder(suffix)).copied();
    let released = there.filter(|holder| holder.claim == after.calls[at].claim);
    let queued = step
        .suffix()
        .and_then(|suffix| after.store.waiter(suffix))
        .map(|waiter| waiter.modified);
    let call = &mut after.calls[at];
    call.queued = match step {
        Step::Queue { .. } | Step::AdoptWaiter { .. } if met => queued,
        // Not met, it looks up its place in the store.
        Step::Enter { .. } | Step::Promote { .. } if !met => call.queued,
        _ => None,
    };
    if met && step.comes() {
        call.at = step.suffix();
    }
    call.stage = match step {
        Step::Enter { lease, .. } | Step::Promote { lease, .. } if met => Stage::Granted { lease },
        Step::AdoptHolder { .. } if met => {
            let lease = there.map_or(0, |holder| holder.lease);
            call.stale |= !before.store.leases[usize::from(lease)].is_counted_on();
            Stage::Granted { lease }
        }
        Step::Queue { .. } | Step::AdoptWaiter { .. } if met => Stage::Waiting,
        Step::Enter { .. } | Step::Queue { .. } | Step::AdoptWaiter { .. } | Step::AdoptHolder { .. } => Stage::Wants,
        Step::Promote { .. } => Stage::Waiting,
        Step::Release { .. } | Step::HandOver { .. } if met => Stage::Done,
        // Whatever became of it: it looks again.
        Step::Release { .. } | Step::HandOver { .. } => match released {
            Some(holder) => Stage::Releasing { lease: holder.lease },
            None => Stage::Done,
        },
        Step::UndoWaiter { .. } | Step::UndoHolder { .. } if met => Stage::Left,
        // The mark first, and then the claim.
        Step::Mark if met && world.flaw == Flaw::MarksLast => Stage::Left,
        _ => Stage::ReleaseTarget,
    };
    if !met {
        return;
    }
    match step {
        Step::Release { .. } | Step::HandOver { .. } => {
            if let Some(holder) = released.filter(|holder| !holder.adopted) {
                keep(after, at, holder.lease);
            }
        }
        Step::UndoHolder { .. } => {
            let lost = |lease| before.calls[at].lost.contains(&lease) && world.flaw != Flaw::PoolsTakenBack;
            if let Some(holder) = released.filter(|holder| !holder.adopted && !lost(holder.lease)) {
                keep(after, at, holder.lease);
            }
        }
        _ => {}
    }
    if let Step::HandOver {
        next,
        lease,
        next_suffix,
        ..
    } = step
    {
        let next = &mut after.calls[usize::from(next)];
        next.queued = None;
        if next.stage == Stage::Waiting {
            (next.stage, next.at) = (Stage::Granted { lease }, Some(next_suffix));
        }
    }
}

/// The answer is not waited for any more: the step may have arrived, or still come.
pub fn give_up(world: &World, state: &State, at: usize, step: Step, session: u8) -> Option<State> {
    let mut after = state.clone();
    after.losses = state.losses.checked_sub(1)?;
    let call: &mut Call = &mut after.calls[at];
    call.late.push((step, session));
    call.late.sort_unstable();
    let held = step.suffix().and_then(|suffix| state.store.holder(suffix));
    let held = held
        .filter(|holder| holder.claim == call.claim)
        .map(|holder| holder.lease);
    if step.comes() {
        call.at = step.suffix();
    }
    call.stage = match step {
        Step::Release { .. } | Step::HandOver { .. } => match held {
            Some(lease) => Stage::Releasing { lease },
            None => Stage::Done,
        },
        _ => Stage::ReleaseTarget,
    };
    if let Some(lease) = step.lease() {
        // That of a hand-over is the next one's, who does not hear of it.
        if step.comes() {
            call.lost.push(lease);
        }
        match world.flaw {
            // The revocation may come later than the step itself.
            Flaw::RevokesAfterUnknown => call.late.push((Step::Revoke { lease }, session)),
            Flaw::PoolsAfterUnknown => after.pools[usize::from(state.calls[at].replica)].push(lease),
            _ => {}
        }
    }
    Some(after)
}
