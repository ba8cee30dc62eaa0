//! Deferred steps: each is sent with the next batch, or in a batch of its own after [`MAX_DELAY`].
//!
//! On a contended lock each hand-over is a batch, and a caller that has just released the lock is appended to its queue
//! shortly after the next holder's batch was sent. A batch of its own for that append would delay the next hand-over,
//! although no other step waits for the append.
//!
//! Batches may overtake each other. Therefore the deferred steps of one lock are in one batch at a time, which keeps
//! their order.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::txn::Answer;
use crate::backend::etcd::txn::packing::{BatchClass, Step};

/// How long a step waits for a batch that it can be sent with: the duration of a few batches.
pub const MAX_DELAY: Duration = Duration::from_millis(3);

pub type Answered = Result<Answer, Failure>;

/// Steps that wait for a batch. Their number is bounded by that of the callers.
#[derive(Debug, Default)]
pub struct DeferredSteps {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    /// By number, which is the order of arrival.
    steps: BTreeMap<u64, DeferredStep>,
    /// The locks with steps in a batch, or with a caller that requests a batch.
    in_flight: HashSet<String>,
}

#[derive(Debug)]
struct DeferredStep {
    step: Step,
    answer: oneshot::Sender<Answered>,
    /// Notified once no step of its lock is before it.
    first: Arc<Notify>,
}

impl Waiting {
    /// Notifies the first step of a lock, if no step of that lock is in flight.
    fn notify_first(&self, lock: &str) {
        if !self.in_flight.contains(lock)
            && let Some(first) = self.steps.values().find(|deferred| deferred.step.lock == lock)
        {
            first.first.notify_one();
        }
    }

    fn is_over(&mut self, lock: &str) {
        self.in_flight.remove(lock);
        self.notify_first(lock);
    }
}

/// Where a step is.
#[derive(Debug)]
pub enum Where {
    /// Returned to its caller, which requests a batch.
    Back(Step),
    /// Still deferred, behind others of its lock: its caller is notified once it is the first.
    Here,
    /// In a batch.
    Taken,
}

/// The deferred steps that are sent with a batch.
#[derive(Debug)]
pub struct PiggybackBatch {
    /// The steps, in their order of arrival.
    pub steps: Vec<Step>,
    /// The callers that wait for the answer of each.
    pub callers: Vec<oneshot::Sender<Answered>>,
    /// To be dropped when the batch has ended.
    pub riding: PiggybackGuard,
}

/// Marks the locks of a batch's deferred steps as in flight until the batch has ended.
#[derive(Debug)]
pub struct PiggybackGuard(Arc<DeferredSteps>, Vec<String>);

impl Drop for PiggybackGuard {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting();
        self.1.iter().for_each(|lock| waiting.is_over(lock));
    }
}

/// The slot of a deferred step. Dropping it removes the step, unless a batch has taken it.
#[derive(Debug)]
pub struct DeferredSlot<'a> {
    steps: &'a DeferredSteps,
    at: u64,
    first: Arc<Notify>,
}

impl DeferredSlot<'_> {
    /// Waits until it may be the first of its lock.
    ///
    /// # Cancellation safety
    /// Safe: a dropped wait consumes no notification.
    pub async fn first(&self) {
        self.first.notified().await;
    }

    /// Takes the step back, if it is the first of its lock and no step of that lock is in a batch. The later steps of
    /// the lock are then sent with this one's batch.
    pub fn take_back(&self) -> Where {
        let mut waiting = self.steps.waiting();
        let Some(deferred) = waiting.steps.get(&self.at) else {
            return Where::Taken;
        };
        let lock = deferred.step.lock.clone();
        let mut before = waiting.steps.range(..self.at);
        if before.any(|(_, other)| other.step.lock == lock) || !waiting.in_flight.insert(lock) {
            return Where::Here;
        }
        match waiting.steps.remove(&self.at) {
            Some(deferred) => Where::Back(deferred.step),
            None => Where::Taken,
        }
    }
}

impl Drop for DeferredSlot<'_> {
    fn drop(&mut self) {
        let mut waiting = self.steps.waiting();
        if let Some(dropped) = waiting.steps.remove(&self.at) {
            waiting.notify_first(&dropped.step.lock);
        }
    }
}

impl DeferredSteps {
    /// Defers a step. Returns its slot and the receiver of its answer.
    pub fn put(&self, step: Step) -> (DeferredSlot<'_>, oneshot::Receiver<Answered>) {
        let (answer, answered) = oneshot::channel();
        let first = Arc::new(Notify::new());
        let mut waiting = self.waiting();
        waiting.last += 1;
        let at = waiting.last;
        let deferred = DeferredStep {
            step,
            answer,
            first: Arc::clone(&first),
        };
        waiting.steps.insert(at, deferred);
        let steps = self;
        (DeferredSlot { steps, at, first }, answered)
    }

    /// A step that was taken back has ended, or was not sent.
    pub fn is_over(&self, lock: &str) {
        self.waiting().is_over(lock);
    }

    /// Takes at most `limit` steps, in order, to be sent with a batch of the steps `batch`.
    pub fn take(self: &Arc<Self>, limit: usize, batch: &[Step]) -> PiggybackBatch {
        let mut waiting = self.waiting();
        let lead = batch.iter().filter(|step| step.class == BatchClass::FarTail);
        let mut locks: HashSet<String> = lead.map(|step| step.lock.clone()).collect();
        let mut taken = Vec::new();
        for (at, DeferredStep { step, .. }) in &waiting.steps {
            if taken.len() == limit {
                break;
            }
            if locks.contains(&step.lock) || !waiting.in_flight.contains(&step.lock) {
                locks.insert(step.lock.clone());
                taken.push(*at);
            }
        }
        let taken: Vec<DeferredStep> = taken.iter().filter_map(|at| waiting.steps.remove(at)).collect();
        waiting.in_flight.extend(locks.iter().cloned());
        let riding = PiggybackGuard(Arc::clone(self), locks.into_iter().collect());
        let taken = taken.into_iter().map(|deferred| (deferred.step, deferred.answer));
        let (steps, callers) = taken.unzip();
        PiggybackBatch { steps, callers, riding }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::backend::etcd::txn::packing::BatchClass;

    fn step(lock: &str) -> Step {
        Step::new(lock, BatchClass::FarTail, Vec::new(), Vec::new(), Vec::new())
    }

    #[test]
    fn a_batch_takes_deferred_steps_up_to_its_limit_and_none_that_was_taken_back_or_dropped() {
        let steps_waiting = Arc::new(DeferredSteps::default());
        let (_first, answered) = steps_waiting.put(step("a"));
        let (back, _taken_back) = steps_waiting.put(step("b"));
        let dropped = steps_waiting.put(step("c"));
        let (late, _last) = steps_waiting.put(step("d"));
        drop(dropped);
        assert!(matches!(back.take_back(), Where::Back(step) if step.lock == "b"));
        let _later = steps_waiting.put(step("e"));
        let PiggybackBatch {
            steps,
            callers,
            riding: _riding,
        } = steps_waiting.take(2, &[]);
        let locks: Vec<_> = steps.iter().map(|step| step.lock.as_str()).collect();
        assert_eq!((locks, callers.len()), (vec!["a", "d"], 2));
        // A batch has it: its answer must be awaited.
        assert!(matches!(late.take_back(), Where::Taken));
        for caller in callers {
            let _ = caller.send(Err(closed()));
        }
        assert!(answered.blocking_recv().unwrap().is_err());
        assert_eq!(steps_waiting.take(2, &[]).steps.len(), 1);
    }

    #[test]
    fn deferred_steps_of_one_lock_are_in_one_batch_at_a_time_which_the_first_of_them_requests() {
        let steps_waiting = Arc::new(DeferredSteps::default());
        let all: Vec<_> = (0..4).map(|_| steps_waiting.put(step("a"))).collect();
        assert!(
            matches!(all[1].0.take_back(), Where::Here),
            "the first one requests the batch"
        );
        let Where::Back(lead) = all[0].0.take_back() else {
            panic!("no step is before it");
        };
        assert!(
            steps_waiting.take(9, &[]).steps.is_empty(),
            "another batch would overtake it"
        );
        let taken_steps = steps_waiting.take(2, &[lead]);
        assert_eq!(taken_steps.steps.len(), 2);
        assert!(matches!(all[3].0.take_back(), Where::Here), "that batch has not ended");
        assert!(steps_waiting.take(9, &[]).steps.is_empty());
        drop(taken_steps);
        assert!(matches!(all[3].0.take_back(), Where::Back(_)));
        steps_waiting.is_over("a");
        let _waits = steps_waiting.put(step("a"));
        assert_eq!(steps_waiting.take(9, &[]).steps.len(), 1);
    }

    #[test]
    fn only_the_step_that_becomes_the_first_of_its_lock_is_notified() {
        let steps_waiting = Arc::new(DeferredSteps::default());
        let mut all: Vec<_> = (0..5).map(|_| steps_waiting.put(step("a"))).collect();
        let other = steps_waiting.put(step("b"));
        let notified = |slot: &DeferredSlot<'_>| slot.first().now_or_never().is_some();
        let Where::Back(lead) = all[0].0.take_back() else {
            panic!("no step is before it");
        };
        let taken_steps = steps_waiting.take(1, &[lead]);
        assert!(!all.iter().any(|(slot, _)| notified(slot)), "it has not ended");
        drop(taken_steps);
        let now: Vec<_> = all.iter().map(|(slot, _)| notified(slot)).collect();
        assert_eq!(now, [false, false, true, false, false]);
        // It was notified, and is dropped before it acts.
        drop(all.remove(2));
        let now: Vec<_> = all.iter().map(|(slot, _)| notified(slot)).collect();
        assert_eq!(now, [false, false, true, false]);
        assert!(!notified(&other.0));
    }

    fn closed() -> Failure {
        Failure::Unavailable("closed".into())
    }
}
