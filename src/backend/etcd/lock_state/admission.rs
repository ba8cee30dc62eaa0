//! Admits the calls on a lock in their order of arrival.
//!
//! Etcd orders waiters by the revisions of their keys. Claims that are appended in one transaction share its revision,
//! so each record contains its time of arrival. Steps that are sent at the same time may reach etcd in any order.
//! Therefore a call that may have to wait is admitted once the call before it was granted or enqueued, or is among the
//! appends of its lock. Readers that may be granted at once are admitted concurrently, because they do not block
//! each other.

use std::collections::BTreeMap;

use tokio::sync::oneshot;

use super::{LockState, LockTable};
use crate::backend::etcd::cluster::Failure;
use crate::name::LockName;

/// How many readers are admitted concurrently at most.
pub(super) const CONCURRENT: usize = 64;

/// The calls on one lock. Their number is bounded by that of the callers.
#[derive(Debug, Default)]
pub struct CallQueue {
    /// The number of the last call.
    last_number: u64,
    /// By number, which is the order of arrival.
    calls: BTreeMap<u64, QueuedCall>,
}

#[derive(Debug)]
struct QueuedCall {
    together: bool,
    /// Notifies the call of its admission; None once it was admitted.
    waits: Option<oneshot::Sender<Admission>>,
}

/// Ok once a call is admitted; an error if the store does not answer.
type Admission = Result<(), Failure>;

impl CallQueue {
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Enqueues a call, or changes its entry. Returns the receiver of its admission.
    fn enqueue(&mut self, number: u64, together: bool) -> oneshot::Receiver<Admission> {
        let (admit, admitted) = oneshot::channel();
        let waits = Some(admit);
        self.calls.insert(number, QueuedCall { together, waits });
        self.advance();
        admitted
    }

    fn remove(&mut self, number: u64) {
        self.calls.remove(&number);
        self.advance();
    }

    /// Admits the calls at the head.
    fn advance(&mut self) {
        for (ahead, call) in self.calls.values_mut().enumerate() {
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
}

/// Which calls are queued: each kind has its own queue for each lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    Acquires,
    Promotions,
}

impl LockState {
    fn queue(&mut self, calls: Calls) -> &mut CallQueue {
        match calls {
            Calls::Acquires => &mut self.acquires,
            Calls::Promotions => &mut self.promotions,
        }
    }
}

/// A call's position in the queue of one lock, until this is dropped.
#[derive(Debug)]
pub struct AdmissionTicket<'a> {
    table: &'a LockTable,
    name: &'a LockName,
    calls: Calls,
    number: u64,
    /// It is a reader that was admitted concurrently with others.
    pub together: bool,
}

impl LockTable {
    /// Waits until all earlier calls of this kind on this lock have their outcome. With `together`, it does not wait
    /// for earlier calls that have `together` too.
    ///
    /// # Errors
    /// [`Failure::NotSent`] as soon as the store did not answer a call before this one.
    ///
    /// # Cancellation safety
    /// Safe: a dropped call leaves the queue.
    pub async fn admit<'a>(
        &'a self,
        name: &'a LockName,
        calls: Calls,
        together: bool,
    ) -> Result<AdmissionTicket<'a>, Failure> {
        let (number, admitted) = self.with(name, |state| {
            let queue = state.queue(calls);
            queue.last_number += 1;
            let number = queue.last_number;
            (number, queue.enqueue(number, together))
        });
        let ticket = AdmissionTicket {
            table: self,
            name,
            calls,
            number,
            together,
        };
        ticket.wait(admitted).await?;
        Ok(ticket)
    }
}

impl AdmissionTicket<'_> {
    fn with_queue<T>(&self, change: impl FnOnce(&mut CallQueue) -> T) -> T {
        self.table.with(self.name, |state| change(state.queue(self.calls)))
    }

    /// Gives up concurrent admission: waits, at its old position, until all earlier calls have their outcome.
    ///
    /// # Errors
    /// As [`LockTable::admit`].
    pub async fn go_alone(&mut self) -> Result<(), Failure> {
        self.together = false;
        let admitted = self.with_queue(|queue| queue.enqueue(self.number, false));
        self.wait(admitted).await
    }

    async fn wait(&self, admitted: oneshot::Receiver<Admission>) -> Result<(), Failure> {
        let lost = || Failure::NotSent("etcd: a position in the queue of calls was lost".into());
        admitted.await.map_err(|_| lost())?
    }

    /// Fails all later calls at once with the store's failure, because each might wait as long as this one.
    pub fn failed(&self, failure: &Failure) {
        self.with_queue(|queue| {
            let behind = queue.calls.range_mut(self.number..);
            for waiter in behind.filter_map(|(_, call)| call.waits.take()) {
                let _ = waiter.send(Err(failure.clone().unsent()));
            }
        });
    }
}

impl Drop for AdmissionTicket<'_> {
    fn drop(&mut self) {
        self.with_queue(|queue| queue.remove(self.number));
    }
}
