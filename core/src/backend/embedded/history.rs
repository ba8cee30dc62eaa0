//! The ended calls that the store remembers for a time.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::backend::FINISHED_KEPT;
use crate::claim::Cause;
use crate::name::{ClaimId, FencingToken, LockName, Secret};

/// A hold that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub lock: LockName,
    pub token: FencingToken,
    pub cause: Cause,
    /// Its id, if a retry may look for it.
    pub id: Option<ClaimId>,
}

/// The holds that ended within the last [`FINISHED_KEPT`].
///
/// They are stored in the order of their ends, and the maps contain positions only, so that each
/// call touches little memory. In the file, too, they are keyed by their positions.
#[derive(Debug, Default)]
pub struct Finished {
    order: VecDeque<RememberedHold>,
    /// The position of the next entry; positions only grow.
    next: u64,
    by_secret: HashMap<Secret, u64>,
    by_id: HashMap<ClaimId, u64>,
}

#[derive(Debug)]
struct RememberedHold {
    position: u64,
    until: Duration,
    secret: Secret,
    ended: Ended,
}

impl Finished {
    /// The entries of a file, with their positions in it.
    pub fn restored(mut all: Vec<(u64, Secret, Ended)>, now: Duration) -> Self {
        all.sort_by_key(|(position, ..)| *position);
        let mut finished = Self::default();
        for (position, secret, ended) in all {
            finished.next = position;
            finished.insert(secret, ended, now);
        }
        finished
    }

    /// Remembers a hold and returns its position.
    pub fn insert(&mut self, secret: Secret, ended: Ended, now: Duration) -> u64 {
        let position = self.next;
        self.next += 1;
        if let Some(id) = ended.id {
            self.by_id.insert(id, position);
        }
        self.by_secret.insert(secret, position);
        self.order.push_back(RememberedHold {
            position,
            until: now + FINISHED_KEPT,
            secret,
            ended,
        });
        position
    }

    pub fn by_secret(&self, secret: &Secret) -> Option<&Ended> {
        self.at(*self.by_secret.get(secret)?)
    }

    pub fn by_id(&self, id: &ClaimId) -> Option<&Ended> {
        self.at(*self.by_id.get(id)?)
    }

    /// The end of a token's claim. A linear search, for rare requests.
    pub fn by_token(&self, lock: &LockName, token: FencingToken) -> Option<&Ended> {
        let mut all = self.order.iter().map(|remembered| &remembered.ended);
        all.find(|ended| ended.token == token && ended.lock == *lock)
    }

    fn at(&self, position: u64) -> Option<&Ended> {
        let index = self
            .order
            .binary_search_by_key(&position, |remembered| remembered.position);
        Some(&self.order.get(index.ok()?)?.ended)
    }

    /// Removes the oldest entry if its time has passed. Returns its position.
    pub fn pop_old(&mut self, now: Duration) -> Option<u64> {
        self.due().filter(|until| *until <= now)?;
        self.pop()
    }

    /// Removes the oldest entry if there are more than `limit`. Returns its position.
    pub fn pop_past(&mut self, limit: usize) -> Option<u64> {
        if self.order.len() <= limit {
            return None;
        }
        self.pop()
    }

    fn pop(&mut self) -> Option<u64> {
        let RememberedHold {
            position,
            secret,
            ended,
            ..
        } = self.order.pop_front()?;
        // A later hold of the same secret or id may have ended since.
        if self.by_secret.get(&secret) == Some(&position) {
            self.by_secret.remove(&secret);
        }
        if let Some(id) = ended.id
            && self.by_id.get(&id) == Some(&position)
        {
            self.by_id.remove(&id);
        }
        self.shrink();
        Some(position)
    }

    /// When the oldest entry expires.
    pub fn due(&self) -> Option<Duration> {
        self.order.front().map(|remembered| remembered.until)
    }

    /// Frees memory after a burst.
    fn shrink(&mut self) {
        if self.order.is_empty() && self.order.capacity() > 1024 {
            *self = Self {
                next: self.next,
                ..Self::default()
            };
        }
    }
}
