//! What was sent: transactions that are judged, take effect and are answered, or are given up.

use super::deciding::next_in_line;
use super::steps::Stage;
use super::store::{Lease, Step};
use super::{Flaw, State, World};

/// Whether a transaction's conditions are met.
pub fn holds(world: &World, state: &State, at: usize, step: Step, session: u8) -> bool {
    let (store, call, id) = (&state.store, &state.calls[at], at as u8);
    let lives = session == store.sessions[usize::from(call.replica)] || world.flaw == Flaw::NoSession;
    if step.comes() && (!lives || store.is_marked(id)) || step.lease().is_some_and(|lease| !store.is_alive(lease)) {
        return false;
    }
    let holder = |modified| {
        store
            .holder(call.claim)
            .is_some_and(|holder| holder.modified == modified)
    };
    let waiter = |modified| {
        store
            .waiter(call.claim)
            .is_some_and(|waiter| waiter.modified == modified)
    };
    let absent = store.holder(call.claim).is_none() && store.waiter(call.claim).is_none();
    let whole = world.is_exclusive();
    let none_since = |seen| match whole {
        _ if world.flaw == Flaw::NoGuard => true,
        true => store.holders.is_empty(),
        false => store.holders.iter().all(|holder| holder.created <= seen),
    };
    match step {
        Step::Acquire { seen, .. } => {
            let queue =
                store.waiters.iter().all(|waiter| !whole && waiter.created <= seen) || world.flaw == Flaw::NoGuard;
            absent && none_since(seen) && queue
        }
        Step::Queue | Step::MarkAbsent => absent,
        Step::Promote { modified, seen, .. } => waiter(modified) && none_since(seen),
        Step::RemoveWaiter { .. } if world.flaw == Flaw::RemovesUnseen => store.waiter(call.claim).is_some(),
        Step::AdoptWaiter { modified } | Step::RemoveWaiter { modified } | Step::MarkWaiter { modified } => {
            waiter(modified)
        }
        Step::AdoptHolder { modified }
        | Step::RemoveHolder { modified }
        | Step::MarkHolder { modified }
        | Step::Release { modified } => holder(modified),
        Step::Revoke { .. } => true,
        Step::HandOver {
            modified,
            next,
            next_modified,
            ..
        } => {
            let claim = state.calls[usize::from(next)].claim;
            let there = store
                .waiter(claim)
                .is_some_and(|waiter| waiter.modified == next_modified);
            // Nobody else can be beside an exclusive holder, so only the others ask for it.
            let alone = world.is_exclusive() || store.holders.len() == 1;
            holder(modified) && there && alone && lives && !store.is_marked(next)
        }
    }
}

/// What a transaction does whose conditions are met.
pub fn act(world: &World, state: &mut State, at: usize, step: Step) {
    let (claim, replica, id) = (state.calls[at].claim, state.calls[at].replica, at as u8);
    if step.comes() && state.calls[at].stage == Stage::Left {
        state.wrong = Some("a call that had left took effect");
    }
    let store = &mut state.store;
    if step
        .lease()
        .is_some_and(|lease| store.holders.iter().any(|holder| holder.lease == lease))
    {
        state.wrong = Some("two claims on one lease");
    }
    let (gone, granted) = match step {
        Step::Promote { .. } => (None, state.store.waiter(claim)),
        Step::HandOver { next, .. } => (Some(claim), state.store.waiter(state.calls[usize::from(next)].claim)),
        _ => (None, None),
    };
    if let Some(granted) = granted {
        let mut without = state.clone();
        without.store.holders.retain(|holder| Some(holder.claim) != gone);
        if !next_in_line(world, &without, granted) {
            state.wrong = Some("a waiter was overtaken");
        }
    }
    if let Step::RemoveWaiter { .. } = step
        && let Some(waiter) = state.store.waiter(claim)
        && waiter.call != id
        && state.calls[usize::from(waiter.call)].stage == Stage::Waiting
    {
        state.wrong = Some("a place was taken from a call that waits");
    }
    let store = &mut state.store;
    match step {
        Step::Acquire { lease, .. } => store.hold(claim, id, lease),
        Step::Queue => store.queue(claim, id, replica),
        Step::AdoptWaiter { .. } => {
            store.revision += 1;
            let revision = store.revision;
            for waiter in store.waiters.iter_mut().filter(|waiter| waiter.claim == claim) {
                (waiter.call, waiter.replica, waiter.modified) = (id, replica, revision);
            }
        }
        Step::AdoptHolder { .. } => {
            store.revision += 1;
            let revision = store.revision;
            for holder in store.holders.iter_mut().filter(|holder| holder.claim == claim) {
                (holder.adopted, holder.modified) = (true, revision);
            }
        }
        Step::Promote { lease, .. } => {
            store.waiters.retain(|waiter| waiter.claim != claim);
            store.hold(claim, id, lease);
        }
        Step::RemoveWaiter { .. } => store.waiters.retain(|waiter| waiter.claim != claim),
        Step::RemoveHolder { .. } | Step::Release { .. } => store.holders.retain(|holder| holder.claim != claim),
        Step::MarkWaiter { .. } | Step::MarkHolder { .. } | Step::MarkAbsent => store.marks.push((id, replica)),
        Step::Revoke { lease } => store.end_lease(lease),
        Step::HandOver { next, lease, .. } => {
            store.holders.retain(|holder| holder.claim != claim);
            let claim = state.calls[usize::from(next)].claim;
            store.waiters.retain(|waiter| waiter.claim != claim);
            store.hold(claim, next, lease);
        }
    }
}

/// A transaction is judged, and its answer comes back.
pub fn arrive(world: &World, state: &State, at: usize, step: Step, session: u8) -> State {
    let mut after = state.clone();
    let met = holds(world, state, at, step, session);
    if met {
        act(world, &mut after, at, step);
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
    let claim = after.calls[at].claim;
    let released = before.store.holder(claim).copied();
    let held = match step {
        Step::Release { .. } | Step::HandOver { .. } => released.map_or(0, |holder| holder.lease),
        _ => 0,
    };
    after.calls[at].queued = match step {
        Step::Queue | Step::AdoptWaiter { .. } if met => after.store.waiter(claim).map(|waiter| waiter.modified),
        // Not met, it looks up its place in the store.
        Step::Acquire { .. } | Step::Promote { .. } if !met => after.calls[at].queued,
        _ => None,
    };
    after.calls[at].stage = match step {
        Step::Acquire { lease, .. } | Step::Promote { lease, .. } if met => Stage::Granted { lease },
        Step::AdoptHolder { .. } if met => {
            let lease = released.map_or(0, |holder| holder.lease);
            after.calls[at].stale |= after.store.leases[usize::from(lease)] != Lease::Fresh;
            Stage::Granted { lease }
        }
        Step::Queue | Step::AdoptWaiter { .. } if met => Stage::Waiting,
        Step::Acquire { .. } | Step::Queue | Step::AdoptWaiter { .. } | Step::AdoptHolder { .. } => Stage::Wants,
        Step::Promote { .. } => Stage::Waiting,
        Step::Release { .. } | Step::HandOver { .. } if met => Stage::Done,
        // Whatever became of it: it looks again.
        Step::Release { .. } | Step::HandOver { .. } => match released {
            Some(holder) => Stage::Releasing { lease: holder.lease },
            None => Stage::Done,
        },
        _ if met => Stage::Left,
        _ => Stage::ReleaseTarget,
    };
    if !met {
        return;
    }
    if matches!(step, Step::Release { .. } | Step::HandOver { .. }) && released.is_some_and(|holder| !holder.adopted) {
        keep(after, at, held);
    }
    match step {
        Step::RemoveHolder { .. } => {
            let taken_back = released.filter(|holder| !holder.adopted);
            let lost = |lease| before.calls[at].lost.contains(&lease) && world.flaw != Flaw::PoolsTakenBack;
            if let Some(holder) = taken_back.filter(|holder| !lost(holder.lease)) {
                keep(after, at, holder.lease);
            }
        }
        Step::MarkWaiter { .. } | Step::MarkHolder { .. } => after.calls[at].adopted = true,
        _ => {}
    }
    if let Step::HandOver { next, lease, .. } = step {
        let next = &mut after.calls[usize::from(next)];
        next.queued = None;
        if next.stage == Stage::Waiting {
            next.stage = Stage::Granted { lease };
        }
    }
}

/// The answer is not waited for any more: the step may have arrived, or still come.
pub fn give_up(world: &World, state: &State, at: usize, step: Step, session: u8) -> Option<State> {
    let mut after = state.clone();
    after.losses = state.losses.checked_sub(1)?;
    after.calls[at].late.push((step, session));
    after.calls[at].late.sort_unstable();
    let held = |claim| state.store.holder(claim).map(|holder| holder.lease);
    after.calls[at].stage = match step {
        Step::Release { .. } | Step::HandOver { .. } => match held(state.calls[at].claim) {
            Some(lease) => Stage::Releasing { lease },
            None => Stage::Done,
        },
        _ => Stage::ReleaseTarget,
    };
    if let Some(lease) = step.lease() {
        // That of a hand-over is the next one's, who does not hear of it.
        if step.comes() {
            after.calls[at].lost.push(lease);
        }
        match world.flaw {
            // The revocation may come later than the step itself.
            Flaw::RevokesAfterUnknown => after.calls[at].late.push((Step::Revoke { lease }, session)),
            Flaw::PoolsAfterUnknown => after.pools[usize::from(state.calls[at].replica)].push(lease),
            _ => {}
        }
    }
    Some(after)
}
