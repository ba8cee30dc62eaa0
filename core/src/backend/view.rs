//! What a backend reports about its locks: lists, notifications and events.

use crate::claim::{Holder, Queue};
use crate::name::{ClaimId, FencingToken, LockName};
use crate::queue::Change;

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
