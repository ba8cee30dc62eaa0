//! The watchers of this server: they get the changes of a lock in their order, or its whole state again.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::backend::{Change, WatchEvent};
use crate::name::LockName;

/// How many changes are buffered for a slow watcher before it must read the full state again.
const CHANGE_BUFFER: usize = 256;
/// How long the changes of a commit may come after those of a later one.
const GAP: Duration = Duration::from_millis(500);

/// The watchers by lock.
#[derive(Debug, Default)]
pub struct Watchers(Mutex<HashMap<LockName, LockWatchers>>);

#[derive(Debug)]
struct LockWatchers {
    /// The number of the last change that was passed on.
    passed: u64,
    /// Changes that came before earlier ones, by the number of the change before them.
    early: BTreeMap<u64, Vec<Change>>,
    /// Since when changes are missing.
    gap_since: Option<Instant>,
    watchers: Vec<Watcher>,
}

#[derive(Debug)]
struct Watcher {
    /// The number of the last change that its full state included.
    included: u64,
    sender: mpsc::Sender<WatchEvent>,
}

impl Watchers {
    /// Adds a watcher whose full state includes the changes up to this one.
    pub fn add(&self, lock: &LockName, included: u64) -> mpsc::Receiver<WatchEvent> {
        let (sender, changes) = mpsc::channel(CHANGE_BUFFER);
        let mut all = self.0.lock();
        let of_lock = all.entry(lock.clone()).or_insert_with(|| LockWatchers {
            passed: included,
            early: BTreeMap::new(),
            gap_since: None,
            watchers: Vec::new(),
        });
        of_lock.watchers.push(Watcher { included, sender });
        changes
    }

    /// Whether anybody watches this lock.
    pub fn any(&self, lock: &LockName) -> bool {
        let mut all = self.0.lock();
        let Some(of_lock) = all.get_mut(lock) else { return false };
        of_lock.watchers.retain(|watcher| !watcher.sender.is_closed());
        if of_lock.watchers.is_empty() {
            all.remove(lock);
            return false;
        }
        true
    }

    /// Passes on the changes after this number, once those before have come.
    pub fn changed(&self, lock: &LockName, after: u64, changes: Vec<Change>) {
        let mut all = self.0.lock();
        if let Some(of_lock) = all.get_mut(lock) {
            of_lock.early.insert(after, changes);
            of_lock.pass();
        }
    }

    /// The lock has had so many changes.
    pub fn reached(&self, lock: &LockName, changes: u64) {
        let mut all = self.0.lock();
        let Some(of_lock) = all.get_mut(lock) else { return };
        if changes > of_lock.passed {
            of_lock.gap_since.get_or_insert_with(Instant::now);
        } else if changes < of_lock.passed {
            // The store has gone back to an earlier state, or the root was made anew.
            all.remove(lock);
        }
    }

    /// Ends the channels of the locks whose changes are missing for too long: their watchers read the full state again.
    pub fn end_gaps(&self) {
        let is_whole = |of_lock: &LockWatchers| of_lock.gap_since.is_none_or(|since| since.elapsed() < GAP);
        self.0
            .lock()
            .retain(|_, of_lock| is_whole(of_lock) && !of_lock.watchers.is_empty());
    }

    /// Ends all channels.
    pub fn clear(&self) {
        self.0.lock().clear();
    }
}

impl LockWatchers {
    fn pass(&mut self) {
        while let Some(first) = self.early.first_entry() {
            let after = *first.key();
            if after > self.passed {
                self.gap_since.get_or_insert_with(Instant::now);
                return;
            }
            let changes = first.remove();
            let to = after + changes.len() as u64;
            for (number, change) in (after + 1..).zip(changes).filter(|(number, _)| *number > self.passed) {
                // A watcher that is too slow loses its channel, and reads the full state again.
                self.watchers.retain(|watcher| {
                    watcher.included >= number || watcher.sender.try_send(WatchEvent::Change(change.clone())).is_ok()
                });
            }
            self.passed = self.passed.max(to);
        }
        self.gap_since = None;
    }
}
