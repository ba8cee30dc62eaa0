//! Changes of a lock, for people who watch: what differs between two looks.
//!
//! Nodes publish that something changed, and the watcher looks. Where more than one lease may have
//! come and gone between two looks, the full state is told.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::Core;
use super::answer::LastEnd;
use crate::backend::{BackendError, Change, ChangeKind, InspectLimit, WatchEvent};
use crate::claim::{Cause, Queue, Waiter};
use crate::name::{FencingToken, LockName, Owner};

/// For how long one says that one watches, and how often one looks whatever is published.
const WATCHED: Duration = Duration::from_secs(20);
const AGAIN: Duration = Duration::from_secs(2);
/// How long after a holder's time one looks.
const PAST_THE_END: Duration = Duration::from_millis(20);
/// How many waiters a state names at most.
const MOST: InspectLimit = InspectLimit {
    holders: 1,
    waiters: 1_000,
};

/// Who watches which lock.
#[derive(Debug, Default)]
pub struct Watchers {
    by_lock: Mutex<HashMap<LockName, Vec<Weak<Notify>>>>,
}

impl Watchers {
    fn add(&self, lock: &LockName, bell: &Arc<Notify>) {
        let mut by_lock = self.by_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let bells = by_lock.entry(lock.clone()).or_default();
        bells.retain(|bell| bell.strong_count() > 0);
        bells.push(Arc::downgrade(bell));
    }

    fn drop_dead(&self, lock: &LockName) {
        let mut by_lock = self.by_lock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bells) = by_lock.get_mut(lock) {
            bells.retain(|bell| bell.strong_count() > 0);
            if bells.is_empty() {
                by_lock.remove(lock);
            }
        }
    }

    /// Something changed on this lock.
    pub fn changed(&self, lock: &LockName) {
        let by_lock = self.by_lock.lock().unwrap_or_else(PoisonError::into_inner);
        for bell in by_lock.get(lock).into_iter().flatten().filter_map(Weak::upgrade) {
            bell.notify_one();
        }
    }

    /// Something may have changed on any.
    pub fn gap(&self) {
        let by_lock = self.by_lock.lock().unwrap_or_else(PoisonError::into_inner);
        for bell in by_lock.values().flatten().filter_map(Weak::upgrade) {
            bell.notify_one();
        }
    }
}

/// Watches a lock: the state, then its changes.
pub fn watch(core: Arc<Core>, lock: LockName) -> BoxStream<'static, Result<WatchEvent, BackendError>> {
    let bell = Arc::new(Notify::new());
    core.watchers.add(&lock, &bell);
    let watching = Watching {
        core,
        lock,
        bell: Some(bell),
        before: None,
        again: Instant::now(),
        told: VecDeque::new(),
    };
    stream::unfold(watching, |mut watching| async move {
        let seen = watching.next().await;
        Some((seen, watching))
    })
    .boxed()
}

/// What one look showed.
#[derive(Debug, Clone)]
struct Snapshot {
    queue: Queue,
    last: Option<LastEnd>,
}

struct Watching {
    core: Arc<Core>,
    lock: LockName,
    bell: Option<Arc<Notify>>,
    before: Option<Snapshot>,
    again: Instant,
    told: VecDeque<WatchEvent>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.bell = None;
        self.core.watchers.drop_dead(&self.lock);
    }
}

impl Watching {
    async fn next(&mut self) -> Result<WatchEvent, BackendError> {
        loop {
            if let Some(seen) = self.told.pop_front() {
                return Ok(seen);
            }
            if let (Some(bell), Some(_)) = (&self.bell, &self.before) {
                // Either way it is time to look.
                let _ = timeout_at(self.again, bell.notified()).await;
            }
            self.inspect().await?;
        }
    }

    async fn inspect(&mut self) -> Result<(), BackendError> {
        let mut look = self.core.inspect(&self.lock, WATCHED).await?;
        let frees_in = look.frees_in.map_or(AGAIN, |left| left + PAST_THE_END);
        self.again = Instant::now() + frees_in.min(AGAIN);
        let last = look.last.take();
        let queue = self.core.with_waiters(&self.lock, MOST, look);
        let now = Snapshot { queue, last };
        match self.before.replace(now.clone()) {
            None => self.told.push_back(WatchEvent::State(now.queue)),
            Some(before) => match changes(&before, &now) {
                Some(changes) => self.told.extend(changes.into_iter().map(WatchEvent::Change)),
                None => self.told.push_back(WatchEvent::State(now.queue)),
            },
        }
        Ok(())
    }
}

/// What happened between two looks; nothing where that cannot be said in full.
fn changes(before: &Snapshot, now: &Snapshot) -> Option<Vec<Change>> {
    let (was, is) = (before.queue.holders.first(), now.queue.holders.first());
    let same = was.map(|one| one.token) == is.map(|one| one.token);
    let last_token = |shot: &Snapshot| shot.last.as_ref().map(|last| last.token);
    let mut story = Story {
        holders: before.queue.holder_count,
        waiters: before.queue.waiter_count,
        told: Vec::new(),
    };
    match was {
        _ if same && last_token(before) == last_token(now) => {}
        Some(was) if !same => {
            let last = now.last.as_ref().filter(|last| last.token == was.token.get())?;
            story.holders = 0;
            story.tell(ChangeKind::Ended(last.cause), &was.owner, Some(was.token));
        }
        None if !same && last_token(before) == last_token(now) => {}
        // A lease came and went.
        _ => return None,
    }
    let missing = |waiter: &&Waiter, others: &Queue| !others.waiters.iter().any(|other| other.claim == waiter.claim);
    for gone in before.queue.waiters.iter().filter(|waiter| missing(waiter, &now.queue)) {
        story.waiters = story.waiters.saturating_sub(1);
        if is.is_none_or(|is| is.claim != gone.claim) {
            story.tell(ChangeKind::Ended(Cause::Left), &gone.owner, None);
        }
    }
    if let Some(is) = is.filter(|_| !same) {
        story.holders = 1;
        story.tell(ChangeKind::Granted, &is.owner, Some(is.token));
    }
    for new in now.queue.waiters.iter().filter(|waiter| missing(waiter, &before.queue)) {
        story.waiters += 1;
        story.tell(ChangeKind::Queued, &new.owner, None);
    }
    // More waiters than a look names.
    (story.waiters == now.queue.waiter_count).then_some(story.told)
}

struct Story {
    holders: usize,
    waiters: usize,
    told: Vec<Change>,
}

impl Story {
    fn tell(&mut self, kind: ChangeKind, owner: &Owner, token: Option<FencingToken>) {
        self.told.push(Change {
            kind,
            owner: owner.clone(),
            token,
            holders: self.holders,
            waiters: self.waiters,
        });
    }
}
