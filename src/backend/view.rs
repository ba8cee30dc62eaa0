//! What a backend shows: lists, wakes and changes.

use crate::claim::{Cause, Holder, Queue};
use crate::name::{ClaimId, FencingToken, LockName, Owner};

/// How much of a queue is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InspectLimit {
    /// How many holders.
    pub holders: usize,
    /// How many waiters.
    pub waiters: usize,
}

impl InspectLimit {
    /// Every holder, and no waiter.
    pub const ALL_HOLDERS: Self = Self {
        holders: usize::MAX,
        waiters: 0,
    };

    /// As many of each.
    pub fn of_each(most: usize) -> Self {
        Self {
            holders: most,
            waiters: most,
        }
    }
}

/// Which part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// Where the page before ended, in the backend's own words.
    pub after: Option<String>,
    /// How many locks at most, at least 1.
    pub size: usize,
}

/// A page of locks in use.
#[derive(Debug, Clone, Default)]
pub struct LockPage {
    /// The locks, by name.
    pub locks: Vec<LockSummary>,
    /// Where the next page begins; nothing at the end.
    pub next: Option<String>,
}

/// A lock in use, in short.
#[derive(Debug, Clone)]
pub struct LockSummary {
    /// Its name.
    pub lock: LockName,
    /// How many claims hold it.
    pub holders: usize,
    /// How many claims wait.
    pub waiters: usize,
    /// The first holder, where one holds.
    pub first: Option<Holder>,
}

/// What a waiting claim of this replica should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// This claim should ask again ([`super::Backend::promote`]): it may be eligible, or was adopted.
    Next(LockName, ClaimId),
    /// Something changed on this lock: its first waiter here should ask again.
    Changed(LockName),
    /// The store lost this waiting claim.
    Gone(LockName, ClaimId),
    /// Wakes may have been lost: every waiter should ask again.
    Gap,
}

/// What somebody who watches a lock sees.
#[derive(Debug, Clone)]
pub enum WatchEvent {
    /// The full state: first, and after a gap.
    State(Queue),
    /// One change.
    Change(Change),
}

/// One change of a lock's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// To whose claim.
    pub owner: Owner,
    /// Its token, unless it never held.
    pub token: Option<FencingToken>,
    /// How many hold after it.
    pub holders: usize,
    /// How many wait after it.
    pub waiters: usize,
}

/// What can happen to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It began to wait.
    Queued,
    /// It was granted.
    Granted,
    /// It ended so.
    Ended(Cause),
}
