//! The steps that go together in one commit, and their answers.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use tokio::time::Instant;

use super::{Class, OrderKey, Pending, Step, StepDone};
use crate::backend::tree::fenced_connection::FencedConnection;
use crate::backend::tree::store::{CommitBounds, Committed, Done, Failure, Op, Outcome};
use crate::name::LockName;

/// What a batch has of one lock.
#[derive(Debug, Default)]
struct Taken {
    appends: bool,
    others: bool,
    grants: bool,
}

/// The steps of a batch.
#[derive(Debug)]
struct Batch {
    bounds: CommitBounds,
    max_request: usize,
    steps: Vec<Pending>,
    locks: HashMap<LockName, Taken>,
    /// The nodes that its steps write, if they are independent: a store may refuse to write one twice.
    written: HashSet<String>,
    size: usize,
}

impl Batch {
    /// Whether a step may go with those that it has.
    fn admits(&self, step: &Step) -> bool {
        let Some(taken) = self.locks.get(&step.lock) else {
            return !self.writes(step);
        };
        match (self.bounds.independent, step.class) {
            (false, Class::Append) => !taken.others,
            (false, Class::Alone | Class::Reader) => false,
            // Its grants share its number.
            (true, _) => !(taken.grants && step.grant.is_some() || self.writes(step)),
        }
    }

    /// Whether it writes a node that the step writes.
    fn writes(&self, step: &Step) -> bool {
        step.ops
            .iter()
            .filter_map(Op::written)
            .any(|path| self.written.contains(path))
    }

    fn has_room(&self, steps: usize, step: &Step) -> bool {
        let is_large = |step: &Step| step.ops.len() > self.bounds.step_ops;
        self.steps.is_empty()
            || self.steps.len() + steps <= self.bounds.steps
                && self.size + step.size() <= self.max_request
                && !is_large(step)
                && !is_large(&self.steps[0].step)
    }

    fn push(&mut self, pending: Pending) {
        let step = &pending.step;
        let taken = self.locks.entry(step.lock.clone()).or_default();
        match step.class {
            Class::Append => taken.appends = true,
            Class::Alone => taken.others = true,
            Class::Reader => {}
        }
        taken.grants |= step.grant.is_some();
        if self.bounds.independent {
            let written = step.ops.iter().filter_map(Op::written);
            self.written.extend(written.map(str::to_owned));
        }
        self.size += step.size();
        self.steps.push(pending);
    }

    fn into_parts(self) -> Option<(HashSet<OrderKey>, Vec<Pending>)> {
        let keys = self.locks.into_iter().flat_map(|(lock, taken)| {
            let appends = taken.appends.then(|| (lock.clone(), Class::Append));
            appends.into_iter().chain(taken.others.then_some((lock, Class::Alone)))
        });
        (!self.steps.is_empty()).then(|| (keys.collect(), self.steps))
    }
}

/// Takes the steps of the next batch, with their locks, if any can go. Of `busy` locks, steps of that class stay.
pub fn take_batch(
    waiting: &mut VecDeque<Pending>,
    busy: &HashSet<OrderKey>,
    bounds: CommitBounds,
    max_request: usize,
) -> Option<(HashSet<OrderKey>, Vec<Pending>)> {
    let mut batch = Batch {
        bounds,
        max_request,
        steps: Vec::new(),
        locks: HashMap::new(),
        written: HashSet::new(),
        size: 0,
    };
    let now = Instant::now();
    // Locks of which an earlier step of a class stays behind.
    let mut blocked: HashSet<OrderKey> = HashSet::new();
    // How many appends of a lock wait for a step that they go with.
    let mut patient: HashMap<LockName, usize> = HashMap::new();
    let mut kept: VecDeque<Pending> = VecDeque::new();
    while let Some(pending) = waiting.pop_front() {
        if pending.answer.is_closed() {
            continue;
        }
        let lock = &pending.step.lock;
        let class = pending.step.class;
        let is_in = |set: &HashSet<OrderKey>, class| set.contains(&(lock.clone(), class));
        let stays = is_in(busy, class)
            || is_in(&blocked, class)
            || is_in(&blocked, Class::Append)
            // Commits that are under way have no order.
            || bounds.independent && is_in(busy, Class::Append)
            || !batch.admits(&pending.step);
        if stays {
            blocked.insert((lock.clone(), class));
            kept.push_back(pending);
            continue;
        }
        if pending.until.is_some_and(|until| until > now) && !batch.locks.contains_key(lock) {
            *patient.entry(lock.clone()).or_default() += 1;
            kept.push_back(pending);
            continue;
        }
        let with = patient.get(lock).copied().unwrap_or(0);
        if !batch.has_room(1 + with, &pending.step) {
            waiting.push_front(pending);
            break;
        }
        if with > 0 {
            patient.remove(lock);
            let (go, stay): (VecDeque<_>, _) = kept
                .into_iter()
                .partition(|other| other.step.lock == *lock && other.until.is_some());
            kept = stay;
            let mut are_all_in = true;
            for append in go {
                are_all_in &= batch.admits(&append.step) && batch.has_room(1, &append.step);
                match are_all_in {
                    true => batch.push(append),
                    false => kept.push_back(append),
                }
            }
            // Two of these may write one node, such as the record of one request, and each stays behind the one before.
            if !are_all_in || !batch.admits(&pending.step) {
                blocked.extend([Class::Append, class].map(|class| (pending.step.lock.clone(), class)));
                kept.push_back(pending);
                continue;
            }
        }
        batch.push(pending);
    }
    kept.append(waiting);
    *waiting = kept;
    batch.into_parts()
}

/// Answers each step of a batch, and returns those that were not judged.
pub fn deliver(
    batch: Vec<Pending>,
    committed: Committed,
    connection: &Arc<FencedConnection>,
    sent: Instant,
) -> Vec<Pending> {
    let written = committed.guards.iter().find_map(|done| match done {
        Done::Set(stat) => Some(stat.modified),
        _ => None,
    });
    let granted = committed.number.or(written);
    let mut rest = Vec::new();
    let mut outcomes = committed.steps.into_iter();
    for pending in batch {
        let answered = match outcomes.next() {
            Some(Outcome::Done(done)) => Ok(StepDone {
                done,
                connection: Arc::clone(connection),
                sent,
                granted,
            }),
            Some(Outcome::Refused { index, reason }) => Err(Failure::Refused { index, reason }),
            Some(Outcome::NotJudged) => {
                rest.push(pending);
                continue;
            }
            None => Err(Failure::malformed()),
        };
        let Pending { step, answer, .. } = pending;
        drop(step);
        let _ = answer.send(answered);
    }
    rest
}
