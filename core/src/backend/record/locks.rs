//! The locks that this server knows: per lock the cached record, the queue of verbs and the waiters of this server.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::contention::Contention;
use super::ends::Parts;
use super::root::LockRecord;
use super::store::{LockTime, Stamp, StoreTime, Version};
use super::verb::{Asked, Pending, Verb};
use crate::name::{CallId, ClaimId, LockName};

/// A record that was not compared with the store for so long is read again. Shorter than the time within which a commit
/// must arrive, which is shorter than the time after which an idle root is removed.
pub const FRESH: Duration = Duration::from_secs(30);
/// How many locks are cached at most, besides those that are in use.
const CAPACITY: usize = 50_000;
/// How long after a comparison an attended lock is read again at most, unless the store's messages allow for more.
const LONGEST_POLL: Duration = Duration::from_millis(250);
/// How long a commit that was never settled is remembered: as long as it may take effect, with a reserve.
const UNSETTLED_KEPT: Duration = Duration::from_secs(600);

/// A record as this server last read or wrote it.
#[derive(Debug)]
pub struct Cached {
    pub record: LockRecord,
    /// `None`: there was no root.
    pub version: Option<Version>,
    /// The clocks when it was last compared with the store.
    pub seen: Stamp,
    pub seen_at: Instant,
    /// The store's clock when it was written.
    pub written: StoreTime,
    /// The bytes of the root's body.
    pub size: usize,
    pub origin: Origin,
}

/// How a server came to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It knows nothing.
    Nothing,
    /// It takes the lock for one without a root: its first commit shows whether that is so.
    Assumed,
    /// From the store.
    Store,
}

impl Cached {
    /// What is known of a lock that was not read.
    pub fn nothing() -> Self {
        let (clock, time) = (LockTime(0), StoreTime(0));
        Self {
            record: LockRecord::default(),
            version: None,
            seen: Stamp { clock, time },
            seen_at: Instant::now(),
            written: time,
            size: 0,
            origin: Origin::Nothing,
        }
    }

    /// The lock's clock now, as this server estimates it: never ahead of the store, unless one of the two clocks is
    /// wrong.
    pub fn clock(&self) -> Duration {
        Duration::from_micros(self.seen.clock.0) + self.seen_at.elapsed()
    }

    /// Whether the lock's clock stands still until the next commit, because the store's clock went back.
    pub fn stands_still(&self) -> bool {
        self.seen.time < self.written
    }
}

/// The commits that may still take effect although they were not answered.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unsettled {
    /// One that expects this version.
    pub version: Option<Version>,
    /// One that expects no root. It is settled by a commit of this server only: a root that was found may be removed
    /// before that commit arrives.
    pub absent: bool,
    pub since: Option<Instant>,
}

impl Unsettled {
    /// Whether there is one.
    pub fn any(&self) -> bool {
        self.absent || self.version.is_some()
    }

    /// Adds one that expects this version.
    pub fn add(&mut self, expected: Option<Version>) {
        match expected {
            None => self.absent = true,
            version => self.version = version,
        }
        self.since = Some(Instant::now());
    }

    /// The root is at this version now: a commit that expects another one is dead.
    pub fn found(&mut self, version: Option<Version>) {
        if self.version != version {
            self.version = None;
        }
    }
}

/// A call of this server that waits.
#[derive(Debug, Default)]
pub struct LocalWaiter {
    /// Whether it was told to ask for its claim.
    pub told: bool,
}

/// One lock.
#[derive(Debug)]
pub struct LockEntry {
    pub name: LockName,
    pub state: Mutex<EntryState>,
    /// Notified when a verb arrives that does not only add to the queue.
    pub arrived: Notify,
}

#[derive(Debug, Default)]
pub struct EntryState {
    pub queue: VecDeque<Pending>,
    /// Whether the queue has a [`Verb::Recheck`]: a second one would find nothing new.
    pub rechecks: bool,
    /// Whether a task runs the queue.
    pub running: bool,
    /// Absent while a task runs the queue.
    pub cached: Option<Cached>,
    /// How this server fares in the races for the lock.
    pub contention: Contention,
    pub parts: Parts,
    pub unsettled: Unsettled,
    /// Whether too few replicas may have the last commit that granted or extended a lease: before the store says so again,
    /// another one is written.
    pub unconfirmed: bool,
    pub waiters: HashMap<(ClaimId, CallId), LocalWaiter>,
    /// The waiting claims that are eligible, and since when this server has seen that.
    pub stalled: HashMap<(ClaimId, CallId), Instant>,
    /// When a step that is more than an append was last seen to have been committed, or any step of another server.
    pub stepped: Option<Instant>,
}

impl EntryState {
    /// Puts a verb into the queue.
    pub fn push(&mut self, pending: Pending) {
        let is_recheck = matches!(pending.verb, Verb::Recheck);
        if !is_recheck || !std::mem::replace(&mut self.rechecks, true) {
            self.queue.push_back(pending);
        }
    }

    /// Takes the first verb out of the queue.
    pub fn pop(&mut self) -> Option<Pending> {
        let pending = self.queue.pop_front()?;
        self.rechecks &= !matches!(pending.verb, Verb::Recheck);
        Some(pending)
    }

    /// Whether nothing is lost if this lock is forgotten.
    fn may_go(&self, fresh: Duration) -> bool {
        let is_unsettled = self.unsettled.any() && self.unsettled.since.is_some_and(|at| at.elapsed() < UNSETTLED_KEPT);
        let is_fresh = |cached: &Cached| cached.origin == Origin::Store && cached.seen_at.elapsed() < fresh;
        let is_fresh = self.cached.as_ref().is_some_and(is_fresh);
        !self.running && self.queue.is_empty() && self.waiters.is_empty() && !is_unsettled && !is_fresh
    }
}

/// All locks that this server knows.
#[derive(Debug)]
pub struct Locks {
    entries: Mutex<HashMap<LockName, Arc<LockEntry>>>,
    attended: Mutex<Attended>,
    /// How soon after its last change an attended lock is read again.
    poll: Duration,
    /// Notified when a lock is due earlier than all others.
    pub earlier: Notify,
}

/// The locks with waiters or watchers here.
#[derive(Debug, Default)]
struct Attended {
    by_lock: HashMap<LockName, Attention>,
    by_time: BTreeSet<(Instant, LockName)>,
}

/// When a lock is read again.
#[derive(Debug)]
struct Attention {
    due: Instant,
    /// The version of its record when that was last compared with the store.
    version: Option<Version>,
    /// How long after a comparison that finds the same version it is read again.
    pause: Duration,
    /// When a lease ends of which another server has told.
    told: Option<Instant>,
}

impl Attended {
    fn insert(&mut self, name: LockName, attention: Attention) {
        self.by_time.insert((attention.due, name.clone()));
        self.by_lock.insert(name, attention);
    }

    fn remove(&mut self, name: &LockName) -> Option<Attention> {
        let (name, attention) = self.by_lock.remove_entry(name)?;
        self.by_time.remove(&(attention.due, name));
        Some(attention)
    }

    fn first(&self) -> Option<Instant> {
        self.by_time.first().map(|(due, _)| *due)
    }
}

impl Locks {
    /// Knows none. Attended locks are read again so soon after their last change.
    pub fn new(poll: Duration) -> Self {
        Self {
            entries: Mutex::default(),
            attended: Mutex::default(),
            poll,
            earlier: Notify::new(),
        }
    }

    /// The entry of a lock; a new one knows nothing.
    pub fn entry(&self, name: &LockName) -> Arc<LockEntry> {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get(name) {
            return Arc::clone(entry);
        }
        if entries.len() >= CAPACITY {
            Self::evict(&mut entries, Duration::ZERO);
        }
        let entry = Arc::new(LockEntry {
            name: name.clone(),
            state: Mutex::default(),
            arrived: Notify::new(),
        });
        entries.insert(name.clone(), Arc::clone(&entry));
        entry
    }

    /// Puts a verb into the queue of a lock. If no task runs that queue, one must be started for the returned entry.
    pub fn submit(&self, name: &LockName, verb: Verb) -> (Asked, Option<Arc<LockEntry>>) {
        let (pending, asked) = Pending::new(verb);
        loop {
            let entry = self.entry(name);
            let mut state = entry.state.lock();
            // It may have been evicted meanwhile, and another one made.
            if !state.running
                && !self
                    .entries
                    .lock()
                    .get(name)
                    .is_some_and(|known| Arc::ptr_eq(known, &entry))
            {
                continue;
            }
            let wakes = !pending.verb.is_append();
            state.push(pending);
            if std::mem::replace(&mut state.running, true) {
                drop(state);
                if wakes {
                    entry.arrived.notify_one();
                }
                return (asked, None);
            }
            drop(state);
            return (asked, Some(entry));
        }
    }

    /// Forgets the records that must be read again anyway.
    pub fn forget_stale(&self) {
        Self::evict(&mut self.entries.lock(), FRESH);
    }

    fn evict(entries: &mut HashMap<LockName, Arc<LockEntry>>, fresh: Duration) {
        entries.retain(|_, entry| {
            // An entry whose state is locked is in use.
            let Some(state) = entry.state.try_lock() else {
                return true;
            };
            !state.may_go(fresh)
        });
    }

    /// A lock has waiters or watchers here, and a lease on it ends at this time: it is read again then, or a while after it
    /// was compared with the store now. The longer it has not changed, the longer is that while.
    pub fn attend(&self, name: &LockName, cached: &Cached, ends: Option<Instant>) {
        let mut attended = self.attended.lock();
        let known = attended.remove(name);
        // The record may have been read before the commit of which was told.
        let told = known.as_ref().and_then(|known| known.told);
        let known = known.filter(|known| known.version == cached.version);
        let pause = known.map_or(self.poll, |known| known.pause);
        let due = ends.into_iter().chain(told).fold(cached.seen_at + pause, Instant::min);
        let version = cached.version;
        let attention = Attention {
            due,
            version,
            pause,
            told,
        };
        self.insert(&mut attended, name, attention);
    }

    /// Another server says that a lease on a lock ends at this time: it is read again then. Returns whether it has waiters or
    /// watchers here.
    pub fn look_at(&self, name: &LockName, ends: Instant) -> bool {
        let mut attended = self.attended.lock();
        let Some(mut known) = attended.remove(name) else {
            return false;
        };
        known.told = Some(ends);
        known.due = known.due.min(ends);
        self.insert(&mut attended, name, known);
        true
    }

    fn insert(&self, attended: &mut Attended, name: &LockName, attention: Attention) {
        if attended.first().is_none_or(|first| attention.due < first) {
            self.earlier.notify_one();
        }
        attended.insert(name.clone(), attention);
    }

    /// The longest time after which a lock is read again on which this server waits.
    pub fn longest_poll(&self) -> Duration {
        LONGEST_POLL.max(self.poll)
    }

    /// Whether a task runs the queue of this lock.
    pub fn is_running(&self, name: &LockName) -> bool {
        let entry = self.entries.lock().get(name).cloned();
        entry.is_some_and(|entry| entry.state.lock().running)
    }

    /// A lock has no waiters or watchers here.
    pub fn leave(&self, name: &LockName) {
        self.attended.lock().remove(name);
    }

    /// The locks with waiters or watchers here.
    pub fn attended(&self) -> Vec<LockName> {
        self.attended.lock().by_lock.keys().cloned().collect()
    }

    /// The names of the known locks whose record names this is true for.
    pub fn known(&self, is_wanted: impl Fn(&LockRecord) -> bool) -> Vec<LockName> {
        let entries: Vec<_> = self.entries.lock().values().cloned().collect();
        let wanted = |entry: &Arc<LockEntry>| {
            let state = entry.state.lock();
            state.running || state.cached.as_ref().is_some_and(|cached| is_wanted(&cached.record))
        };
        entries
            .iter()
            .filter(|entry| wanted(entry))
            .map(|entry| entry.name.clone())
            .collect()
    }

    /// When the next attended lock is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.attended.lock().first()
    }

    /// The attended locks that are due now. If one cannot be read, it is due again.
    pub fn take_due(&self, now: Instant) -> Vec<LockName> {
        let mut attended = self.attended.lock();
        let mut due = Vec::new();
        while attended.first().is_some_and(|first| first <= now)
            && let Some((_, name)) = attended.by_time.pop_first()
        {
            due.push(name);
        }
        for name in &due {
            if let Some(mut attention) = attended.by_lock.remove(name) {
                attention.pause = (2 * attention.pause).min(self.longest_poll());
                attention.told = attention.told.filter(|told| *told > now);
                let poll = now + attention.pause;
                attention.due = attention.told.map_or(poll, |told| told.min(poll));
                attended.insert(name.clone(), attention);
            }
        }
        due
    }
}
