//! The queue of calls on one lock: starts them in their order of arrival.
//!
//! Etcd orders waiters by the revisions of their keys. Claims that are appended in one transaction share its revision,
//! so each record contains its time of arrival. Steps that are sent at the same time may reach etcd in any order.
//! Therefore a call that may have to wait starts once the call before it was granted or enqueued, or is among the
//! appends of its lock. Readers that may be granted at once start concurrently, because they do not block each
//! other.

use std::collections::BTreeMap;

use tokio::sync::oneshot;

use super::{LockState, LockTable};
use crate::backend::etcd::cluster::Failure;
use crate::name::LockName;

/// How many readers run concurrently at most.
pub(super) const MAX_CONCURRENT: usize = 64;

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
    concurrent: bool,
    /// Starts the call; None once it was started.
    waits: Option<oneshot::Sender<Start>>,
}

/// Ok once a call is started; an error if the store does not answer.
type Start = Result<(), Failure>;

impl CallQueue {
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Enqueues a call, or changes its entry. Returns the receiver of its start.
    fn enqueue(&mut self, number: u64, concurrent: bool) -> oneshot::Receiver<Start> {
        let (start, started) = oneshot::channel();
        let waits = Some(start);
        self.calls.insert(number, QueuedCall { concurrent, waits });
        self.advance();
        started
    }

    fn remove(&mut self, number: u64) {
        self.calls.remove(&number);
        self.advance();
    }

    /// Starts the calls at the head.
    fn advance(&mut self) {
        for (ahead, call) in self.calls.values_mut().enumerate() {
            let may_start = ahead == 0 || (call.concurrent && ahead < MAX_CONCURRENT);
            if !may_start {
                return;
            }
            if let Some(waiter) = call.waits.take() {
                // Fails only for a call that was dropped meanwhile, which is about to leave the queue.
                let _ = waiter.send(Ok(()));
            }
            if !call.concurrent {
                return;
            }
        }
    }
}

/// Which calls are queued: each kind has its own queue for each lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    Acquire,
    Promote,
}

impl LockState {
    fn queue(&mut self, kind: CallKind) -> &mut CallQueue {
        match kind {
            CallKind::Acquire => &mut self.acquires,
            CallKind::Promote => &mut self.promotions,
        }
    }
}

/// A call's position in the queue of one lock, until this is dropped.
#[derive(Debug)]
pub struct CallPosition<'a> {
    table: &'a LockTable,
    name: &'a LockName,
    kind: CallKind,
    number: u64,
    /// It is a reader that runs concurrently with others.
    pub concurrent: bool,
}

impl LockTable {
    /// Enqueues a call, and waits until all earlier calls of this kind on this lock have their outcome. With
    /// `concurrent`, it does not wait for earlier calls that have `concurrent` too.
    ///
    /// # Errors
    /// [`Failure::NotSent`] as soon as the store did not answer a call before this one.
    ///
    /// # Cancellation safety
    /// Safe: a dropped call leaves the queue.
    pub async fn join_queue<'a>(
        &'a self,
        name: &'a LockName,
        kind: CallKind,
        concurrent: bool,
    ) -> Result<CallPosition<'a>, Failure> {
        let (number, started) = self.with(name, |state| {
            let queue = state.queue(kind);
            queue.last_number += 1;
            let number = queue.last_number;
            (number, queue.enqueue(number, concurrent))
        });
        let position = CallPosition {
            table: self,
            name,
            kind,
            number,
            concurrent,
        };
        position.wait(started).await?;
        Ok(position)
    }
}

impl CallPosition<'_> {
    fn with_queue<T>(&self, change: impl FnOnce(&mut CallQueue) -> T) -> T {
        self.table.with(self.name, |state| change(state.queue(self.kind)))
    }

    /// Runs concurrently no more: waits, at its old position, until all earlier calls have their outcome.
    ///
    /// # Errors
    /// As [`LockTable::join_queue`].
    pub async fn wait_for_earlier_calls(&mut self) -> Result<(), Failure> {
        self.concurrent = false;
        let started = self.with_queue(|queue| queue.enqueue(self.number, false));
        self.wait(started).await
    }

    async fn wait(&self, started: oneshot::Receiver<Start>) -> Result<(), Failure> {
        let lost = || Failure::NotSent("etcd: a position in the queue of calls was lost".into());
        started.await.map_err(|_| lost())?
    }

    /// Fails all later calls at once with the store's failure, because each might wait as long as this one.
    pub fn fail_later_calls(&self, failure: &Failure) {
        self.with_queue(|queue| {
            let behind = queue.calls.range_mut(self.number..);
            for waiter in behind.filter_map(|(_, call)| call.waits.take()) {
                let _ = waiter.send(Err(failure.clone().unsent()));
            }
        });
    }
}

impl Drop for CallPosition<'_> {
    fn drop(&mut self) {
        self.with_queue(|queue| queue.remove(self.number));
    }
}
