//! The channels by which watchers get the changes of locks.

use std::collections::HashMap;

use tokio::sync::mpsc;

use crate::backend::{Change, WatchEvent};
use crate::name::LockName;

/// How many changes are buffered for a slow watcher before it must read the full state again.
const CHANGE_BUFFER: usize = 256;

/// The watchers by lock.
#[derive(Debug, Default)]
pub struct Watchers {
    by_lock: HashMap<LockName, Vec<Watcher>>,
}

#[derive(Debug)]
struct Watcher {
    /// The number of the last change that its full state included.
    included: u64,
    sender: mpsc::Sender<WatchEvent>,
}

impl Watchers {
    pub fn add(&mut self, name: &LockName, included: u64) -> mpsc::Receiver<WatchEvent> {
        self.by_lock.retain(|_, watchers| {
            watchers.retain(|watcher| !watcher.sender.is_closed());
            !watchers.is_empty()
        });
        let (sender, changes) = mpsc::channel(CHANGE_BUFFER);
        self.by_lock
            .entry(name.clone())
            .or_default()
            .push(Watcher { included, sender });
        changes
    }

    pub fn any(&self, name: &LockName) -> bool {
        !self.by_lock.is_empty() && self.by_lock.contains_key(name)
    }

    /// Sends a change to all watchers whose full state did not include it. A watcher that is too
    /// slow loses its channel and reads the full state again.
    pub fn send(&mut self, name: &LockName, number: u64, change: &Change) {
        let Some(watchers) = self.by_lock.get_mut(name) else {
            return;
        };
        watchers.retain(|watcher| {
            watcher.included >= number || watcher.sender.try_send(WatchEvent::Change(change.clone())).is_ok()
        });
        if watchers.is_empty() {
            self.by_lock.remove(name);
        }
    }

    /// Closes all channels: every watcher reads the full state again.
    pub fn clear(&mut self) {
        self.by_lock.clear();
    }
}
