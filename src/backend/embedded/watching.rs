//! The channels out of the store: notifications for this replica's waiters, changes for watchers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::mpsc;

use crate::backend::{Change, Notification, WatchEvent};
use crate::name::LockName;

/// How many notifications are buffered before further ones are replaced by a [`Notification::Gap`].
const NOTIFICATION_BUFFER: usize = 16 * 1024;
/// How many changes are buffered for a slow watcher before it must read the full state again.
const CHANGE_BUFFER: usize = 256;

/// Sends a namespace's notifications; those sent before the stream is opened are buffered.
#[derive(Debug)]
pub struct NotificationSender {
    sender: Option<mpsc::Sender<Notification>>,
    /// Present until [`Self::open`] is called.
    receiver: Option<mpsc::Receiver<Notification>>,
    lost: Arc<AtomicBool>,
}

impl Default for NotificationSender {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(NOTIFICATION_BUFFER);
        Self {
            sender: Some(sender),
            receiver: Some(receiver),
            lost: Arc::default(),
        }
    }
}

impl NotificationSender {
    /// The stream of all notifications. Only the first call returns it.
    pub fn open(&mut self) -> BoxStream<'static, Notification> {
        let Some(receiver) = self.receiver.take() else {
            return stream::empty().boxed();
        };
        let lost = Arc::clone(&self.lost);
        stream::unfold(receiver, move |mut receiver| {
            let lost = Arc::clone(&lost);
            async move {
                // Notifications are lost only while the channel is full, so another one is read
                // after the loss.
                let notification = receiver.recv().await?;
                let notification = if lost.swap(false, Ordering::AcqRel) {
                    Notification::Gap
                } else {
                    notification
                };
                Some((notification, receiver))
            }
        })
        .boxed()
    }

    pub fn send(&self, notification: Notification) {
        let Some(sender) = &self.sender else { return };
        // The loss is recorded before the second attempt: the reader may empty the channel right
        // after it was found full, and would not notice a loss that is recorded later.
        match sender.try_reserve() {
            Ok(permit) => permit.send(notification),
            Err(_) => {
                self.lost.store(true, Ordering::Release);
                // If the channel has room again, no other notification may follow to wake the
                // reader.
                let _ = sender.try_send(Notification::Gap);
            }
        }
    }

    pub fn close(&mut self) {
        self.sender = None;
    }
}

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

    /// The notifications that can be read without waiting.
    fn all(notifications: &mut BoxStream<'static, Notification>) -> Vec<Notification> {
        std::iter::from_fn(|| notifications.next().now_or_never().flatten()).collect()
    }

    #[test]
    fn notifications_beyond_the_buffer_become_one_gap() {
        let mut sender = NotificationSender::default();
        let mut notifications = sender.open();
        let is_gap = |notification: &Notification| matches!(notification, Notification::Gap);
        (0..NOTIFICATION_BUFFER).for_each(|number| sender.send(next(number)));
        assert!(!all(&mut notifications).iter().any(is_gap), "all of them fit");
        (0..=NOTIFICATION_BUFFER).for_each(|number| sender.send(next(number)));
        assert!(all(&mut notifications).iter().any(is_gap), "one was lost");
        sender.send(next(0));
        assert!(
            matches!(all(&mut notifications)[..], [Notification::Next(..)]),
            "the gap is sent once"
        );
    }
}
