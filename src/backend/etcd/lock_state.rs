//! What this replica knows of each lock, in one table: the watched view, its own waiters, its appends in flight, and its
//! calls in their order.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::call_queue::CallQueue;
use super::cluster::client::ClusterClient;
use super::data::key_suffixes::KeySuffix;
use super::data::keys::Keys;
use super::data::view::{Entry, View};
use crate::backend::notifications::NotificationSender;
use crate::backend::{NewClaim, Notification};
use crate::name::{CallId, ClaimId, LockName, Mode};

pub mod call_queue;
#[cfg(test)]
mod tests;
pub mod watch;

/// How many claims of this replica a lock may have before its first view.
const UNSEEN: usize = 8;

/// The locks of a namespace that have calls or waiters of this replica.
#[derive(Debug)]
pub struct LockTable {
    keys: Keys,
    link: Arc<ClusterClient>,
    notifications: Arc<NotificationSender>,
    closed: CancellationToken,
    /// The start of the time of [`Self::place`].
    opened: Instant,
    locks: Mutex<HashMap<LockName, Arc<Mutex<LockState>>>>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct LockState {
    /// Kept up by a task while `is_watched`.
    view: Option<View>,
    is_watched: bool,
    /// The key suffix and the revision of the exclusive holder that this replica granted last, unless its end is known.
    held: Option<(KeySuffix, i64)>,
    own_waiters: HashMap<ClaimId, OwnWaiter>,
    /// The key suffixes of the claims that are being added to the lock.
    ///
    /// An etcd transaction cannot check the queue's length while it appends. Without these, any number of concurrent
    /// calls would pass the check of a queue with one free place. They are per replica: a queue that several replicas
    /// append to at once may exceed its limit by their appends in flight.
    in_flight: HashSet<KeySuffix>,
    acquires: CallQueue,
    /// The promotions of semaphore claims.
    promotions: CallQueue,
}

/// A waiter of this replica.
#[derive(Debug, Clone, Copy)]
pub struct OwnWaiter {
    pub call: CallId,
    pub suffix: KeySuffix,
    /// Its call has a request id.
    pub retryable: bool,
    /// The revision of its record. An older view does not have that yet.
    pub since: i64,
    /// It was notified, or must not be.
    notified: bool,
}

impl OwnWaiter {
    /// A waiter of this call, which was written at the revision `since`.
    pub fn new(new: &NewClaim, suffix: KeySuffix, since: i64) -> Self {
        Self {
            call: new.call,
            suffix,
            retryable: new.retryable,
            since,
            notified: false,
        }
    }
}

impl LockState {
    fn is_unused(&self) -> bool {
        let has_calls = !self.acquires.is_empty() || !self.promotions.is_empty();
        !self.is_watched && self.own_waiters.is_empty() && self.in_flight.is_empty() && !has_calls
    }

    /// Replaces the view, unless events have made it newer.
    fn update(&mut self, view: View) {
        if self.view.as_ref().is_none_or(|known| known.revision < view.revision) {
            self.view = Some(view);
        }
    }

    /// Marks the waiters of this replica that can be granted as notified, and returns those that were not before.
    fn due(&mut self) -> Vec<ClaimId> {
        let Some(view) = &self.view else {
            return Vec::new();
        };
        let mut due = Vec::new();
        for next in view.next_without(None) {
            let Some(id) = next.waiter_id() else { continue };
            if let Some(own) = self.own_waiters.get_mut(&id).filter(|own| !own.notified) {
                own.notified = true;
                due.push(id);
            }
        }
        due
    }

    /// Whether a waiter of this replica is gone, or was adopted by another call. If so, it is removed here: its call
    /// registers it again if it still waits, and would not remove it if it was granted meanwhile.
    fn is_lost(&mut self, id: &ClaimId) -> bool {
        let (Some(view), Some(own)) = (&self.view, self.own_waiters.get(id)) else {
            return false;
        };
        let entry = view.waiters.get(own.suffix);
        let kept = entry.is_some_and(|entry| entry.claim.holds.first().is_some_and(|hold| hold.call == own.call));
        if own.notified || kept || view.revision < own.since {
            return false;
        }
        self.own_waiters.remove(id);
        true
    }

    /// The waiters to be notified after these may have changed.
    fn due_after(&mut self, changed: impl IntoIterator<Item = ClaimId>) -> Vec<ClaimId> {
        let mut due: Vec<_> = changed.into_iter().filter(|id| self.is_lost(id)).collect();
        due.extend(self.due());
        due
    }

    /// How many claims are being added to the lock.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether a queue of `limit` claims has room for one more, judged by `view`, or else the watched view. This
    /// replica's waiters that are newer than the view, and its claims in flight, count too. Without a view, it has room for
    /// a few.
    pub fn has_room(&self, view: Option<&View>, limit: usize) -> bool {
        let Some(view) = view.or(self.view.as_ref()) else {
            return 1 + self.own_waiters.len() + self.in_flight.len() < limit.min(UNSEEN);
        };
        // Far from the limit, this upper bound suffices.
        if view.len() + self.own_waiters.len() + self.in_flight.len() < limit {
            return true;
        }
        let is_new = |suffix: &KeySuffix| view.waiters.get(*suffix).is_none() && view.holders.get(*suffix).is_none();
        let queued = self.own_waiters.values().filter(|own| own.since > view.revision);
        let queued = queued.filter(|own| is_new(&own.suffix) && !self.in_flight.contains(&own.suffix));
        view.len() + queued.count() + self.in_flight.iter().filter(|suffix| is_new(suffix)).count() < limit
    }
}

impl LockTable {
    pub fn new(
        keys: Keys,
        link: Arc<ClusterClient>,
        notifications: Arc<NotificationSender>,
        closed: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            keys,
            link,
            notifications,
            closed,
            opened: Instant::now(),
            locks: Mutex::default(),
        })
    }

    /// Evaluates a function of a lock's state, which is removed if it is unused after that.
    fn with<T>(&self, name: &LockName, change: impl FnOnce(&mut LockState) -> T) -> T {
        let mut locks = self.locks.lock();
        let state = Arc::clone(locks.entry(name.clone()).or_default());
        // Locked before the table is unlocked, so that the state is not removed in between.
        let mut locked = state.lock();
        drop(locks);
        let value = change(&mut locked);
        let is_unused = locked.is_unused();
        drop(locked);
        if is_unused {
            let mut locks = self.locks.lock();
            if locks.get(name).is_some_and(|state| state.lock().is_unused()) {
                locks.remove(name);
            }
        }
        value
    }

    /// The same for a lock that has a state. It stays, because only a watch's end makes a state with waiters unused.
    fn with_known<T>(&self, name: &LockName, change: impl FnOnce(&mut LockState) -> T) -> Option<T> {
        let state = self.locks.lock().get(name).cloned()?;
        let mut state = state.lock();
        Some(change(&mut state))
    }

    /// Evaluates a function of a lock's watched view, if there is one.
    pub fn ask<T>(&self, name: &LockName, question: impl FnOnce(&View) -> T) -> Option<T> {
        self.with_known(name, |state| state.view.as_ref().map(question))?
    }

    /// Whether acquires of this lock are in its queue of calls.
    pub fn has_queued_acquires(&self, name: &LockName) -> bool {
        self.with_known(name, |state| !state.acquires.is_empty()) == Some(true)
    }

    /// Whether an exclusive claim has to wait for a lock without a view, and there is room for it.
    ///
    /// Callers that hold for less than a round trip would otherwise each find the lock free again, after a refused grant
    /// and a read: none of them would wait, so nobody would watch the lock, and no release could hand it over.
    pub fn is_taken_unseen(&self, name: &LockName, limit: usize) -> bool {
        let is_taken = |state: &mut LockState| {
            let taken = state.held.is_some() || !state.own_waiters.is_empty();
            state.view.is_none() && taken && state.has_room(None, limit)
        };
        self.with_known(name, is_taken) == Some(true)
    }

    /// Whether waiters of this replica are known of a lock without a view. The lock is about to be watched.
    pub fn has_waiters_unseen(&self, name: &LockName) -> bool {
        let has_waiters = |state: &mut LockState| state.view.is_none() && !state.own_waiters.is_empty();
        self.with_known(name, has_waiters) == Some(true)
    }

    /// The time of a call's arrival, in nanoseconds. It orders the claims that are enqueued in one transaction, which
    /// are all of one replica.
    pub fn place(&self, arrived: Instant) -> u64 {
        let since = arrived.saturating_duration_since(self.opened).as_nanos();
        u64::try_from(since).unwrap_or(u64::MAX)
    }

    /// Reserves a place in the lock's queue for a claim with this key suffix, if `has_room`, until the guard is
    /// dropped.
    pub fn reserve<'a>(
        &'a self,
        name: &'a LockName,
        suffix: KeySuffix,
        has_room: impl FnOnce(&LockState) -> bool,
    ) -> Option<ReservedPlace<'a>> {
        let reserved = self.with(name, |state| has_room(state) && state.in_flight.insert(suffix));
        let table = self;
        reserved.then_some(ReservedPlace { table, name, suffix })
    }

    /// Registers a call's waiter of `view`, which is notified when it can be granted.
    pub fn join(self: &Arc<Self>, name: &LockName, new: &NewClaim, waiter: &Entry, view: View) {
        let own = OwnWaiter::new(new, waiter.suffix, waiter.modified);
        self.wait(name, new.id, own, Some(view));
    }

    /// The same for a waiter that was just enqueued. The watched view determines its position once it includes that
    /// revision; an older view might lack an earlier claim.
    pub fn join_behind(self: &Arc<Self>, name: &LockName, waiter: ClaimId, own: OwnWaiter) {
        self.wait(name, waiter, own, None);
    }

    fn wait(self: &Arc<Self>, name: &LockName, waiter: ClaimId, own: OwnWaiter, view: Option<View>) {
        if !self.register(name, waiter, own, view) {
            tokio::spawn(Arc::clone(self).follow(name.clone()));
        }
    }

    /// Registers a waiter. Whether the lock was watched already.
    fn register(&self, name: &LockName, waiter: ClaimId, own: OwnWaiter, view: Option<View>) -> bool {
        let (due, is_watched) = self.with(name, |state| {
            state.own_waiters.insert(waiter, own);
            if let Some(view) = view {
                state.update(view);
            }
            let mut due = state.due();
            due.extend(state.is_lost(&waiter).then_some(waiter));
            (due, std::mem::replace(&mut state.is_watched, true))
        });
        self.notify(name, due);
        is_watched
    }

    /// Removes the waiter of this call.
    pub fn remove_waiter(&self, name: &LockName, id: &ClaimId, call: CallId) {
        self.with_known(name, |state| {
            if state.own_waiters.get(id).is_some_and(|own| own.call == call) {
                state.own_waiters.remove(id);
            }
        });
    }

    /// Stops the notifications of a waiter whose call is being undone, and returns what is known of it.
    pub fn leaving(&self, name: &LockName, id: &ClaimId, call: CallId) -> Option<OwnWaiter> {
        self.with_known(name, |state| {
            let own = state.own_waiters.get_mut(id).filter(|own| own.call == call)?;
            own.notified = true;
            Some(*own)
        })?
    }

    /// This waiter, if it is known that it can be granted, and the revision that this is judged by.
    pub fn next(&self, name: &LockName, new: &NewClaim) -> Option<(Entry, i64)> {
        self.ask(name, |view| {
            let entry = view.next_without(None).find(|entry| entry.waits_for(new))?;
            Some((entry.clone(), view.semaphores_complete_to()))
        })?
    }

    /// Evaluates a function of a lock's watched view, if that has this waiter.
    pub fn ask_with<T>(&self, name: &LockName, id: &ClaimId, question: impl FnOnce(&View) -> T) -> Option<T> {
        self.with_known(name, |state| {
            let (view, own) = (state.view.as_ref()?, state.own_waiters.get(id)?);
            view.waiters.get(own.suffix).is_some().then(|| question(view))
        })?
    }

    /// Applies the end of a holder by an answered step of this replica, whose event may arrive later.
    pub fn ended(&self, name: &LockName, holder: &Entry) {
        let due = self.with_known(name, |state| {
            state.held.take_if(|held| *held == (holder.suffix, holder.created));
            if let Some(view) = &mut state.view {
                view.end(holder);
            }
            state.due()
        });
        self.notify(name, due.unwrap_or_default());
    }

    /// Applies a grant of this replica, whose event may arrive later: a release before the event must know the holder.
    /// `decided_at` is the revision R, if the grant had the condition "no semaphore claim was granted after R".
    pub fn granted(&self, name: &LockName, holder: &Entry, decided_at: Option<i64>) {
        self.with_known(name, |state| {
            let is_exclusive = holder.claim.terms.mode == Mode::Exclusive;
            state.held = is_exclusive.then_some((holder.suffix, holder.created));
            match (&mut state.view, decided_at) {
                (Some(view), Some(decided_at)) => view.grant_alone(holder, decided_at),
                (Some(view), None) => view.grant(holder),
                (None, _) => {}
            }
        });
    }

    /// Stops the notifications of a waiter until the guard is dropped. A release of this replica is handing the lock
    /// over to it, and the events of that may arrive before the answer.
    pub fn hand_over<'a>(&'a self, name: &'a LockName, next: ClaimId) -> HandOverGuard<'a> {
        self.set_muted(name, next, true);
        HandOverGuard(self, name, next)
    }

    fn set_muted(&self, name: &LockName, id: ClaimId, muted: bool) {
        let due = self.with_known(name, |state| {
            if let Some(own) = state.own_waiters.get_mut(&id) {
                own.notified = muted;
            }
            state.due_after([id])
        });
        self.notify(name, due.unwrap_or_default());
    }

    /// Removes all waiters of this replica, and notifies them with a [`Notification::Gap`].
    pub fn remove_all_waiters(&self) {
        for state in self.locks.lock().values() {
            state.lock().own_waiters.clear();
        }
        self.notifications.send(Notification::Gap);
    }

    fn notify(&self, name: &LockName, claims: Vec<ClaimId>) {
        for claim in claims {
            self.notifications.send(Notification::Next(name.clone(), claim));
        }
    }
}

/// See [`LockTable::reserve`].
#[derive(Debug)]
pub struct ReservedPlace<'a> {
    table: &'a LockTable,
    name: &'a LockName,
    suffix: KeySuffix,
}

impl Drop for ReservedPlace<'_> {
    fn drop(&mut self) {
        self.table.with(self.name, |state| state.in_flight.remove(&self.suffix));
    }
}

/// See [`LockTable::hand_over`].
#[derive(Debug)]
pub struct HandOverGuard<'a>(&'a LockTable, &'a LockName, ClaimId);

impl Drop for HandOverGuard<'_> {
    fn drop(&mut self) {
        self.0.set_muted(self.1, self.2, false);
    }
}
