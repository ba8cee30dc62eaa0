//! Watches the locks that have waiters of this replica, with one etcd watch per lock. The lock is read once after its
//! watch was opened, and again every 3 s, because released versions of etcd have lost events. Only waiters that can be
//! granted are notified.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{WatchOptions, WatchStream};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use crate::backend::etcd::cluster::client::{ANSWER_BYTES, ClusterClient};
use crate::backend::etcd::cluster::{Failure, failure};
use crate::backend::etcd::data::keys::{Keys, LockKeys};
use crate::backend::etcd::data::view::{Entry, Step, View};
use crate::backend::etcd::lock_state::in_flight::Others;
use crate::backend::etcd::lock_state::notifications::NotificationSender;
use crate::backend::{NewClaim, Notification};
use crate::name::{CallId, ClaimId, LockName};

#[cfg(test)]
mod tests;

/// How soon a watch that broke is opened again.
const AGAIN: Duration = Duration::from_millis(100);
/// How often a watch checks whether it still has waiters.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// After how many of these checks the lock is read again.
const READ_EVERY: u32 = 3;

/// The watched locks of a namespace.
#[derive(Debug)]
pub struct LockWatches {
    keys: Keys,
    link: Arc<ClusterClient>,
    notifications: Arc<NotificationSender>,
    closed: CancellationToken,
    by_lock: Mutex<HashMap<LockName, Arc<Mutex<LockWatch>>>>,
}

/// A watched lock.
#[derive(Debug, Default)]
struct LockWatch {
    view: Option<View>,
    own_waiters: HashMap<ClaimId, OwnWaiter>,
}

/// A waiter of this replica.
#[derive(Debug)]
struct OwnWaiter {
    call: CallId,
    /// The revision of its record. An older view does not have that yet.
    since: i64,
    /// It was notified, or must not be.
    notified: bool,
}

impl OwnWaiter {
    fn new(call: CallId, since: i64) -> Self {
        Self {
            call,
            since,
            notified: false,
        }
    }
}

impl LockWatch {
    /// Replaces the view, unless events have made it newer.
    fn update(&mut self, view: &View) {
        if self.view.as_ref().is_none_or(|known| known.revision < view.revision) {
            self.view = Some(view.clone());
        }
    }

    /// Marks the waiters of this replica that can be granted as notified, and returns those that were not before.
    fn due(&mut self) -> Vec<ClaimId> {
        let Some(view) = &self.view else {
            return Vec::new();
        };
        let mut due = Vec::new();
        for next in view.next_without(None) {
            if let Some(own) = self.own_waiters.get_mut(&next.id).filter(|own| !own.notified) {
                own.notified = true;
                due.push(next.id);
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
        let entry = view.waiters.get(id);
        let kept = entry.is_some_and(|entry| entry.claim.hold(id).is_some_and(|hold| hold.call == own.call));
        if own.notified || kept || view.revision < own.since {
            return false;
        }
        self.own_waiters.remove(id);
        true
    }
}

impl LockWatches {
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
            by_lock: Mutex::default(),
        })
    }

    /// Registers a waiter of `view`, which is notified when it can be granted.
    pub fn join(self: &Arc<Self>, name: &LockName, waiter: &Entry, view: &View) {
        if let Some(hold) = waiter.claim.holds.first() {
            self.wait(name, waiter.id, OwnWaiter::new(hold.call, waiter.modified), Some(view));
        }
    }

    /// The same for a waiter that was just enqueued, at this revision. The watched view determines its position once it
    /// includes that revision; an older view might lack an earlier claim.
    pub fn join_behind(self: &Arc<Self>, name: &LockName, new: &NewClaim, queued: i64) {
        self.wait(name, new.id, OwnWaiter::new(new.call, queued), None);
    }

    fn wait(self: &Arc<Self>, name: &LockName, waiter: ClaimId, own: OwnWaiter, view: Option<&View>) {
        let (due, opened) = self.register(name, waiter, own, view);
        self.notify(name, due);
        if let Some(lock_watch) = opened {
            tokio::spawn(Arc::clone(self).follow(name.clone(), lock_watch));
        }
    }

    /// Registers a waiter. Returns the waiters to be notified, and the lock's watch if it is a new one.
    fn register(
        &self,
        name: &LockName,
        waiter: ClaimId,
        own: OwnWaiter,
        view: Option<&View>,
    ) -> (Vec<ClaimId>, Option<Arc<Mutex<LockWatch>>>) {
        let mut opened = None;
        // Locked to the end, because a watch without waiters may be removed at any time.
        let mut by_lock = lock(&self.by_lock);
        let watch = Arc::clone(by_lock.entry(name.clone()).or_insert_with(|| {
            let watch = Arc::default();
            opened = Some(Arc::clone(&watch));
            watch
        }));
        let mut watch = lock(&watch);
        watch.own_waiters.insert(waiter, own);
        if let Some(view) = view {
            watch.update(view);
        }
        let mut due = watch.due();
        due.extend(watch.is_lost(&waiter).then_some(waiter));
        (due, opened)
    }

    /// Removes the waiter of this call.
    pub fn part(&self, name: &LockName, id: &ClaimId, call: CallId) {
        if let Some(watch) = self.watch_of(name) {
            let own = &mut lock(&watch).own_waiters;
            if own.get(id).is_some_and(|own| own.call == call) {
                own.remove(id);
            }
        }
    }

    /// Stops the notifications of a waiter whose call is being undone. Returns the revision of the waiter's record, as
    /// far as this replica knows.
    pub fn leaving(&self, name: &LockName, id: &ClaimId, call: CallId) -> Option<i64> {
        let watch = self.watch_of(name)?;
        let mut watch = lock(&watch);
        let own = watch.own_waiters.get_mut(id).filter(|own| own.call == call)?;
        own.notified = true;
        Some(own.since)
    }

    /// This waiter, if it is known that it can be granted, and the revision that this is judged by.
    pub fn next(&self, name: &LockName, id: &ClaimId) -> Option<(Entry, i64)> {
        let watch = self.watch_of(name)?;
        let watch = lock(&watch);
        let view = watch.view.as_ref()?;
        let entry = view.next_without(None).find(|entry| entry.id == *id)?;
        Some((entry.clone(), view.semaphores_up_to()))
    }

    /// Applies the end of a holder by an answered step of this replica, whose event may arrive later.
    pub fn ended(&self, name: &LockName, holder: &Entry) {
        let Some(watch) = self.watch_of(name) else {
            return;
        };
        let due = {
            let mut watch = lock(&watch);
            if let Some(view) = &mut watch.view {
                view.end(holder);
            }
            watch.due()
        };
        self.notify(name, due);
    }

    /// Applies a grant of this replica, whose event may arrive later: a release before the event must know the holder.
    /// `judged_at` is the revision R, if the grant had the condition "no semaphore claim was granted after R".
    pub fn granted(&self, name: &LockName, holder: &Entry, judged_at: Option<i64>) {
        if let Some(watch) = self.watch_of(name)
            && let Some(view) = &mut lock(&watch).view
        {
            match judged_at {
                Some(judged_at) => view.grant_alone(holder, judged_at),
                None => view.grant(holder),
            }
        }
    }

    /// Evaluates a function of a lock's watched view, if there is one.
    pub fn ask<T>(&self, name: &LockName, question: impl FnOnce(&View) -> T) -> Option<T> {
        let watch = self.watch_of(name)?;
        lock(&watch).view.as_ref().map(question)
    }

    /// Whether a queue of `limit` claims has room for one more, judged by `view`, or else the watched view. This
    /// replica's waiters that are newer than the view, and its claims in flight, count too.
    pub fn has_room(&self, name: &LockName, view: Option<&View>, in_flight: &Others, limit: usize) -> bool {
        let Some(watch) = self.watch_of(name) else {
            return view.is_some_and(|view| has_room(view, &HashMap::new(), in_flight, limit));
        };
        let watch = lock(&watch);
        let view = view.or(watch.view.as_ref());
        view.is_some_and(|view| has_room(view, &watch.own_waiters, in_flight, limit))
    }

    /// Stops the notifications of a waiter until the guard is dropped. A release of this replica is handing the lock
    /// over to it, and the events of that may arrive before the answer.
    pub fn hand_over<'a>(&'a self, name: &'a LockName, next: ClaimId) -> HandOverGuard<'a> {
        self.set_muted(name, &next, true);
        HandOverGuard {
            watches: self,
            name,
            next,
        }
    }

    fn set_muted(&self, name: &LockName, id: &ClaimId, muted: bool) {
        let Some(watch) = self.watch_of(name) else {
            return;
        };
        let due = {
            let mut watch = lock(&watch);
            if let Some(own) = watch.own_waiters.get_mut(id) {
                own.notified = muted;
            }
            let mut due = watch.due();
            due.extend(watch.is_lost(id).then_some(*id));
            due
        };
        self.notify(name, due);
    }

    fn watch_of(&self, name: &LockName) -> Option<Arc<Mutex<LockWatch>>> {
        lock(&self.by_lock).get(name).cloned()
    }

    /// Removes all waiters of this replica, and notifies them with a [`Notification::Gap`].
    pub fn lose_all(&self) {
        for watch in lock(&self.by_lock).values() {
            lock(watch).own_waiters.clear();
        }
        self.notifications.send(Notification::Gap);
    }

    fn notify(&self, name: &LockName, claims: impl IntoIterator<Item = ClaimId>) {
        for claim in claims {
            self.notifications.send(Notification::Next(name.clone(), claim));
        }
    }

    /// Watches a lock until no waiter of this replica is left.
    async fn follow(self: Arc<Self>, name: LockName, watch: Arc<Mutex<LockWatch>>) {
        let keys = self.keys.lock(&name);
        let mut ticks = interval(CHECK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        while !self.remove_if_unused(&name, &watch) {
            if self.follow_events(&keys, &name, &watch, &mut ticks).await.is_err() {
                lock(&watch).view = None;
                sleep(AGAIN).await;
            }
        }
    }

    /// Removes the watch if it has no waiters, or the namespace is closed. True if it was removed.
    fn remove_if_unused(&self, name: &LockName, watch: &Mutex<LockWatch>) -> bool {
        let mut by_lock = lock(&self.by_lock);
        let is_unused = lock(watch).own_waiters.is_empty() || self.closed.is_cancelled();
        if is_unused {
            by_lock.remove(name);
        }
        is_unused
    }

    /// Follows one etcd watch, until it breaks or no waiter is left.
    async fn follow_events(
        &self,
        keys: &LockKeys,
        name: &LockName,
        watch: &Mutex<LockWatch>,
        ticks: &mut Interval,
    ) -> Result<(), Failure> {
        let mut events = open(&self.link, keys).await?;
        self.read(keys, name, watch).await?;
        let mut ticked = 0;
        loop {
            tokio::select! {
                message = events.message() => {
                    let message = message.map_err(|error| failure(&error))?;
                    let message = message.filter(|message| !message.canceled());
                    let message = message.ok_or_else(|| Failure::Unavailable("etcd: a watch ended".into()))?;
                    self.apply(keys, name, watch, message.events())?;
                }
                _ = ticks.tick() => {
                    if lock(watch).own_waiters.is_empty() {
                        return Ok(());
                    }
                    ticked += 1;
                    if ticked % READ_EVERY == 0 {
                        self.read(keys, name, watch).await?;
                    }
                }
            }
        }
    }

    /// Reads the lock, and notifies its waiters.
    async fn read(&self, keys: &LockKeys, name: &LockName, watch: &Mutex<LockWatch>) -> Result<(), Failure> {
        let view = View::fetch(&self.link, keys).await?;
        let due = {
            let mut watch = lock(watch);
            watch.update(&view);
            let mut due = watch.due();
            let all: Vec<_> = watch.own_waiters.keys().copied().collect();
            due.extend(all.into_iter().filter(|id| watch.is_lost(id)));
            due
        };
        self.notify(name, due);
        Ok(())
    }

    fn apply(
        &self,
        keys: &LockKeys,
        name: &LockName,
        watch: &Mutex<LockWatch>,
        events: &[etcd_client::Event],
    ) -> Result<(), Failure> {
        let mut due = Vec::new();
        {
            let mut watch = lock(watch);
            let mut touched = Vec::new();
            if let Some(view) = &mut watch.view {
                for event in events {
                    match view.follow(keys, event)? {
                        Step::Changed(id) => touched.push(id),
                        Step::LeftQueue(entry) => touched.push(entry.id),
                        Step::Queued(_) | Step::Granted(_) | Step::Ended(_) | Step::Nothing => {}
                    }
                }
            }
            due.extend(touched.into_iter().filter(|id| watch.is_lost(id)));
            due.extend(watch.due());
        }
        self.notify(name, due);
        Ok(())
    }
}

/// See [`LockWatches::has_room`].
fn has_room(view: &View, own: &HashMap<ClaimId, OwnWaiter>, in_flight: &Others, limit: usize) -> bool {
    // Far from the limit, this upper bound suffices.
    if view.len() + own.len() + in_flight.len() < limit {
        return true;
    }
    let is_new = |id: &ClaimId| view.waiters.get(id).is_none() && view.holders.get(id).is_none();
    let queued = own.iter().filter(|(_, own)| own.since > view.revision);
    let queued = queued
        .filter(|(id, _)| is_new(id) && !in_flight.contains_key(id))
        .count();
    view.len() + queued + in_flight.keys().filter(|id| is_new(id)).count() < limit
}

/// See [`LockWatches::hand_over`].
#[derive(Debug)]
pub struct HandOverGuard<'a> {
    watches: &'a LockWatches,
    name: &'a LockName,
    next: ClaimId,
}

impl Drop for HandOverGuard<'_> {
    fn drop(&mut self) {
        self.watches.set_muted(self.name, &self.next, false);
    }
}

/// Opens a watch of a lock's keys from the current revision on, and returns once etcd has created it. (Etcd serves a
/// watch from an earlier revision with a loop that runs every 100 ms.)
pub async fn open(link: &ClusterClient, keys: &LockKeys) -> Result<WatchStream, Failure> {
    let prefix = keys.all().to_owned();
    let options = WatchOptions::new().with_range(keys.behind());
    let opened = link.call(|client| async move {
        let mut watch = client.watch_client().max_decoding_message_size(ANSWER_BYTES);
        let mut stream = watch.watch(prefix, Some(options)).await?;
        let created = stream.message().await?;
        Ok((stream, created))
    });
    match opened.await? {
        (stream, Some(created)) if created.created() && !created.canceled() => Ok(stream),
        _ => Err(Failure::Unavailable("etcd: a watch was refused".into())),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
