//! Which steps share a multi, and how a refused one is divided.

use std::collections::{HashMap, HashSet, VecDeque};

use tokio::time::Instant;

use super::{Class, OrderKey, Pending, STEPS};
use crate::backend::zookeeper::client::Failure;
use crate::backend::zookeeper::client::wire::Code;
use crate::name::LockName;

/// The steps of the next batch, if any can go, with their locks. Of `busy` locks, steps of that class stay.
pub fn take_batch(
    waiting: &mut VecDeque<Pending>,
    busy: &HashSet<OrderKey>,
    (max_request, now): (usize, Instant),
) -> Option<(HashSet<OrderKey>, Vec<Pending>)> {
    let rides = |pending: &Pending| pending.step.rides_until.is_some_and(|until| until > now);
    let mut batch: Vec<Pending> = Vec::new();
    let (mut locks, mut apart) = (HashSet::new(), HashMap::new());
    // Locks of which an earlier step of a class stays behind.
    let mut blocked: HashSet<OrderKey> = HashSet::new();
    let (mut kept, mut size, mut is_full) = (VecDeque::new(), 0, false);
    while let Some(pending) = waiting.pop_front() {
        if pending.answer.is_closed() {
            continue;
        }
        let (class, is_riding) = (pending.step.class, rides(&pending));
        let key = (pending.step.lock.clone(), class);
        let goes_with = |other: &Class| class == Class::Append && *other == Class::Append;
        let is_apart = || !is_riding && apart.get(&key.0).is_some_and(|other| !goes_with(other));
        if busy.contains(&key) || blocked.contains(&key) || is_apart() {
            blocked.insert(key);
            kept.push_back(pending);
            continue;
        }
        let bytes = pending.step.size();
        if !batch.is_empty() && (batch.len() == STEPS || size + bytes > max_request) {
            waiting.push_front(pending);
            is_full = true;
            break;
        }
        if !is_riding {
            apart.insert(key.0.clone(), class);
        }
        locks.insert(key);
        size += bytes;
        batch.push(pending);
    }
    if !is_full && batch.iter().all(rides) {
        // Nothing goes that they could go with.
        *waiting = batch.into_iter().chain(kept).collect();
        return None;
    }
    kept.append(waiting);
    *waiting = kept;
    Some((locks, batch))
}

/// Divides steps into two halves, each with all steps of its locks, unless all steps are of one lock.
pub fn halves(steps: Vec<Pending>) -> (Vec<Pending>, Vec<Pending>) {
    let half = steps.len().div_ceil(2);
    let mut counts: HashMap<&LockName, usize> = HashMap::new();
    for pending in &steps {
        *counts.entry(&pending.step.lock).or_default() += 1;
    }
    let last = steps.last().map(|pending| &pending.step.lock);
    let (mut locks, mut taken) = (HashSet::new(), 0);
    for lock in steps.iter().map(|pending| &pending.step.lock) {
        if taken < half && Some(lock) != last && locks.insert(lock.clone()) {
            taken += counts[lock];
        }
    }
    if locks.is_empty() {
        let mut first = steps;
        let second = first.split_off(half);
        return (first, second);
    }
    steps
        .into_iter()
        .partition(|pending| locks.contains(&pending.step.lock))
}

pub fn share_a_lock(one: &[Pending], other: &[Pending]) -> bool {
    let mut locks = one.iter().map(|pending| &pending.step.lock);
    locks.any(|lock| other.iter().any(|pending| pending.step.lock == *lock))
}

/// Answers the step of an operation that could not be applied, and returns the others.
pub fn answer_refused(batch: Vec<Pending>, mut index: usize, code: Code) -> Vec<Pending> {
    let mut rest = Vec::new();
    let mut found = false;
    for pending in batch {
        let count = pending.step.ops.len();
        if !found && index < count {
            found = true;
            let Pending { step, answer } = pending;
            drop(step);
            let _ = answer.send(Err(Failure::Refused { index, code }));
            continue;
        }
        index = index.wrapping_sub(if found { 0 } else { count });
        rest.push(pending);
    }
    rest
}
