//! The calls of this server that wait for a lock: who they are, and when they are told to ask for their claims.

use std::time::Duration;

use tokio::time::Instant;

use super::Core;
use super::locks::{Cached, EntryState};
use super::root::LockRecord;
use super::verb::{Answer, Pending, Verb};
use crate::backend::Notification;
use crate::name::{ClaimId, LockName};
use crate::queue::{AcquireOutcome, Claim, OwnedReleaseTarget};

/// How long after the end of a lease this server rechecks the lock.
pub const AFTER_END: Duration = Duration::from_millis(1);

/// Keeps account of the calls that wait here.
pub fn note(state: &mut EntryState, verb: &Verb, answer: &Answer) {
    match (verb, answer) {
        (Verb::Acquire(claim) | Verb::Promote(claim), Answer::Acquired(AcquireOutcome::Waiting(_))) => {
            state.waiters.entry((claim.id, claim.call)).or_default().told = false;
        }
        (Verb::Acquire(claim) | Verb::Promote(claim), Answer::Acquired(_)) => {
            state.waiters.remove(&(claim.id, claim.call));
        }
        (Verb::Release(target, next), Answer::Released(outcome)) => {
            if let OwnedReleaseTarget::Call(claim, call) = target {
                state.waiters.remove(&(*claim, *call));
            }
            if let Some(next) = next.as_ref().filter(|_| outcome.next.is_some()) {
                state.waiters.remove(&(next.id, next.call));
            }
        }
        _ => {}
    }
}

/// Tells the waiting calls of a claim to ask for it. Returns whether there is one.
pub fn tell(core: &Core, lock: &LockName, state: &mut EntryState, claim: ClaimId) -> bool {
    let mut is_known = false;
    for (_, waiter) in state.waiters.iter_mut().filter(|((waiting, _), _)| *waiting == claim) {
        (waiter.told, is_known) = (true, true);
    }
    if is_known {
        core.notifications.send(Notification::Next(lock.clone(), claim));
    }
    is_known
}

/// Tells the waiting calls of a claim that is eligible. If there is none, the next step ends the claim.
pub fn tell_next(core: &Core, lock: &LockName, state: &mut EntryState, claim: ClaimId) {
    if !tell(core, lock, state, claim) {
        state.push(Pending::new(Verb::Recheck).0);
    }
}

/// Tells the waiters of this server whose claims are eligible or not theirs any more, by a record that others wrote.
pub fn compare(core: &Core, lock: &LockName, state: &mut EntryState, record: &LockRecord) {
    let eligible = record.queue.notified();
    let waits = |(claim, call): &(ClaimId, _)| {
        let position = record.queue.find(claim).filter(|position| *position >= eligible);
        let waiting = position
            .and_then(|position| record.queue.get(position))
            .and_then(Claim::waiting_for);
        waiting.is_some_and(|hold| hold.call == *call)
    };
    let waiters = state
        .waiters
        .iter()
        .filter(|(call, waiter)| !waiter.told && !waits(call));
    let told: Vec<_> = waiters.map(|((claim, _), _)| *claim).collect();
    for claim in told {
        tell(core, lock, state, claim);
    }
    core.watchers.reached(lock, record.changes);
}

/// Notes when this server must recheck a lock.
pub fn attend(core: &Core, lock: &LockName, state: &mut EntryState, cached: &Cached) {
    let now = Instant::now();
    let eligible = cached.record.waiters().filter(|waiter| waiter.is_eligible);
    let stalled = eligible.map(|waiter| (waiter.call, state.stalled.get(&waiter.call).copied().unwrap_or(now)));
    state.stalled = stalled.collect();
    if state.waiters.is_empty() && !core.watchers.any(lock) {
        return core.locks.leave(lock);
    }
    let ends = cached.record.first_end().map(|ends| {
        let left = ends.saturating_sub(Duration::from_micros(cached.seen.clock.0));
        cached.seen_at + left + AFTER_END
    });
    core.locks.attend(lock, cached, ends);
}
