//! The appends to the queues of locks that wait for a batch.
//!
//! Batches may overtake each other. So that the appends of one lock keep their order, they are in one batch at a time.
//!
//! An append leaves with the next step on the same lock, at most 10 ms later. On a contended lock that step is a
//! hand-off, which therefore costs hardly more than one transaction. A call and its retry never share a request,
//! because both write the record of their request (`model::etcd::worlds`). Before a lock has a view, an exclusive
//! claim is appended if this server granted the lock last or has waiters there; otherwise callers that hold for less
//! than a round trip would never wait, and no release would hand the lock over.

use std::collections::{HashMap, HashSet, VecDeque};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Answered;
use super::packing::Step;

/// How many appends to one lock's queue are sent together at most. They fit into one transaction, because several would
/// not keep their order.
const TOGETHER: usize = 96;

/// A step, and the caller that waits for its answer.
pub type QueuedAppend = (Step, oneshot::Sender<Answered>);

/// The appends of each lock, by its key prefix.
#[derive(Debug, Default)]
pub struct AppendQueues(Mutex<HashMap<String, AppendQueue>>);

/// The appends of one lock.
#[derive(Debug, Default)]
struct AppendQueue {
    /// The number of the last one that was taken.
    taken: u64,
    waiting: VecDeque<QueuedAppend>,
    in_flight: bool,
    /// The number of the last one that was answered.
    answered: u64,
    /// The waiting appends are sent as soon as the ones in flight are answered.
    is_due: bool,
    /// Dropped when the appends in flight are answered.
    followers: Vec<oneshot::Sender<()>>,
}

impl AppendQueues {
    /// Enqueues an append. Returns its number among those of its lock, and its answer.
    pub fn push(&self, step: Step) -> (u64, oneshot::Receiver<Answered>) {
        let (caller, answered) = oneshot::channel();
        let mut all = self.0.lock();
        let queue = all.entry(step.lock.clone()).or_default();
        queue.waiting.push_back((step, caller));
        (queue.taken + queue.waiting.len() as u64, answered)
    }

    /// Whether the append with this number was not taken yet.
    pub fn is_waiting(&self, lock: &str, number: u64) -> bool {
        self.0.lock().get(lock).is_some_and(|queue| queue.taken < number)
    }

    /// Whether appends of a lock are in flight.
    pub fn are_in_flight(&self, lock: &str) -> bool {
        self.0.lock().get(lock).is_some_and(|queue| queue.in_flight)
    }

    /// The number of the last append to this lock.
    pub fn last(&self, lock: &str) -> u64 {
        self.0
            .lock()
            .get(lock)
            .map_or(0, |queue| queue.taken + queue.waiting.len() as u64)
    }

    /// Resolves when the appends in flight up to `last` are answered; `None` if none is in flight.
    pub fn in_flight(&self, lock: &str, last: u64) -> Option<oneshot::Receiver<()>> {
        let mut all = self.0.lock();
        let queue = all
            .get_mut(lock)
            .filter(|queue| queue.in_flight && queue.answered < last)?;
        let (follower, answered) = oneshot::channel();
        queue.followers.push(follower);
        Some(answered)
    }

    /// Takes the appends of a lock, in their order, unless some are in flight. With `is_due`, those that are not taken
    /// are sent as soon as those in flight are answered.
    pub fn take(&self, lock: &str, is_due: bool) -> Option<Vec<QueuedAppend>> {
        let mut all = self.0.lock();
        let queue = all.get_mut(lock)?;
        if queue.in_flight {
            queue.is_due |= is_due;
            return None;
        }
        Some(queue.take())
    }

    /// Notes that the appends of a lock that were taken are answered. Returns those that are due.
    pub fn ended(&self, lock: &str) -> Option<Vec<QueuedAppend>> {
        let mut all = self.0.lock();
        let queue = all.get_mut(lock)?;
        queue.in_flight = false;
        queue.answered = queue.taken;
        queue.followers.clear();
        if queue.waiting.is_empty() {
            all.remove(lock);
            return None;
        }
        queue.is_due.then(|| queue.take())
    }
}

impl AppendQueue {
    /// None of those that are taken writes the key of another.
    fn take(&mut self) -> Vec<QueuedAppend> {
        let (mut taken, mut written) = (Vec::new(), HashSet::new());
        while let Some((step, caller)) = self.waiting.front()
            && taken.len() < TOGETHER
            && (caller.is_closed() || step.written.iter().all(|key| written.insert(key.clone())))
        {
            taken.extend(self.waiting.pop_front().filter(|(_, caller)| !caller.is_closed()));
            self.taken += 1;
        }
        self.in_flight = true;
        self.is_due = !self.waiting.is_empty();
        taken
    }
}

#[cfg(test)]
mod tests {
    use etcd_client::TxnOp;
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;
    use crate::backend::etcd::txn::packing::BatchClass;

    fn append(queues: &AppendQueues, lock: &str, key: usize) -> (u64, oneshot::Receiver<Answered>) {
        let put = TxnOp::put(format!("{lock}/{key}"), "1", None);
        queues.push(Step::new(lock, BatchClass::Other, Vec::new(), vec![put], Vec::new()))
    }

    fn keys(taken: &[QueuedAppend]) -> Vec<String> {
        let key = |(step, _): &QueuedAppend| String::from_utf8(step.written[0].clone()).unwrap();
        taken.iter().map(key).collect()
    }

    #[test]
    fn the_appends_of_one_lock_are_in_flight_once_at_a_time_and_in_their_order() {
        let queues = AppendQueues::default();
        let _callers: Vec<_> = (0..=TOGETHER).map(|n| append(&queues, "a", n)).collect();
        let _other = append(&queues, "b", 0);
        let first = queues.take("a", false).unwrap();
        assert_eq!(
            keys(&first),
            (0..TOGETHER).map(|n| format!("a/{n}")).collect::<Vec<_>>()
        );
        assert!(queues.take("a", false).is_none(), "another batch might overtake it");
        assert!(queues.take("b", false).is_some());
        let number = TOGETHER as u64;
        assert!(!queues.is_waiting("a", number) && queues.is_waiting("a", number + 1));
        let rest = queues.ended("a").expect("what did not fit is due");
        assert_eq!(keys(&rest), [format!("a/{TOGETHER}")]);
        assert!(queues.ended("a").is_none() && queues.ended("b").is_none());
        assert!(queues.0.lock().is_empty());
    }

    #[test]
    fn appends_that_came_while_others_were_in_flight_are_due_if_they_were_asked_for() {
        let queues = AppendQueues::default();
        for is_due in [false, true] {
            let _first = append(&queues, "a", 1);
            assert!(queues.take("a", false).is_some());
            let _second = append(&queues, "a", 2);
            assert!(queues.take("a", is_due).is_none());
            assert_eq!(queues.ended("a").is_some(), is_due);
            // The second was taken now, or is taken now.
            queues.take("a", false);
            queues.ended("a");
        }
        assert!(queues.0.lock().is_empty());
    }

    #[test]
    fn what_follows_appends_is_told_when_they_are_answered() {
        let queues = AppendQueues::default();
        let (first, _caller) = append(&queues, "a", 1);
        assert_eq!(queues.last("a"), first);
        assert!(queues.in_flight("a", first).is_none(), "it waits for a batch");
        assert!(queues.take("a", true).is_some());
        let mut answered = queues.in_flight("a", first).expect("it is in flight");
        let (second, _caller) = append(&queues, "a", 2);
        assert!(queues.take("a", true).is_none());
        assert_eq!(answered.try_recv(), Err(TryRecvError::Empty));
        assert!(queues.ended("a").is_some(), "the second is in flight now");
        assert_eq!(answered.try_recv(), Err(TryRecvError::Closed));
        assert!(queues.in_flight("a", first).is_none(), "the second came later");
        assert!(queues.in_flight("a", second).is_some() && queues.ended("a").is_none());
        assert!(queues.in_flight("a", second).is_none());
    }

    #[test]
    fn appends_that_write_one_key_are_not_taken_together_and_one_without_a_caller_is_not_sent() {
        let queues = AppendQueues::default();
        let [_first, _second, _same, gone] = [1, 2, 1, 3].map(|key| append(&queues, "a", key));
        assert_eq!(keys(&queues.take("a", false).unwrap()), ["a/1", "a/2"]);
        drop(gone);
        assert_eq!(keys(&queues.ended("a").expect("they are due")), ["a/1"]);
    }
}
