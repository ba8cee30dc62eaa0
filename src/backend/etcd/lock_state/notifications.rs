//! A bounded channel of notifications for this replica's waiters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::stream::{self, BoxStream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::backend::Notification;

/// The channel's capacity. Notifications beyond it are replaced by one [`Notification::Gap`].
const CAPACITY: usize = 16 * 1024;

/// The sending end, and until [`Self::open`] also the receiving end.
#[derive(Debug)]
pub struct NotificationSender {
    channel: mpsc::Sender<Notification>,
    /// None once the stream was opened.
    unread: Mutex<Option<mpsc::Receiver<Notification>>>,
    lost: AtomicBool,
}

impl Default for NotificationSender {
    fn default() -> Self {
        let (channel, unread) = mpsc::channel(CAPACITY);
        Self {
            channel,
            unread: Mutex::new(Some(unread)),
            lost: AtomicBool::new(false),
        }
    }
}

impl NotificationSender {
    /// The stream of all notifications. Only the first call gets it; later ones get an empty stream.
    pub fn open(self: &Arc<Self>) -> BoxStream<'static, Notification> {
        let unread = self.unread.lock().take();
        let Some(unread) = unread else {
            return stream::empty().boxed();
        };
        let next = |(notifications, mut unread): (Arc<Self>, mpsc::Receiver<Notification>)| async move {
            // Notifications are lost only while the channel is full, so another one is read after each loss.
            let notification = unread.recv().await?;
            let lost = notifications.lost.swap(false, Ordering::AcqRel);
            Some((
                if lost { Notification::Gap } else { notification },
                (notifications, unread),
            ))
        };
        stream::unfold((Arc::clone(self), unread), next).boxed()
    }

    /// Sends a notification. If the channel is full, a gap is sent instead, as soon as it fits.
    pub fn send(&self, notification: Notification) {
        // The loss is noted before the second try: otherwise the reader might empty the channel in between, and not
        // notice the loss before the next notification.
        match self.channel.try_reserve() {
            Ok(slot) => slot.send(notification),
            Err(_) => {
                self.lost.store(true, Ordering::Release);
                let _ = self.channel.try_send(Notification::Gap);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::name::{ClaimId, LockName};

    fn next(number: usize) -> Notification {
        let id = (number as u128).to_be_bytes();
        Notification::Next(LockName::new("a").unwrap(), ClaimId::from_bytes(id))
    }

    /// What can be read without waiting.
    fn all(notifications: &mut BoxStream<'static, Notification>) -> Vec<Notification> {
        std::iter::from_fn(|| notifications.next().now_or_never().flatten()).collect()
    }

    #[test]
    fn notifications_beyond_the_capacity_are_replaced_by_one_gap() {
        let notifications = Arc::new(NotificationSender::default());
        let mut read = notifications.open();
        let is_gap = |sent: &Notification| matches!(sent, Notification::Gap);
        (0..CAPACITY).for_each(|number| notifications.send(next(number)));
        assert!(!all(&mut read).iter().any(is_gap), "all of them fit");
        (0..=CAPACITY).for_each(|number| notifications.send(next(number)));
        assert!(all(&mut read).iter().any(is_gap), "one notification was lost");
        notifications.send(next(0));
        assert!(
            matches!(all(&mut read)[..], [Notification::Next(..)]),
            "the gap is sent once"
        );
    }
}
