//! Admits the calls on a lock in their order of arrival.
//!
//! Etcd orders waiters by the revisions of their keys. Claims that are appended in one transaction share its revision,
//! so each record contains its time of arrival. Steps that are sent at the same time may reach etcd in any order.
//! Therefore a call that may have to wait is admitted once the call before it was granted or enqueued, or is in the
//! queue of deferred steps. Readers that may be granted at once are admitted concurrently, because they do not block
//! each other.

use std::collections::{BTreeMap, HashMap};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::backend::etcd::cluster::Failure;
use crate::name::LockName;

/// How many readers are admitted concurrently at most.
const CONCURRENT: usize = 64;

/// See the module. The number of queued calls is bounded by that of the callers.
#[derive(Debug)]
pub struct AdmissionQueue {
    /// The start of the time of [`Self::place`].
    opened: Instant,
    queues: Mutex<Queues>,
}

#[derive(Debug, Default)]
struct Queues {
    /// The number of the last call.
    last_number: u64,
    /// By number, which is the order of arrival.
    by_lock: HashMap<LockName, BTreeMap<u64, QueuedCall>>,
}

/// A call in the queue of a lock.
#[derive(Debug)]
struct QueuedCall {
    together: bool,
    /// Notifies the call of its admission; None once it was admitted.
    waits: Option<oneshot::Sender<Admission>>,
}

/// Ok once a call is admitted; an error if the store does not answer.
type Admission = Result<(), Failure>;

/// A call's position in the queue of one lock, until this is dropped.
#[derive(Debug)]
pub struct AdmissionTicket<'a> {
    admission: &'a AdmissionQueue,
    name: &'a LockName,
    number: u64,
    /// It is a reader that was admitted concurrently with others.
    pub together: bool,
}

impl Default for AdmissionQueue {
    fn default() -> Self {
        Self {
            opened: Instant::now(),
            queues: Mutex::default(),
        }
    }
}

impl AdmissionQueue {
    /// The time of a call's arrival, in nanoseconds. It orders the claims that are enqueued in one transaction, which
    /// are all of one replica.
    pub fn place(&self, arrived: Instant) -> u64 {
        let since = arrived.saturating_duration_since(self.opened).as_nanos();
        u64::try_from(since).unwrap_or(u64::MAX)
    }

    /// Waits until all earlier calls on this lock have their outcome. With `together`, it does not wait for earlier
    /// calls that have `together` too.
    ///
    /// # Errors
    /// [`Failure::NotSent`] as soon as the store did not answer a call before this one.
    ///
    /// # Cancellation safety
    /// Safe: a dropped call leaves the queue.
    pub async fn acquire<'a>(&'a self, name: &'a LockName, together: bool) -> Result<AdmissionTicket<'a>, Failure> {
        let (number, admitted) = {
            let mut queues = self.queues();
            queues.last_number += 1;
            let number = queues.last_number;
            let queue = queues.by_lock.entry(name.clone()).or_default();
            (number, enqueue(queue, number, together))
        };
        let ticket = AdmissionTicket {
            admission: self,
            name,
            number,
            together,
        };
        ticket.wait(admitted).await?;
        Ok(ticket)
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock()
    }
}

impl AdmissionTicket<'_> {
    /// Gives up concurrent admission: waits, at its old position, until all earlier calls have their outcome.
    ///
    /// # Errors
    /// As [`AdmissionQueue::acquire`].
    pub async fn go_alone(&mut self) -> Result<(), Failure> {
        self.together = false;
        let admitted = {
            let mut queues = self.admission.queues();
            let queue = queues.by_lock.entry(self.name.clone()).or_default();
            enqueue(queue, self.number, false)
        };
        self.wait(admitted).await
    }

    async fn wait(&self, admitted: oneshot::Receiver<Admission>) -> Result<(), Failure> {
        let lost = || {
            Err(Failure::NotSent(
                "etcd: a position in the queue of calls was lost".into(),
            ))
        };
        admitted.await.unwrap_or_else(|_| lost())
    }

    /// Fails all later calls at once with the store's failure, because each might wait as long as this one.
    pub fn failed(&self, failure: &Failure) {
        let mut queues = self.admission.queues();
        let queue = queues.by_lock.get_mut(self.name);
        let behind = queue.into_iter().flat_map(|queue| queue.range_mut(self.number..));
        for waiter in behind.filter_map(|(_, call)| call.waits.take()) {
            let _ = waiter.send(Err(failure.clone().unsent()));
        }
    }
}

impl Drop for AdmissionTicket<'_> {
    fn drop(&mut self) {
        let mut queues = self.admission.queues();
        if let Some(queue) = queues.by_lock.get_mut(self.name) {
            queue.remove(&self.number);
            advance(queue);
            if queue.is_empty() {
                queues.by_lock.remove(self.name);
            }
        }
    }
}

/// Enqueues a call, or changes its entry. Returns the receiver of its admission.
fn enqueue(queue: &mut BTreeMap<u64, QueuedCall>, number: u64, together: bool) -> oneshot::Receiver<Admission> {
    let (admit, admitted) = oneshot::channel();
    let waits = Some(admit);
    queue.insert(number, QueuedCall { together, waits });
    advance(queue);
    admitted
}

/// Admits the calls at the head of a queue.
fn advance(queue: &mut BTreeMap<u64, QueuedCall>) {
    for (ahead, call) in queue.values_mut().enumerate() {
        let may_go = ahead == 0 || (call.together && ahead < CONCURRENT);
        if !may_go {
            return;
        }
        if let Some(waiter) = call.waits.take() {
            // Fails only for a call that was dropped meanwhile, which is about to leave the queue.
            let _ = waiter.send(Ok(()));
        }
        if !call.together {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use futures::FutureExt;
    use futures::future::join_all;
    use tokio::time::sleep;

    use super::*;

    fn lock(name: &str) -> LockName {
        LockName::new(name).unwrap()
    }

    fn len(admission: &AdmissionQueue) -> usize {
        admission.queues().by_lock.len()
    }

    #[tokio::test(start_paused = true)]
    async fn calls_on_one_lock_are_admitted_one_after_another_in_their_order() {
        let (admission, name, seen) = (AdmissionQueue::default(), lock("a"), RefCell::new(Vec::new()));
        let acquire = |n: u64| {
            let (admission, name, seen) = (&admission, &name, &seen);
            async move {
                let _arrival = admission.acquire(name, false).await.unwrap();
                seen.borrow_mut().push((n, true));
                sleep(Duration::from_millis(20 - n)).await;
                seen.borrow_mut().push((n, false));
            }
        };
        join_all((0..20).map(acquire)).await;
        let one_by_one: Vec<_> = (0..20).flat_map(|n| [(n, true), (n, false)]).collect();
        assert_eq!(*seen.borrow(), one_by_one);
        assert_eq!(len(&admission), 0, "every queue is removed");
    }

    #[tokio::test]
    async fn readers_are_admitted_concurrently_and_overtake_no_earlier_call() {
        let (admission, name) = (AdmissionQueue::default(), lock("a"));
        let acquire = |together| Box::pin(admission.acquire(&name, together));
        let (first, mut second) = (acquire(true).await.unwrap(), acquire(true).await.unwrap());
        let (mut writer, mut later) = (acquire(false), acquire(true));
        assert!(futures::poll!(&mut writer).is_pending());
        assert!(futures::poll!(&mut later).is_pending(), "a writer is before it");
        // It cannot be granted at once, and keeps its position.
        {
            let mut alone = Box::pin(second.go_alone());
            assert!(futures::poll!(&mut alone).is_pending(), "one call is before it still");
            drop(first);
            assert!(alone.await.is_ok());
        }
        assert!(futures::poll!(&mut writer).is_pending());
        drop(second);
        let writer = writer.await.unwrap();
        assert!(futures::poll!(&mut later).is_pending());
        drop(writer);
        assert!(later.await.unwrap().together);
        assert_eq!(len(&admission), 0);
    }

    #[tokio::test]
    async fn the_number_of_concurrent_readers_is_bounded() {
        let (admission, name) = (AdmissionQueue::default(), lock("a"));
        let mut all = join_all((0..CONCURRENT).map(|_| admission.acquire(&name, true))).await;
        let mut next = Box::pin(admission.acquire(&name, true));
        assert!(futures::poll!(&mut next).is_pending());
        all.pop();
        assert!(next.await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn each_lock_has_a_queue_of_its_own() {
        let (admission, names) = (AdmissionQueue::default(), [lock("a"), lock("b")]);
        let first = admission.acquire(&names[0], false).await;
        let other = admission.acquire(&names[1], false).now_or_never();
        let other = other.expect("no call is before it");
        assert!(admission.acquire(&names[0], false).now_or_never().is_none());
        drop((first, other));
        assert_eq!(len(&admission), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_call_does_not_block_the_next_one() {
        let (admission, name) = (AdmissionQueue::default(), lock("a"));
        let first = admission.acquire(&name, false).await;
        let (mut leaves, mut stays) = (
            Box::pin(admission.acquire(&name, false)),
            Box::pin(admission.acquire(&name, false)),
        );
        assert!(futures::poll!(&mut leaves).is_pending());
        assert!(futures::poll!(&mut stays).is_pending());
        drop(first);
        // It was admitted, and is dropped before it notices that.
        drop(leaves);
        assert!(stays.await.is_ok());
        assert_eq!(len(&admission), 0);
    }

    #[tokio::test]
    async fn calls_behind_one_that_the_store_does_not_answer_fail_with_it() {
        let (admission, name) = (AdmissionQueue::default(), lock("a"));
        let first = admission.acquire(&name, false).await.unwrap();
        let mut behind = [
            Box::pin(admission.acquire(&name, false)),
            Box::pin(admission.acquire(&name, true)),
        ];
        for behind in &mut behind {
            assert!(futures::poll!(behind).is_pending());
        }
        first.failed(&Failure::Unavailable("it is unavailable".into()));
        for behind in join_all(behind).await {
            assert!(matches!(behind, Err(Failure::NotSent(reason)) if reason.contains("unavailable")));
        }
        drop(first);
        assert!(
            admission.acquire(&name, false).await.is_ok(),
            "later calls are admitted"
        );
        assert_eq!(len(&admission), 0);
    }
}
