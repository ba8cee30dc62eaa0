//! Steps that are in no hurry: they go along with the next turn, or by themselves after a moment.
//!
//! On a hot lock each hand-off is a turn, and who has just released comes back to the tail of the queue a
//! little after the next holder's turn has begun. A turn of its own for that would stand in the way of the
//! next hand-off, which nothing waits for but this does.
//!
//! Turns may overtake each other. So those of one lock go with one turn at a time, and keep their order.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::cluster_client::Failure;
use super::batch_packing::{BatchClass, Step};
use super::batches::Answer;

/// How long a step waits for a turn that it can go along with: a few turns' time.
pub const MAX_DELAY: Duration = Duration::from_millis(3);

pub type Answered = Result<Answer, Failure>;

/// Steps that wait for a turn to go along with. There are no more of them than callers.
#[derive(Debug, Default)]
pub struct DeferredSteps {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    /// In the order in which they came.
    steps: BTreeMap<u64, Standing>,
    /// The locks whose steps are with a turn, or with the caller that brings them one.
    under_way: HashSet<String>,
}

#[derive(Debug)]
struct Standing {
    step: Step,
    answer: oneshot::Sender<Answered>,
    /// Told when nobody of its lock is before it any more.
    first: Arc<Notify>,
}

impl Waiting {
    /// Tells the first of a lock that it is, where none of that is under way.
    fn tell_first(&self, lock: &str) {
        if !self.under_way.contains(lock)
            && let Some(first) = self.steps.values().find(|standing| standing.step.lock == lock)
        {
            first.first.notify_one();
        }
    }

    fn is_over(&mut self, lock: &str) {
        self.under_way.remove(lock);
        self.tell_first(lock);
    }
}

/// Where a step is.
#[derive(Debug)]
pub enum Where {
    /// With its caller again, who asks for a turn.
    Back(Step),
    /// Still here, behind others of its lock: its caller is told when it is the first.
    Here,
    /// With a turn.
    Taken,
}

/// Those that go along with a turn.
#[derive(Debug)]
pub struct PiggybackBatch {
    /// Their steps, in the order in which they came.
    pub steps: Vec<Step>,
    /// Who waits for the answer of each.
    pub callers: Vec<oneshot::Sender<Answered>>,
    /// Dropped when the turn is over.
    pub riding: PiggybackGuard,
}

/// The locks of which a turn has steps, until it is over.
#[derive(Debug)]
pub struct PiggybackGuard(Arc<DeferredSteps>, Vec<String>);

impl Drop for PiggybackGuard {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting();
        self.1.iter().for_each(|lock| waiting.is_over(lock));
    }
}

/// A step's place; dropped, the step is taken out, unless a turn has it.
#[derive(Debug)]
pub struct DeferredSlot<'a> {
    along: &'a DeferredSteps,
    at: u64,
    first: Arc<Notify>,
}

impl DeferredSlot<'_> {
    /// Waits until it may be the first of its lock.
    ///
    /// # Cancellation safety
    /// Dropped before it was ready, nothing is lost.
    pub async fn first(&self) {
        self.first.notified().await;
    }

    /// Takes the step back, if it is the first of its lock and none of that is with a turn: it brings the others
    /// theirs.
    pub fn take_back(&self) -> Where {
        let mut waiting = self.along.waiting();
        let Some(standing) = waiting.steps.get(&self.at) else {
            return Where::Taken;
        };
        let lock = standing.step.lock.clone();
        let mut before = waiting.steps.range(..self.at);
        if before.any(|(_, other)| other.step.lock == lock) || !waiting.under_way.insert(lock) {
            return Where::Here;
        }
        match waiting.steps.remove(&self.at) {
            Some(standing) => Where::Back(standing.step),
            None => Where::Taken,
        }
    }
}

impl Drop for DeferredSlot<'_> {
    fn drop(&mut self) {
        let mut waiting = self.along.waiting();
        if let Some(left) = waiting.steps.remove(&self.at) {
            waiting.tell_first(&left.step.lock);
        }
    }
}

impl DeferredSteps {
    /// Lets a step wait; answers its place, and what its answer comes by.
    pub fn put(&self, step: Step) -> (DeferredSlot<'_>, oneshot::Receiver<Answered>) {
        let (answer, answered) = oneshot::channel();
        let first = Arc::new(Notify::new());
        let mut waiting = self.waiting();
        waiting.last += 1;
        let at = waiting.last;
        let standing = Standing {
            step,
            answer,
            first: Arc::clone(&first),
        };
        waiting.steps.insert(at, standing);
        let along = self;
        (DeferredSlot { along, at, first }, answered)
    }

    /// A step that was taken back was not brought to any turn, or is over.
    pub fn is_over(&self, lock: &str) {
        self.waiting().is_over(lock);
    }

    /// What goes along with a turn of these steps, in its order; so many at most.
    pub fn take(self: &Arc<Self>, most: usize, asked: &[Step]) -> PiggybackBatch {
        let mut waiting = self.waiting();
        let brought = asked.iter().filter(|step| step.company == BatchClass::FarTail);
        let mut locks: HashSet<String> = brought.map(|step| step.lock.clone()).collect();
        let mut taken = Vec::new();
        for (at, Standing { step, .. }) in &waiting.steps {
            if taken.len() == most {
                break;
            }
            if locks.contains(&step.lock) || !waiting.under_way.contains(&step.lock) {
                locks.insert(step.lock.clone());
                taken.push(*at);
            }
        }
        let taken: Vec<Standing> = taken.iter().filter_map(|at| waiting.steps.remove(at)).collect();
        waiting.under_way.extend(locks.iter().cloned());
        let riding = PiggybackGuard(Arc::clone(self), locks.into_iter().collect());
        let taken = taken.into_iter().map(|standing| (standing.step, standing.answer));
        let (steps, callers) = taken.unzip();
        PiggybackBatch { steps, callers, riding }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::backend::etcd::batch_packing::BatchClass;

    fn step(lock: &str) -> Step {
        Step::new(lock, BatchClass::FarTail, Vec::new(), Vec::new(), Vec::new())
    }

    #[test]
    fn a_turn_takes_what_waits_within_its_bound_and_nothing_that_was_taken_back_or_left() {
        let along = Arc::new(DeferredSteps::default());
        let (_first, answered) = along.put(step("a"));
        let (back, _taken_back) = along.put(step("b"));
        let left = along.put(step("c"));
        let (late, _last) = along.put(step("d"));
        drop(left);
        assert!(matches!(back.take_back(), Where::Back(step) if step.lock == "b"));
        let _later = along.put(step("e"));
        let PiggybackBatch {
            steps,
            callers,
            riding: _riding,
        } = along.take(2, &[]);
        let locks: Vec<_> = steps.iter().map(|step| step.lock.as_str()).collect();
        assert_eq!((locks, callers.len()), (vec!["a", "d"], 2));
        // A turn has it: it must be waited for.
        assert!(matches!(late.take_back(), Where::Taken));
        for caller in callers {
            let _ = caller.send(Err(closed()));
        }
        assert!(answered.blocking_recv().unwrap().is_err());
        assert_eq!(along.take(2, &[]).steps.len(), 1);
    }

    #[test]
    fn steps_of_one_lock_go_with_one_turn_at_a_time_and_the_first_of_them_brings_it() {
        let along = Arc::new(DeferredSteps::default());
        let all: Vec<_> = (0..4).map(|_| along.put(step("a"))).collect();
        assert!(matches!(all[1].0.take_back(), Where::Here), "the first one does");
        let Where::Back(brought) = all[0].0.take_back() else {
            panic!("nobody is before it");
        };
        assert!(along.take(9, &[]).steps.is_empty(), "another turn would overtake it");
        let riders = along.take(2, &[brought]);
        assert_eq!(riders.steps.len(), 2);
        assert!(matches!(all[3].0.take_back(), Where::Here), "that turn is not over");
        assert!(along.take(9, &[]).steps.is_empty());
        drop(riders);
        assert!(matches!(all[3].0.take_back(), Where::Back(_)));
        along.is_over("a");
        let _waits = along.put(step("a"));
        assert_eq!(along.take(9, &[]).steps.len(), 1);
    }

    #[test]
    fn whoever_becomes_the_first_of_its_lock_is_told_and_nobody_else() {
        let along = Arc::new(DeferredSteps::default());
        let mut all: Vec<_> = (0..5).map(|_| along.put(step("a"))).collect();
        let other = along.put(step("b"));
        let told = |stand: &DeferredSlot<'_>| stand.first().now_or_never().is_some();
        let Where::Back(brought) = all[0].0.take_back() else {
            panic!("nobody is before it");
        };
        let riders = along.take(1, &[brought]);
        assert!(!all.iter().any(|(stand, _)| told(stand)), "it is not over");
        drop(riders);
        let now: Vec<_> = all.iter().map(|(stand, _)| told(stand)).collect();
        assert_eq!(now, [false, false, true, false, false]);
        // It was told, and goes before it has done anything about that.
        drop(all.remove(2));
        let now: Vec<_> = all.iter().map(|(stand, _)| told(stand)).collect();
        assert_eq!(now, [false, false, true, false]);
        assert!(!told(&other.0));
    }

    fn closed() -> Failure {
        Failure::Unavailable("closed".into())
    }
}
