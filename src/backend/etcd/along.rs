//! Steps that are in no hurry: they go along with the next turn, or by themselves after a moment.
//!
//! On a hot lock each hand-off is a turn, and who has just released comes back to the tail of the queue a
//! little after the next holder's turn has begun. A turn of its own for that would stand in the way of the
//! next hand-off, which nothing waits for but this does.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::link::Failure;
use super::packing::Step;
use super::turns::Answer;

/// How long a step waits for a turn that it can go along with: a few turns' time.
pub const MOMENT: Duration = Duration::from_millis(3);

type Answered = Result<Answer, Failure>;

/// Steps that wait for a turn to go along with. There are no more of them than callers.
#[derive(Debug, Default)]
pub struct Along {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    steps: Vec<(u64, Step, oneshot::Sender<Answered>)>,
}

impl Along {
    /// Lets a step wait; by what it can be taken back, and its answer.
    pub fn put(&self, step: Step) -> (u64, oneshot::Receiver<Answered>) {
        let (answer, answered) = oneshot::channel();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.last += 1;
        let at = waiting.last;
        waiting.steps.push((at, step, answer));
        (at, answered)
    }

    /// Takes a step back that no turn has taken.
    pub fn take_back(&self, at: u64) -> Option<Step> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let found = waiting.steps.iter().position(|(there, ..)| *there == at)?;
        Some(waiting.steps.remove(found).1)
    }

    /// What waits, in its order, for a turn; so many at most, and without those whose callers went away.
    pub fn take(&self, most: usize) -> (Vec<Step>, Vec<oneshot::Sender<Answered>>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.steps.retain(|(_, _, answer)| !answer.is_closed());
        let taken = waiting.steps.len().min(most);
        let steps = waiting.steps.drain(..taken);
        steps.map(|(_, step, answer)| (step, answer)).unzip()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::etcd::packing::Company;

    fn step(lock: &str) -> Step {
        Step::new(lock, Company::FarTail, Vec::new(), Vec::new(), Vec::new())
    }

    #[test]
    fn a_turn_takes_what_waits_within_its_bound_and_nothing_that_was_taken_back_or_left() {
        let along = Along::default();
        let (_, first) = along.put(step("a"));
        let (back, _taken_back) = along.put(step("b"));
        let (_, left) = along.put(step("c"));
        let (late, _last) = along.put(step("d"));
        drop(left);
        assert!(along.take_back(back).is_some_and(|step| step.lock == "b"));
        let (_, _later) = along.put(step("e"));
        let (steps, callers) = along.take(2);
        let locks: Vec<_> = steps.iter().map(|step| step.lock.as_str()).collect();
        assert_eq!((locks, callers.len()), (vec!["a", "d"], 2));
        // A turn has it: it must be waited for.
        assert!(along.take_back(late).is_none());
        for caller in callers {
            let _ = caller.send(Err(closed()));
        }
        assert!(first.blocking_recv().unwrap().is_err());
        assert_eq!(along.take(2).0.len(), 1);
    }

    fn closed() -> Failure {
        Failure::Away("closed".into())
    }
}
