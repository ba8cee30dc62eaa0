//! What the store remembers of calls that have ended, for a while: finished claims and cancel
//! marks.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use crate::backend::{FINISHED_KEPT, MARKS_KEPT};
use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, LockName, Secret};

/// A hold that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub lock: LockName,
    pub token: FencingToken,
    pub cause: Cause,
    /// Its id, where a retry may look for it.
    pub id: Option<ClaimId>,
}

/// The holds that ended within the last [`FINISHED_KEPT`].
///
/// They lie in the order of their ends, and the maps hold places only: what comes and goes with each
/// call touches as little memory as possible.
#[derive(Debug, Default)]
pub struct Finished {
    order: VecDeque<RememberedEnds>,
    /// The place of the first one in `order`; places count on for ever.
    first: u64,
    by_secret: HashMap<Secret, u64>,
    by_id: HashMap<ClaimId, u64>,
}

#[derive(Debug)]
struct RememberedEnds {
    until: Duration,
    secret: Secret,
    ended: Ended,
}

impl Finished {
    /// Those that a file remembers, each with the place that it had there.
    pub fn restored(mut all: Vec<(u64, Secret, Ended)>, now: Duration) -> Self {
        all.sort_by_key(|(place, ..)| *place);
        let mut finished = Self::default();
        // Counted so that the next one comes behind all places in the file, whatever gaps are there.
        if let Some((last, ..)) = all.last() {
            finished.first = (last + 1).saturating_sub(all.len() as u64);
        }
        for (_, secret, ended) in all {
            finished.insert(secret, ended, now);
        }
        finished
    }

    /// The place of the next one.
    pub fn next(&self) -> u64 {
        self.first + self.order.len() as u64
    }

    pub fn insert(&mut self, secret: Secret, ended: Ended, now: Duration) {
        let place = self.next();
        if let Some(id) = ended.id {
            self.by_id.insert(id, place);
        }
        self.by_secret.insert(secret, place);
        let until = now + FINISHED_KEPT;
        self.order.push_back(RememberedEnds { until, secret, ended });
    }

    pub fn by_secret(&self, secret: &Secret) -> Option<&Ended> {
        self.at(*self.by_secret.get(secret)?)
    }

    pub fn by_id(&self, id: &ClaimId) -> Option<&Ended> {
        self.at(*self.by_id.get(id)?)
    }

    /// The end of a token's claim. Looks at everything that is remembered: for rare questions.
    pub fn by_token(&self, lock: &LockName, token: FencingToken) -> Option<&Ended> {
        let mut all = self.order.iter().map(|kept| &kept.ended);
        all.find(|ended| ended.token == token && ended.lock == *lock)
    }

    fn at(&self, place: u64) -> Option<&Ended> {
        let index = usize::try_from(place.checked_sub(self.first)?).ok()?;
        self.order.get(index).map(|kept| &kept.ended)
    }

    /// Takes out the oldest one if its time has passed.
    pub fn pop_old(&mut self, now: Duration) -> Option<Secret> {
        self.due().filter(|until| *until <= now)?;
        self.pop()
    }

    /// Takes out the oldest one if there are more than `limit`.
    pub fn pop_past(&mut self, limit: usize) -> Option<Secret> {
        if self.order.len() <= limit {
            return None;
        }
        self.pop()
    }

    fn pop(&mut self) -> Option<Secret> {
        let RememberedEnds { secret, ended, .. } = self.order.pop_front()?;
        self.by_secret.remove(&secret);
        // A later hold of the same id may have ended since.
        if let Some(id) = ended.id
            && self.by_id.get(&id) == Some(&self.first)
        {
            self.by_id.remove(&id);
        }
        self.first += 1;
        self.shrink();
        Some(secret)
    }

    /// When the oldest one is forgotten.
    pub fn due(&self) -> Option<Duration> {
        self.order.front().map(|kept| kept.until)
    }

    /// Gives memory back when a burst is over.
    fn shrink(&mut self) {
        if self.order.is_empty() && self.order.capacity() > 1024 {
            *self = Self {
                first: self.first,
                ..Self::default()
            };
        }
    }
}

/// The cancel marks of the last [`MARKS_KEPT`].
#[derive(Debug, Default)]
pub struct CancelMarks {
    calls: HashSet<CallId>,
    order: VecDeque<(Duration, CallId)>,
}

impl CancelMarks {
    /// So many at most, the oldest out. An in-process call reaches the store within milliseconds, so
    /// a mark that had to go early was met long before.
    const MOST: usize = 1 << 18;

    pub fn insert(&mut self, call: CallId, now: Duration) {
        if self.calls.insert(call) {
            self.order.push_back((now + MARKS_KEPT, call));
        }
        self.purge(now);
    }

    pub fn contains(&self, call: &CallId) -> bool {
        !self.calls.is_empty() && self.calls.contains(call)
    }

    pub fn purge(&mut self, now: Duration) {
        while let Some(&(until, call)) = self.order.front() {
            if until > now && self.order.len() <= Self::MOST {
                return;
            }
            self.order.pop_front();
            self.calls.remove(&call);
        }
        // Only an empty memory comes here.
        if self.order.capacity() > 1024 {
            *self = Self::default();
        }
    }

    /// When the oldest one may go.
    pub fn due(&self) -> Option<Duration> {
        self.order.front().map(|(until, _)| *until)
    }
}
