//! Keeps the leases of a client's guards alive.
//!
//! One KeepAlive stream renews as many leases as one request can name; more leases open another stream. A lease that its
//! stream does not renew in time is renewed by a call of its own. A guard counts its lease's time from before the request
//! was sent, so a late renewal is safe.

mod leases;
mod stream;
mod task;

use std::collections::HashMap;
use std::fmt;
use std::future::pending;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::runtime::{self, Handle};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use self::task::{Change, KeepAliveTask};
use super::calls::{CALL, Calls};
use super::error::Error;
use super::lease_term::{LeaseState, LeaseTerm};

/// How many leases one stream keeps at most; a server accepts 1,000.
const LEASES: usize = 500;
/// How many bytes the ids of these leases have at most; a server accepts beats of 64 KiB by default.
const ID_BYTES: usize = 48 << 10;
/// What the encoding of a lease id adds to its length, at most.
const ID_OVERHEAD: usize = 4;

/// The tasks that keep a client's leases.
pub(super) struct KeepAlive {
    calls: Arc<Calls>,
    /// Locked only to find a task, or to change its leases.
    tasks: Mutex<Tasks>,
    /// Whether the client is closed. Each task that keeps a lease has a receiver.
    closing: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Tasks {
    tasks: Vec<Task>,
    /// The leases with guards. A retry finds the lease of its request, so that one lease can have several.
    shares: HashMap<Arc<str>, Weak<()>>,
    /// The number of guards and tasks so far.
    last_number: u64,
}

/// A task with at least one lease. It ends with its last one.
#[derive(Debug)]
struct Task {
    number: u64,
    /// Which leases it keeps.
    kind: TaskKind,
    changes: mpsc::UnboundedSender<Change>,
    leases: usize,
    id_bytes: usize,
}

/// What the leases of one task have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TaskKind {
    /// The runtime of their guards: another one may not be driven any more.
    runtime: runtime::Id,
    /// The class of their TTLs: the shortest one sets the interval for all leases of a stream.
    interval_class: u32,
}

/// A lease that is kept until this is dropped.
pub(super) struct KeptLease {
    keep_alive: Arc<KeepAlive>,
    lease_id: Arc<str>,
    /// Every guard of the lease has a clone.
    share: Option<Arc<()>>,
    guard: u64,
    task: u64,
    changes: mpsc::UnboundedSender<Change>,
}

impl KeepAlive {
    /// Keeps leases by these calls.
    pub(super) fn new(calls: Arc<Calls>) -> Self {
        Self {
            calls,
            tasks: Mutex::default(),
            closing: watch::Sender::new(false),
        }
    }

    /// Tells whether the client is closed. [`KeepAlive::close`] waits until it is dropped.
    pub(super) fn closing(&self) -> Closing {
        Closing(self.closing.subscribe())
    }

    /// Makes all guards release their leases, and waits for that. Ends all streams.
    pub(super) async fn close(&self) {
        self.closing.send_replace(true);
        self.calls.end_streams();
        // Leases whose releases are not confirmed by then end with their TTL.
        let _ = timeout(CALL, self.closing.closed()).await;
    }

    /// The client's calls, for what it begins.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub(super) fn open_calls(&self) -> Result<&Arc<Calls>, Error> {
        match *self.closing.borrow() {
            true => Err(Error::Closed),
            false => Ok(&self.calls),
        }
    }

    /// The client's calls, for what it has begun.
    pub(super) fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Keeps a lease, and shows in `state` until when it is held, or why not any more. Must be called within a tokio
    /// runtime, which keeps the lease.
    pub(super) fn keep(
        self: &Arc<Self>,
        lease_id: &str,
        term: LeaseTerm,
        state: Arc<watch::Sender<LeaseState>>,
    ) -> KeptLease {
        let lease_id: Arc<str> = Arc::from(lease_id);
        let kind = TaskKind {
            runtime: Handle::current().id(),
            interval_class: term.interval_class(),
        };
        let mut tasks = self.tasks.lock();
        tasks.last_number += 1;
        let guard = tasks.last_number;
        let shared = tasks.shares.get(&lease_id).and_then(Weak::upgrade);
        let share = shared.unwrap_or_default();
        tasks.shares.insert(Arc::clone(&lease_id), Arc::downgrade(&share));
        let task = tasks.with_room(kind, lease_id.len() + ID_OVERHEAD, &self.calls);
        // It cannot fail: a task runs until nobody can send it changes, unless its runtime has ended.
        let _ = task.changes.send(Change::Add {
            lease_id: Arc::clone(&lease_id),
            guard,
            term,
            state,
        });
        KeptLease {
            keep_alive: Arc::clone(self),
            lease_id,
            share: Some(share),
            guard,
            task: task.number,
            changes: task.changes.clone(),
        }
    }
}

/// See [`KeepAlive::closing`].
#[derive(Debug)]
pub(super) struct Closing(watch::Receiver<bool>);

impl Closing {
    /// Resolves when the client is closed.
    pub async fn closed(&mut self) {
        // The client that was dropped is as good as closed, but its guards live on.
        if self.0.wait_for(|is_closed| *is_closed).await.is_err() {
            pending::<()>().await;
        }
    }
}

impl fmt::Debug for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeepAlive").field(&self.calls).finish()
    }
}

impl Tasks {
    /// A task of this kind with room for one more lease id; adds it there. Tasks of a runtime that has ended are
    /// forgotten.
    fn with_room(&mut self, kind: TaskKind, id_bytes: usize, calls: &Arc<Calls>) -> &Task {
        self.tasks.retain(|task| !task.changes.is_closed());
        let has_room = |task: &Task| task.kind == kind && task.leases < LEASES && task.id_bytes + id_bytes <= ID_BYTES;
        let index = self.tasks.iter().position(has_room).unwrap_or_else(|| {
            self.last_number += 1;
            let (changes, receiver) = mpsc::unbounded_channel();
            tokio::spawn(KeepAliveTask::new(Arc::clone(calls), receiver).run());
            self.tasks.push(Task {
                number: self.last_number,
                kind,
                changes,
                leases: 0,
                id_bytes: 0,
            });
            self.tasks.len() - 1
        });
        let task = &mut self.tasks[index];
        task.leases += 1;
        task.id_bytes += id_bytes;
        task
    }
}

impl KeptLease {
    /// Ends the keeping. Returns whether no other guard of this client has the lease, which is then to be released.
    pub(super) fn stop(mut self) -> bool {
        // Of several guards that stop at once exactly one is the last.
        self.share.take().and_then(Arc::into_inner).is_some()
    }
}

impl Drop for KeptLease {
    fn drop(&mut self) {
        // It fails only if the runtime of the task has ended.
        let _ = self.changes.send(Change::Remove {
            lease_id: Arc::clone(&self.lease_id),
            guard: self.guard,
        });
        drop(self.share.take());
        let mut tasks = self.keep_alive.tasks.lock();
        if tasks
            .shares
            .get(&self.lease_id)
            .is_some_and(|share| share.strong_count() == 0)
        {
            tasks.shares.remove(&self.lease_id);
        }
        let tasks = &mut tasks.tasks;
        if let Some(index) = tasks.iter().position(|task| task.number == self.task) {
            tasks[index].leases -= 1;
            tasks[index].id_bytes -= self.lease_id.len() + ID_OVERHEAD;
            if tasks[index].leases == 0 {
                tasks.swap_remove(index);
            }
        }
    }
}
