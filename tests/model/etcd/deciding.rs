//! What the replicas decide, for their calls, by what they read.

use super::steps::Stage;
use super::store::{Lease, Step, Waiter};
use super::{Flaw, State, World};

/// Takes a lease, used or new, and gives it a sign of life.
fn lease(world: &World, state: &mut State, replica: u8) -> Option<u8> {
    while let Some(used) = state.pools[usize::from(replica)].pop() {
        if state.store.is_alive(used) {
            if world.flaw != Flaw::NoSignOfLife {
                state.store.leases[usize::from(used)] = Lease::Fresh;
            }
            return Some(used);
        }
    }
    let new = state.store.leases.iter().position(|lease| *lease == Lease::Unborn)?;
    state.store.leases[new] = Lease::Fresh;
    u8::try_from(new).ok()
}

pub fn decide(world: &World, state: &State, at: usize) -> Option<State> {
    let (store, call, id) = (&state.store, &state.calls[at], at as u8);
    if store.is_marked(id) || state.given_back[usize::from(call.claim)] {
        return Some(to(state, at, Stage::Done));
    }
    if let Some(waiter) = store.waiter(call.claim) {
        return match next_in_line(world, state, waiter) {
            true => promote(world, state, at, waiter.modified),
            false => Some(sent(
                state.clone(),
                at,
                Step::AdoptWaiter {
                    modified: waiter.modified,
                },
            )),
        };
    }
    if let Some(holder) = store.holder(call.claim) {
        let mut after = state.clone();
        after.calls[at].stale = store.leases[usize::from(holder.lease)] != Lease::Fresh;
        return Some(match holder.call == id || holder.adopted {
            true => to(&after, at, Stage::Granted { lease: holder.lease }),
            false => sent(
                after,
                at,
                Step::AdoptHolder {
                    modified: holder.modified,
                },
            ),
        });
    }
    let fits = taken(world, state) + world.permits_of(call.claim) <= world.limit && store.waiters.is_empty();
    let mut after = state.clone();
    if !fits {
        return Some(sent(after, at, Step::Queue));
    }
    let lease = lease(world, &mut after, call.replica)?;
    after.calls[at].stale = false;
    let seen = if world.is_exclusive() { 0 } else { store.revision };
    Some(sent(after, at, Step::Acquire { lease, seen }))
}

/// How many permits the holders have.
fn taken(world: &World, state: &State) -> u8 {
    let holders = state.store.holders.iter();
    holders.map(|holder| world.permits_of(holder.claim)).sum()
}

/// Whether a waiter is within the prefix.
pub fn next_in_line(world: &World, state: &State, waiter: &Waiter) -> bool {
    let ahead = state
        .store
        .waiters
        .iter()
        .filter(|other| other.created < waiter.created)
        .map(|other| world.permits_of(other.claim));
    taken(world, state) + ahead.sum::<u8>() + world.permits_of(waiter.claim) <= world.limit
}

fn promote(world: &World, state: &State, at: usize, modified: u8) -> Option<State> {
    let mut after = state.clone();
    let lease = lease(world, &mut after, state.calls[at].replica)?;
    after.calls[at].stale = false;
    let seen = if world.is_exclusive() { 0 } else { state.store.revision };
    Some(sent(after, at, Step::Promote { modified, lease, seen }))
}

pub fn inspect(world: &World, state: &State, at: usize) -> Option<State> {
    let call = &state.calls[at];
    if let Some(waiter) = state.store.waiter(call.claim).filter(|waiter| waiter.call == at as u8) {
        return next_in_line(world, state, waiter).then(|| promote(world, state, at, waiter.modified))?;
    }
    let handed = state.store.holder(call.claim).filter(|holder| holder.call == at as u8);
    let Some(holder) = handed else {
        return Some(to(state, at, Stage::Done));
    };
    let mut after = state.clone();
    after.calls[at].stale = state.store.leases[usize::from(holder.lease)] != Lease::Fresh;
    Some(to(&after, at, Stage::Granted { lease: holder.lease }))
}

pub fn deliver(state: &State, at: usize, lease: u8) -> State {
    let claim = usize::from(state.calls[at].claim);
    if state.calls[at].stale || state.given_back[claim] {
        return to(state, at, Stage::Done);
    }
    let mut after = to(state, at, Stage::Held { lease });
    after.believes[claim] = Some(lease);
    after
}

pub fn give_back(state: &State, at: usize, lease: u8) -> State {
    let claim = usize::from(state.calls[at].claim);
    let mut after = to(state, at, Stage::Releasing { lease });
    after.believes[claim] = None;
    after.given_back[claim] = true;
    after
}

pub fn stop_counting(state: &State, at: usize) -> State {
    let mut after = to(state, at, Stage::Done);
    after.believes[usize::from(state.calls[at].claim)] = None;
    after
}

pub fn release(state: &State, at: usize, lease: u8) -> State {
    match state
        .store
        .holder(state.calls[at].claim)
        .filter(|holder| holder.lease == lease)
    {
        Some(holder) => sent(
            state.clone(),
            at,
            Step::Release {
                modified: holder.modified,
            },
        ),
        None => to(state, at, Stage::Done),
    }
}

/// With the first waiter, where this replica serves it.
pub fn hand_over(world: &World, state: &State, at: usize, held: u8) -> Option<State> {
    let (store, call) = (&state.store, &state.calls[at]);
    let holder = store.holder(call.claim).filter(|holder| holder.lease == held)?;
    let first = store.waiters.first()?;
    let served = &state.calls[usize::from(first.call)];
    if store.holders.len() > 1 || served.replica != call.replica || served.stage != Stage::Waiting {
        return None;
    }
    let mut after = state.clone();
    let lease = lease(world, &mut after, call.replica)?;
    after.calls[usize::from(first.call)].stale = false;
    Some(sent(
        after,
        at,
        Step::HandOver {
            modified: holder.modified,
            next: first.call,
            next_modified: first.modified,
            lease,
        },
    ))
}

pub fn remove(world: &World, state: &State, at: usize) -> State {
    let (store, id) = (&state.store, at as u8);
    let only_absent = world.flaw == Flaw::MarksOnlyAbsent;
    let step = if let Some(waiter) = store.waiter(state.calls[at].claim) {
        match waiter.call == id || world.flaw == Flaw::UndoIgnoresCall {
            true => Step::RemoveWaiter {
                modified: waiter.modified,
            },
            false if only_absent => return to(state, at, Stage::Left),
            false => Step::MarkWaiter {
                modified: waiter.modified,
            },
        }
    } else if let Some(holder) = store.holder(state.calls[at].claim) {
        let own = holder.call == id && !holder.adopted;
        match own || world.flaw == Flaw::UndoIgnoresAdoption {
            true => Step::RemoveHolder {
                modified: holder.modified,
            },
            false if only_absent => return to(state, at, Stage::Left),
            false => Step::MarkHolder {
                modified: holder.modified,
            },
        }
    } else {
        Step::MarkAbsent
    };
    sent(state.clone(), at, step)
}

/// Takes out the waiting claim that its replica knows, whatever is in the store by now.
pub fn leave_unread(state: &State, at: usize) -> Option<State> {
    let modified = state.calls[at].queued?;
    Some(sent(state.clone(), at, Step::RemoveWaiter { modified }))
}

/// Without a mark, where every step of the call was answered: nothing of it can come any more.
pub fn leave_settled(world: &World, state: &State, at: usize) -> Option<State> {
    let settled = !state.calls[at].late.iter().any(|(step, _)| step.comes());
    if !settled && world.flaw != Flaw::NeverMarks {
        return None;
    }
    let left = remove(world, state, at);
    let Stage::Sent((step, _)) = left.calls[at].stage else {
        return None;
    };
    let marks = matches!(
        step,
        Step::MarkWaiter { .. } | Step::MarkHolder { .. } | Step::MarkAbsent
    );
    let mut after = to(state, at, Stage::Left);
    after.calls[at].adopted = step != Step::MarkAbsent;
    marks.then_some(after)
}

/// Once its leave was answered, and where no other call has found its hold, what it had on its way needs no lease.
pub fn revoke(world: &World, state: &State, at: usize) -> Option<State> {
    if state.calls[at].adopted && world.flaw != Flaw::RevokesAdopted {
        return None;
    }
    let mut after = state.clone();
    let lease = after.calls[at].lost.pop()?;
    after.store.end_lease(lease);
    Some(after)
}

pub fn to(state: &State, at: usize, stage: Stage) -> State {
    let mut after = state.clone();
    after.calls[at].stage = stage;
    after
}

fn sent(mut state: State, at: usize, step: Step) -> State {
    let session = state.store.sessions[usize::from(state.calls[at].replica)];
    state.calls[at].stage = Stage::Sent((step, session));
    state
}
