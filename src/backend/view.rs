//! What a backend reports about its locks: lists, notifications and changes.

use crate::claim::{Cause, ClaimLabels, Holder, Queue};
use crate::name::{ClaimId, FencingToken, LockName};

/// How much of a queue is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InspectLimit {
    /// The maximum number of holders.
    pub holders: usize,
    /// The maximum number of waiters.
    pub waiters: usize,
}

impl InspectLimit {
    /// Every holder, and no waiter.
    pub const ALL_HOLDERS: Self = Self {
        holders: usize::MAX,
        waiters: 0,
    };

    /// The same limit for holders and waiters.
    pub fn of_each(limit: usize) -> Self {
        Self {
            holders: limit,
            waiters: limit,
        }
    }
}

/// Which part of a list is requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// Where the previous page ended, in the backend's own encoding.
    pub after: Option<String>,
    /// The maximum number of locks; at least 1.
    pub size: usize,
}

/// A page of locks in use.
#[derive(Debug, Clone, Default)]
pub struct LockPage {
    /// The locks, by name.
    pub locks: Vec<LockSummary>,
    /// Where the next page begins; absent at the end.
    pub next: Option<String>,
}

/// A summary of a lock in use.
#[derive(Debug, Clone)]
pub struct LockSummary {
    /// Its name.
    pub lock: LockName,
    /// The number of claims that hold it.
    pub holders: usize,
    /// The number of claims that wait.
    pub waiters: usize,
    /// The first holder, if there is one.
    pub first: Option<Holder>,
}

/// A message to this replica's waiting claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// This claim should be promoted ([`super::Backend::promote`]): it may be eligible, or was
    /// adopted.
    Next(LockName, ClaimId),
    /// Something changed on this lock: its first local waiter should try to be promoted.
    Changed(LockName),
    /// The store lost this waiting claim.
    Gone(LockName, ClaimId),
    /// Notifications may have been lost: every waiter should try to be promoted.
    Gap,
}

/// A claim that was forcibly released, with all its holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forced {
    /// The lock.
    pub lock: LockName,
    /// The token that held it.
    pub token: FencingToken,
}

/// An event that a watcher of a lock receives.
#[derive(Debug, Clone)]
pub enum WatchEvent {
    /// The full state: the first event, and the event after a gap.
    State(Queue),
    /// One change.
    Change(Change),
}

/// One change of a lock's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// The claim that changed.
    pub claim: ClaimLabels,
    /// Its token; absent if it never held the lock.
    pub token: Option<FencingToken>,
    /// The number of holders after the change.
    pub holders: usize,
    /// The number of waiters after the change.
    pub waiters: usize,
}

/// What can happen to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It began to wait.
    Queued,
    /// It was granted.
    Granted,
    /// Its metadata was changed while it held.
    Updated,
    /// It ended with this cause.
    Ended(Cause),
}
