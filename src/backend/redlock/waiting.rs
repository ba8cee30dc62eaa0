//! This replica's waiters: one queue per lock, of which only the first waiter attempts to acquire.
//!
//! The nodes do not know the waiters; they only know that the end of the lease is to be published. A
//! timer notifies the first waiter when a holder's TTL has run out: no node publishes an expiry.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::Core;
use super::answer::{with_drift, without_drift};
use crate::backend::clock::wall;
use crate::backend::notifications::NotificationSender;
use crate::backend::{AcquireOutcome, CLAIM_LIMIT, Grant, NewClaim, Notification, QueuePosition, Refusal};
use crate::claim::{Queue, Waiter};
use crate::name::{CallId, ClaimId, LockName, Mode};

#[cfg(test)]
mod tests;

/// How long after a holder's expiry the first waiter is notified.
const AFTER_EXPIRY: Duration = Duration::from_millis(5);

/// The minimum wait that is reported to a waiter.
const MIN_WAIT: Duration = Duration::from_millis(1);

/// One waiting call.
#[derive(Debug)]
struct WaitingCall {
    claim: NewClaim,
    /// The number of its last attempt.
    round: u32,
    /// Whether a node may know of it.
    attempted: bool,
    since: SystemTime,
}

/// The waiters of one lock, by position.
#[derive(Debug, Default)]
struct LockWaiters {
    queue: BTreeMap<u64, WaitingCall>,
    /// The call that attempts to acquire now; other calls of this replica wait meanwhile.
    contender: Option<CallId>,
    /// Whether the lock may have become free since that attempt began.
    changed: bool,
    /// The last token that this replica was granted while others wait here.
    last_token: u64,
    frees_at: Option<Instant>,
}

impl LockWaiters {
    fn begin(&mut self, call: CallId) {
        (self.contender, self.changed) = (Some(call), false);
    }

    fn first(&self) -> Option<ClaimId> {
        self.queue.values().next().map(|first| first.claim.id)
    }

    fn position_of(&self, call: CallId) -> Option<u64> {
        self.queue
            .iter()
            .find(|(_, entry)| entry.claim.call == call)
            .map(|(position, _)| *position)
    }

    fn ahead(&self, position: u64) -> QueuePosition {
        QueuePosition {
            position,
            // Without the drift allowance, like the TTL of the lease.
            frees_in: self
                .frees_at
                .map(|at| without_drift(at.saturating_duration_since(Instant::now())).max(MIN_WAIT)),
        }
    }
}

#[derive(Debug, Default)]
struct AllWaiters {
    by_lock: HashMap<LockName, LockWaiters>,
    last_position: u64,
    waiting: u32,
}

/// The waiters of all locks of a namespace.
#[derive(Debug)]
pub struct Waiting {
    state: Mutex<AllWaiters>,
    notifications: Arc<NotificationSender>,
    timer_changed: Notify,
}

/// The next action of a new or retrying call.
pub enum NextAction<'a> {
    /// Attempt to acquire, because no other call of this replica does.
    Contend(AttemptPermit<'a>),
    /// Wait behind other calls of this replica.
    Wait(QueuePosition),
    /// The call cannot wait either.
    Refused(Refusal),
    /// The call is not in the queue.
    Unknown,
}

/// The permit to attempt to acquire, held by one call of a lock until it is dropped.
pub struct AttemptPermit<'a> {
    waiting: &'a Waiting,
    lock: LockName,
    call: CallId,
    position: u64,
    /// The number of the next attempt.
    pub round: u32,
    /// Whether the call was not in the queue before.
    is_new: bool,
    /// Whether the nodes were informed that others wait behind it.
    awaited: bool,
    finished: bool,
}

impl Waiting {
    /// No waiters.
    pub fn new(notifications: Arc<NotificationSender>) -> Self {
        Self {
            state: Mutex::default(),
            notifications,
            timer_changed: Notify::new(),
        }
    }

    /// Decides about a new call that would wait.
    pub fn acquire(&self, lock: &LockName, claim: &NewClaim) -> NextAction<'_> {
        let mut state = self.state.lock();
        if state.waiting >= CLAIM_LIMIT {
            return NextAction::Refused(Refusal::StoreFull { limit: CLAIM_LIMIT });
        }
        state.last_position += 1;
        let position = state.last_position;
        let waiters = state.by_lock.entry(lock.clone()).or_default();
        if waiters.queue.is_empty() && waiters.contender.is_none() {
            waiters.begin(claim.call);
            return NextAction::Contend(self.permit(lock, claim.call, position, None));
        }
        // The holder counts too.
        let limit = claim.limits.queue;
        let count = waiters.queue.len() + 1;
        if u32::try_from(count).is_ok_and(|count| count >= limit) {
            return NextAction::Refused(Refusal::Full { limit });
        }
        waiters.queue.insert(position, entry(claim, false));
        let ahead = waiters.ahead(position);
        state.waiting += 1;
        NextAction::Wait(ahead)
    }

    /// Decides about a new call that would not wait: `None` if other calls are ahead of it.
    pub fn try_once(&self, lock: &LockName, claim: &NewClaim) -> Option<AttemptPermit<'_>> {
        let mut state = self.state.lock();
        state.last_position += 1;
        let position = state.last_position;
        let waiters = state.by_lock.entry(lock.clone()).or_default();
        if !waiters.queue.is_empty() || waiters.contender.is_some() {
            return None;
        }
        waiters.begin(claim.call);
        Some(self.permit(lock, claim.call, position, None))
    }

    /// Decides about a call that retries.
    pub fn retry(&self, lock: &LockName, call: CallId) -> NextAction<'_> {
        let mut state = self.state.lock();
        let Some(waiters) = state.by_lock.get_mut(lock) else {
            return NextAction::Unknown;
        };
        let Some(position) = waiters.position_of(call) else {
            return NextAction::Unknown;
        };
        let first = waiters.queue.first_entry().filter(|first| *first.key() == position);
        match first {
            Some(mut first) if waiters.contender.is_none() => {
                let entry = first.get_mut();
                entry.round += 1;
                entry.attempted = true;
                let round = entry.round;
                waiters.begin(call);
                NextAction::Contend(self.permit(lock, call, position, Some(round)))
            }
            _ => NextAction::Wait(waiters.ahead(position)),
        }
    }

    /// `round` is absent for a call that is not in the queue.
    fn permit(&self, lock: &LockName, call: CallId, position: u64, round: Option<u32>) -> AttemptPermit<'_> {
        AttemptPermit {
            waiting: self,
            lock: lock.clone(),
            call,
            position,
            round: round.unwrap_or(0),
            is_new: round.is_none(),
            awaited: false,
            finished: false,
        }
    }

    fn notify(&self, lock: &LockName, next: Option<ClaimId>) {
        if let Some(next) = next {
            self.notifications.send(Notification::Next(lock.clone(), next));
        }
    }

    /// Removes a waiting call. Returns whether it has attempted to acquire, if it was in the queue.
    pub fn release(&self, lock: &LockName, call: CallId) -> Option<bool> {
        let mut state = self.state.lock();
        let waiters = state.by_lock.get_mut(lock)?;
        let position = waiters.position_of(call)?;
        let was_first = waiters.queue.keys().next() == Some(&position);
        let removed = waiters.queue.remove(&position)?;
        let next = waiters.first().filter(|_| was_first);
        remove_if_idle(&mut state, lock);
        state.waiting = state.waiting.saturating_sub(1);
        drop(state);
        self.notify(lock, next);
        Some(removed.attempted)
    }

    /// Notifies the first waiter that a lease with this token, or an unknown one, has ended at a node.
    pub fn freed(&self, lock: &LockName, token: Option<u64>) {
        let mut state = self.state.lock();
        let Some(waiters) = state.by_lock.get_mut(lock) else {
            return;
        };
        // This replica has been granted the lock since.
        if token.is_some_and(|token| token < waiters.last_token) {
            return;
        }
        waiters.frees_at = None;
        // The current attempt may have replies from before.
        waiters.changed = true;
        self.notify(lock, waiters.first());
    }

    /// Notifies all waiters that they may have missed a message.
    pub fn gap(&self) {
        let mut state = self.state.lock();
        for waiters in state.by_lock.values_mut() {
            waiters.changed = true;
        }
        if state.waiting > 0 {
            self.notifications.send(Notification::Gap);
        }
    }

    /// Adds this replica's waiters to a queue.
    pub fn add_to(&self, lock: &LockName, limit: usize, queue: &mut Queue) {
        let state = self.state.lock();
        let Some(waiters) = state.by_lock.get(lock) else { return };
        queue.waiter_count = waiters.queue.len();
        queue.waiters = waiters.queue.values().take(limit).map(waiter).collect();
    }

    /// The locks with waiters here whose names begin with `prefix`.
    pub fn names(&self, prefix: &str) -> Vec<LockName> {
        let state = self.state.lock();
        let waited = state.by_lock.iter().filter(|(_, waiters)| !waiters.queue.is_empty());
        waited
            .map(|(lock, _)| lock)
            .filter(|lock| lock.as_str().starts_with(prefix))
            .cloned()
            .collect()
    }

    /// Notifies the first waiter of each lock whose holder expired. Returns the next expiry.
    fn notify_expired(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.state.lock();
        let mut next = None;
        for (lock, waiters) in &mut state.by_lock {
            let Some(at) = waiters.frees_at.map(|at| at + AFTER_EXPIRY) else {
                continue;
            };
            if at > now {
                next = Some(next.map_or(at, |next: Instant| next.min(at)));
                continue;
            }
            waiters.frees_at = None;
            self.notify(lock, waiters.first());
        }
        next
    }
}

impl AttemptPermit<'_> {
    /// Enqueues the call after a failed attempt; it is notified when the lock may be free. A call
    /// that was removed from the queue meanwhile stays out of it.
    pub fn enqueue(mut self, claim: &NewClaim, frees_in: Option<Duration>) -> AcquireOutcome {
        self.finished = true;
        let mut state = self.waiting.state.lock();
        let Some(waiters) = state.by_lock.get_mut(&self.lock) else {
            return AcquireOutcome::Gone;
        };
        waiters.contender = None;
        let frees_in = if waiters.changed { Some(MIN_WAIT) } else { frees_in };
        waiters.frees_at = frees_in.map(|left| Instant::now() + left);
        let known = waiters.queue.contains_key(&self.position);
        let limit = claim.limits.queue;
        let is_full = || u32::try_from(waiters.queue.len() + 1).is_ok_and(|count| count >= limit);
        // The first waiter could not attempt meanwhile.
        if !known && (!self.is_new || is_full()) {
            let next = waiters.first();
            remove_if_idle(&mut state, &self.lock);
            drop(state);
            self.waiting.notify(&self.lock, next);
            return match self.is_new {
                true => AcquireOutcome::Refused(Refusal::Full { limit }),
                false => AcquireOutcome::Cancelled,
            };
        }
        waiters.queue.entry(self.position).or_insert_with(|| entry(claim, true));
        if let Some(entry) = waiters.queue.get_mut(&self.position) {
            entry.round = entry.round.max(self.round);
        }
        let ahead = waiters.ahead(self.position);
        state.waiting += u32::from(!known);
        drop(state);
        self.waiting.timer_changed.notify_one();
        AcquireOutcome::Waiting(ahead)
    }

    /// Whether other calls of this replica wait behind this one; the attempt informs the nodes.
    pub fn is_awaited(&mut self) -> bool {
        let state = self.waiting.state.lock();
        let waiters = state.by_lock.get(&self.lock);
        self.awaited = waiters.is_some_and(|waiters| waiters.queue.keys().any(|position| *position != self.position));
        self.awaited
    }

    /// Removes the call, which holds or has ended. The others wait for the end of its lease.
    pub fn finish(mut self, held: Option<&Grant>) {
        self.finished = true;
        let mut state = self.waiting.state.lock();
        let Some(waiters) = state.by_lock.get_mut(&self.lock) else {
            return;
        };
        waiters.contender = None;
        waiters.frees_at = held.map(|grant| Instant::now() + with_drift(grant.ttl));
        waiters.last_token = held.map_or(waiters.last_token, |grant| grant.token.get());
        let known = waiters.queue.remove(&self.position).is_some();
        let next = waiters.first();
        remove_if_idle(&mut state, &self.lock);
        state.waiting = state.waiting.saturating_sub(u32::from(known));
        drop(state);
        if next.is_some() {
            self.waiting.timer_changed.notify_one();
        }
        // A waiter that arrived after the attempt was sent is unknown to the nodes: its own attempt informs them.
        let next = next.filter(|_| held.is_none() || !self.awaited);
        self.waiting.notify(&self.lock, next);
    }

    /// Counts one more attempt of the same call.
    pub fn next_round(&mut self) -> u32 {
        self.round += 1;
        if let Some(waiters) = self.waiting.state.lock().by_lock.get_mut(&self.lock)
            && let Some(entry) = waiters.queue.get_mut(&self.position)
        {
            entry.round = self.round;
        }
        self.round
    }
}

impl Drop for AttemptPermit<'_> {
    /// The attempt was dropped or failed with a store error: the first waiter may attempt next. If
    /// that is this call itself, it is not notified; it retries after its own back-off.
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let mut state = self.waiting.state.lock();
        let Some(waiters) = state.by_lock.get_mut(&self.lock) else {
            return;
        };
        if waiters.contender == Some(self.call) {
            waiters.contender = None;
        }
        let first = waiters.queue.values().next();
        let next = first
            .filter(|first| first.claim.call != self.call)
            .map(|first| first.claim.id);
        remove_if_idle(&mut state, &self.lock);
        drop(state);
        self.waiting.notify(&self.lock, next);
    }
}

fn entry(claim: &NewClaim, attempted: bool) -> WaitingCall {
    WaitingCall {
        claim: claim.clone(),
        round: 0,
        attempted,
        since: wall(),
    }
}

fn waiter(entry: &WaitingCall) -> Waiter {
    let claim = &entry.claim;
    Waiter {
        claim: claim.id,
        owner: claim.owner.clone(),
        identity: claim.identity.clone(),
        mode: Mode::Exclusive,
        metadata: claim.metadata.clone(),
        since: entry.since,
    }
}

fn remove_if_idle(state: &mut AllWaiters, lock: &LockName) {
    let idle = |waiters: &LockWaiters| waiters.queue.is_empty() && waiters.contender.is_none();
    if state.by_lock.get(lock).is_some_and(idle) {
        state.by_lock.remove(lock);
    }
}

/// Notifies first waiters of expired holders, until the namespace is closed.
pub async fn notify_at_expiry(core: Weak<Core>) {
    while let Some(core) = core.upgrade() {
        let next = core.waiting.notify_expired();
        // The sleeping task does not keep the core alive.
        let far = Instant::now() + Duration::from_secs(1);
        tokio::select! {
            () = sleep_until(next.map_or(far, |next| next.min(far))) => {}
            () = core.waiting.timer_changed.notified() => {}
        }
    }
}
