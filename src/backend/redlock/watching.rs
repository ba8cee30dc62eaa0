//! Changes of a lock, for watchers: the difference between two inspections.
//!
//! Nodes publish that something changed, and the watcher then inspects the lock. If more than one
//! lease may have started and ended between two inspections, the watcher sends the full state.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::Core;
use super::answer::LastEnd;
use crate::backend::{BackendError, Change, ChangeKind, InspectLimit, WatchEvent};
use crate::claim::{Cause, ClaimLabels, Queue, Waiter};
use crate::name::{FencingToken, LockName};

/// For how long a watcher asks nodes to publish changes, and how often it inspects in any case.
const WATCH_TIME: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// How long after a holder's expiry the watcher inspects.
const AFTER_EXPIRY: Duration = Duration::from_millis(20);
/// The maximum number of waiters in a full state.
const STATE_LIMIT: InspectLimit = InspectLimit {
    holders: 1,
    waiters: 1_000,
};

/// The watchers by lock.
#[derive(Debug, Default)]
pub struct Watchers {
    by_lock: Mutex<HashMap<LockName, Vec<Weak<Notify>>>>,
}

impl Watchers {
    fn add(&self, lock: &LockName, notify: &Arc<Notify>) {
        let mut by_lock = self.by_lock.lock();
        let all = by_lock.entry(lock.clone()).or_default();
        all.retain(|notify| notify.strong_count() > 0);
        all.push(Arc::downgrade(notify));
    }

    fn remove_dropped(&self, lock: &LockName) {
        let mut by_lock = self.by_lock.lock();
        if let Some(all) = by_lock.get_mut(lock) {
            all.retain(|notify| notify.strong_count() > 0);
            if all.is_empty() {
                by_lock.remove(lock);
            }
        }
    }

    /// Notifies the watchers of this lock.
    pub fn changed(&self, lock: &LockName) {
        let by_lock = self.by_lock.lock();
        for notify in by_lock.get(lock).into_iter().flatten().filter_map(Weak::upgrade) {
            notify.notify_one();
        }
    }

    /// Notifies all watchers that messages may have been lost.
    pub fn gap(&self) {
        let by_lock = self.by_lock.lock();
        for notify in by_lock.values().flatten().filter_map(Weak::upgrade) {
            notify.notify_one();
        }
    }
}

/// Watches a lock: the full state, then its changes.
pub fn watch(core: Arc<Core>, lock: LockName) -> BoxStream<'static, Result<WatchEvent, BackendError>> {
    let notify = Arc::new(Notify::new());
    core.watchers.add(&lock, &notify);
    let watch_state = WatchState {
        core,
        lock,
        notify: Some(notify),
        before: None,
        poll_at: Instant::now(),
        events: VecDeque::new(),
    };
    stream::unfold(watch_state, |mut watch_state| async move {
        let event = watch_state.next().await;
        Some((event, watch_state))
    })
    .boxed()
}

/// The result of one inspection.
#[derive(Debug, Clone)]
struct SeenLock {
    queue: Queue,
    last: Option<LastEnd>,
}

struct WatchState {
    core: Arc<Core>,
    lock: LockName,
    notify: Option<Arc<Notify>>,
    before: Option<SeenLock>,
    poll_at: Instant,
    events: VecDeque<WatchEvent>,
}

impl Drop for WatchState {
    fn drop(&mut self) {
        self.notify = None;
        self.core.watchers.remove_dropped(&self.lock);
    }
}

impl WatchState {
    async fn next(&mut self) -> Result<WatchEvent, BackendError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if let (Some(notify), Some(_)) = (&self.notify, &self.before) {
                // A notification and the timeout both lead to an inspection.
                let _ = timeout_at(self.poll_at, notify.notified()).await;
            }
            self.inspect().await?;
        }
    }

    async fn inspect(&mut self) -> Result<(), BackendError> {
        let mut view = self.core.inspect(&self.lock, WATCH_TIME).await?;
        let frees_in = view.frees_in.map_or(POLL_INTERVAL, |left| left + AFTER_EXPIRY);
        self.poll_at = Instant::now() + frees_in.min(POLL_INTERVAL);
        let last = view.last.take();
        let queue = self.core.with_waiters(&self.lock, STATE_LIMIT, view);
        let now = SeenLock { queue, last };
        match self.before.replace(now.clone()) {
            None => self.events.push_back(WatchEvent::State(now.queue)),
            Some(before) => match changes(&before, &now) {
                Some(changes) => self.events.extend(changes.into_iter().map(WatchEvent::Change)),
                None => self.events.push_back(WatchEvent::State(now.queue)),
            },
        }
        Ok(())
    }
}

/// The changes between two inspections; `None` if they are not fully known.
fn changes(before: &SeenLock, now: &SeenLock) -> Option<Vec<Change>> {
    let (was, is) = (before.queue.holders.first(), now.queue.holders.first());
    let same = was.map(|one| one.token) == is.map(|one| one.token);
    let last_token = |snapshot: &SeenLock| snapshot.last.as_ref().map(|last| last.token);
    let mut log = ChangeLog {
        holders: before.queue.holder_count,
        waiters: before.queue.waiter_count,
        changes: Vec::new(),
    };
    match was {
        _ if same && last_token(before) == last_token(now) => {}
        Some(was) if !same => {
            let last = now.last.as_ref().filter(|last| last.token == was.token.get())?;
            log.holders = 0;
            log.push(ChangeKind::Ended(last.cause), was.labels(), Some(was.token));
        }
        None if !same && last_token(before) == last_token(now) => {}
        // A lease started and ended in between.
        _ => return None,
    }
    let missing = |waiter: &&Waiter, others: &Queue| !others.waiters.iter().any(|other| other.claim == waiter.claim);
    for gone in before.queue.waiters.iter().filter(|waiter| missing(waiter, &now.queue)) {
        log.waiters = log.waiters.saturating_sub(1);
        if is.is_none_or(|is| is.claim != gone.claim) {
            log.push(ChangeKind::Ended(Cause::Cancelled), gone.labels(), None);
        }
    }
    if let Some(is) = is.filter(|_| !same) {
        log.holders = 1;
        log.push(ChangeKind::Granted, is.labels(), Some(is.token));
    }
    for new in now.queue.waiters.iter().filter(|waiter| missing(waiter, &before.queue)) {
        log.waiters += 1;
        log.push(ChangeKind::Queued, new.labels(), None);
    }
    // `None` if there are more waiters than an inspection names.
    (log.waiters == now.queue.waiter_count).then_some(log.changes)
}

struct ChangeLog {
    holders: usize,
    waiters: usize,
    changes: Vec<Change>,
}

impl ChangeLog {
    fn push(&mut self, kind: ChangeKind, claim: ClaimLabels, token: Option<FencingToken>) {
        self.changes.push(Change {
            kind,
            claim,
            token,
            holders: self.holders,
            waiters: self.waiters,
        });
    }
}
