//! The lines out of the store: wakes for this replica's waiters, changes for people who watch.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::mpsc;

use crate::backend::{Change, WatchEvent, Notification};
use crate::name::LockName;

/// How many wakes wait to be read before the rest is summed up in a [`Notification::Gap`].
const WAKES: usize = 16 * 1024;
/// How many changes wait for a slow watcher before it is given the full state anew.
const CHANGES: usize = 256;

/// Where a namespace's wakes are posted, from the first one on.
#[derive(Debug)]
pub struct NotificationSender {
    line: Option<mpsc::Sender<Notification>>,
    /// Until somebody reads.
    unread: Option<mpsc::Receiver<Notification>>,
    lost: Arc<AtomicBool>,
}

impl Default for NotificationSender {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(WAKES);
        Self {
            line: Some(sender),
            unread: Some(receiver),
            lost: Arc::default(),
        }
    }
}

impl NotificationSender {
    /// The stream of all that is posted; it is had once.
    pub fn open(&mut self) -> BoxStream<'static, Notification> {
        let Some(receiver) = self.unread.take() else {
            return stream::empty().boxed();
        };
        let lost = Arc::clone(&self.lost);
        stream::unfold(receiver, move |mut receiver| {
            let lost = Arc::clone(&lost);
            async move {
                // Wakes are lost only while the line is full, so another one is read after that.
                let wake = receiver.recv().await?;
                let wake = if lost.swap(false, Ordering::AcqRel) {
                    Notification::Gap
                } else {
                    wake
                };
                Some((wake, receiver))
            }
        })
        .boxed()
    }

    pub fn send(&self, wake: Notification) {
        let Some(line) = &self.line else { return };
        // The loss is noted before the line is tried once more: the reader may empty it right after it
        // was found full, and would wait for a note that came too late.
        match line.try_reserve() {
            Ok(place) => place.send(wake),
            Err(_) => {
                self.lost.store(true, Ordering::Release);
                // If there is room by now, nothing else may come to make the reader look.
                let _ = line.try_send(Notification::Gap);
            }
        }
    }

    pub fn close(&mut self) {
        self.line = None;
    }
}

/// Who watches which lock.
#[derive(Debug, Default)]
pub struct Watchers {
    by_lock: HashMap<LockName, Vec<Watcher>>,
}

#[derive(Debug)]
struct Watcher {
    /// It has seen all changes up to this one in its full state.
    seen: u64,
    line: mpsc::Sender<WatchEvent>,
}

impl Watchers {
    pub fn add(&mut self, name: &LockName, seen: u64) -> mpsc::Receiver<WatchEvent> {
        self.by_lock.retain(|_, watchers| {
            watchers.retain(|watcher| !watcher.line.is_closed());
            !watchers.is_empty()
        });
        let (line, changes) = mpsc::channel(CHANGES);
        self.by_lock
            .entry(name.clone())
            .or_default()
            .push(Watcher { seen, line });
        changes
    }

    pub fn any(&self, name: &LockName) -> bool {
        !self.by_lock.is_empty() && self.by_lock.contains_key(name)
    }

    /// Tells a change to all who have not seen it. A watcher that is too slow loses its line, and
    /// asks for the full state again.
    pub fn send(&mut self, name: &LockName, number: u64, change: &Change) {
        let Some(watchers) = self.by_lock.get_mut(name) else {
            return;
        };
        watchers
            .retain(|watcher| watcher.seen >= number || watcher.line.try_send(WatchEvent::Change(change.clone())).is_ok());
        if watchers.is_empty() {
            self.by_lock.remove(name);
        }
    }

    /// Ends all lines: everybody asks for the full state again.
    pub fn clear(&mut self) {
        self.by_lock.clear();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::name::ClaimId;

    fn next(number: usize) -> Notification {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        Notification::Next(LockName::new("a").unwrap(), ClaimId::from_bytes(id))
    }

    /// What can be read without waiting.
    fn all(notifications: &mut BoxStream<'static, Notification>) -> Vec<Notification> {
        std::iter::from_fn(|| notifications.next().now_or_never().flatten()).collect()
    }

    #[test]
    fn wakes_that_do_not_fit_are_summed_up_in_a_gap() {
        let mut post = NotificationSender::default();
        let mut notifications = post.open();
        let is_gap = |wake: &Notification| matches!(wake, Notification::Gap);
        (0..WAKES).for_each(|number| post.send(next(number)));
        assert!(!all(&mut notifications).iter().any(is_gap), "all of them fit");
        (0..=WAKES).for_each(|number| post.send(next(number)));
        assert!(all(&mut notifications).iter().any(is_gap), "one was lost");
        post.send(next(0));
        assert!(matches!(all(&mut notifications)[..], [Notification::Next(..)]), "the gap is told once");
    }
}
