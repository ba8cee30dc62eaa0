//! Steps that are in no hurry: they go along with the next turn, or by themselves after a moment.
//!
//! On a hot lock each hand-off is a turn, and who has just released comes back to the tail of the queue a
//! little after the next holder's turn has begun. A turn of its own for that would stand in the way of the
//! next hand-off, which nothing waits for but this does.
//!
//! Turns may overtake each other. So those of one lock go with one turn at a time, and keep their order.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::link::Failure;
use super::packing::{Company, Step};
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
    /// The locks whose steps are with a turn, or with the caller that brings them one.
    under_way: HashSet<String>,
}

/// Where a step is.
#[derive(Debug)]
pub enum Where {
    /// With its caller again, who asks for a turn.
    Back(Step),
    /// Still here, behind others of its lock.
    Here,
    /// With a turn.
    Taken,
}

/// The locks of which a turn has steps, until it is over.
#[derive(Debug)]
pub struct Riding(Arc<Along>, Vec<String>);

impl Drop for Riding {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting();
        for lock in &self.1 {
            waiting.under_way.remove(lock);
        }
    }
}

impl Along {
    /// Lets a step wait; by what it can be taken back, and its answer.
    pub fn put(&self, step: Step) -> (u64, oneshot::Receiver<Answered>) {
        let (answer, answered) = oneshot::channel();
        let mut waiting = self.waiting();
        waiting.last += 1;
        let at = waiting.last;
        waiting.steps.push((at, step, answer));
        (at, answered)
    }

    /// Takes a step back, if it is the first of its lock and none of that is with a turn: it brings the others
    /// theirs.
    pub fn take_back(&self, at: u64) -> Where {
        let mut waiting = self.waiting();
        waiting.steps.retain(|(_, _, answer)| !answer.is_closed());
        let Some(found) = waiting.steps.iter().position(|(there, ..)| *there == at) else {
            return Where::Taken;
        };
        let lock = waiting.steps[found].1.lock.clone();
        let behind = waiting.steps[..found].iter().any(|(_, step, _)| step.lock == lock);
        if behind || !waiting.under_way.insert(lock) {
            return Where::Here;
        }
        Where::Back(waiting.steps.remove(found).1)
    }

    /// A step that was taken back was not brought to any turn, or is over.
    pub fn is_over(&self, lock: &str) {
        self.waiting().under_way.remove(lock);
    }

    /// What goes along with a turn of these steps, in its order; so many at most, and without those whose callers
    /// went away.
    pub fn take(self: &Arc<Self>, most: usize, asked: &[Step]) -> (Vec<Step>, Vec<oneshot::Sender<Answered>>, Riding) {
        let mut waiting = self.waiting();
        waiting.steps.retain(|(_, _, answer)| !answer.is_closed());
        let brought = asked.iter().filter(|step| step.company == Company::FarTail);
        let brought: HashSet<&str> = brought.map(|step| step.lock.as_str()).collect();
        let mut taken = (Vec::new(), Vec::new());
        let mut locks: HashSet<String> = brought.iter().map(|lock| (*lock).to_owned()).collect();
        for (at, step, answer) in std::mem::take(&mut waiting.steps) {
            let free = locks.contains(&step.lock) || !waiting.under_way.contains(&step.lock);
            if free && taken.0.len() < most {
                locks.insert(step.lock.clone());
                taken.0.push(step);
                taken.1.push(answer);
            } else {
                waiting.steps.push((at, step, answer));
            }
        }
        waiting.under_way.extend(locks.iter().cloned());
        let riding = Riding(Arc::clone(self), locks.into_iter().collect());
        (taken.0, taken.1, riding)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
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
        let along = Arc::new(Along::default());
        let (_, first) = along.put(step("a"));
        let (back, _taken_back) = along.put(step("b"));
        let (_, left) = along.put(step("c"));
        let (late, _last) = along.put(step("d"));
        drop(left);
        assert!(matches!(along.take_back(back), Where::Back(step) if step.lock == "b"));
        let (_, _later) = along.put(step("e"));
        let (steps, callers, _riding) = along.take(2, &[]);
        let locks: Vec<_> = steps.iter().map(|step| step.lock.as_str()).collect();
        assert_eq!((locks, callers.len()), (vec!["a", "d"], 2));
        // A turn has it: it must be waited for.
        assert!(matches!(along.take_back(late), Where::Taken));
        for caller in callers {
            let _ = caller.send(Err(closed()));
        }
        assert!(first.blocking_recv().unwrap().is_err());
        assert_eq!(along.take(2, &[]).0.len(), 1);
    }

    #[test]
    fn steps_of_one_lock_go_with_one_turn_at_a_time_and_the_first_of_them_brings_it() {
        let along = Arc::new(Along::default());
        let all: Vec<_> = (0..4).map(|_| along.put(step("a"))).collect();
        assert!(matches!(along.take_back(all[1].0), Where::Here), "the first one does");
        let Where::Back(brought) = along.take_back(all[0].0) else {
            panic!("nobody is before it");
        };
        assert!(along.take(9, &[]).0.is_empty(), "another turn would overtake it");
        let (steps, _callers, riding) = along.take(2, &[brought]);
        assert_eq!(steps.len(), 2);
        assert!(
            matches!(along.take_back(all[3].0), Where::Here),
            "that turn is not over"
        );
        assert!(along.take(9, &[]).0.is_empty());
        drop(riding);
        assert!(matches!(along.take_back(all[3].0), Where::Back(_)));
        along.is_over("a");
        let (_, _waits) = along.put(step("a"));
        assert_eq!(along.take(9, &[]).0.len(), 1);
    }

    fn closed() -> Failure {
        Failure::Away("closed".into())
    }
}
