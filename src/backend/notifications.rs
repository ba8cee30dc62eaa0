//! The bounded channel through which every store notifies a replica of its waiting claims.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::stream::{self, BoxStream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::backend::Notification;

/// The channel's capacity. Notifications beyond it are replaced by one [`Notification::Gap`].
const CAPACITY: usize = 16 * 1024;

/// Sends a namespace's notifications. Those sent before the stream is opened are buffered.
#[derive(Debug)]
pub struct NotificationSender {
    /// Absent after [`Self::close`].
    sender: Mutex<Option<mpsc::Sender<Notification>>>,
    /// Present until [`Self::open`].
    receiver: Mutex<Option<mpsc::Receiver<Notification>>>,
    lost: Arc<AtomicBool>,
}

impl Default for NotificationSender {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        Self {
            sender: Mutex::new(Some(sender)),
            receiver: Mutex::new(Some(receiver)),
            lost: Arc::default(),
        }
    }
}

impl NotificationSender {
    /// The stream of all notifications. Only the first call gets it; later ones get an empty stream.
    pub fn open(&self) -> BoxStream<'static, Notification> {
        let Some(receiver) = self.receiver.lock().take() else {
            return stream::empty().boxed();
        };
        let next = |(mut receiver, lost): (mpsc::Receiver<Notification>, Arc<AtomicBool>)| async move {
            // Notifications are lost only while the channel is full, so another one is read after each loss.
            let notification = receiver.recv().await?;
            let notification = match lost.swap(false, Ordering::AcqRel) {
                true => Notification::Gap,
                false => notification,
            };
            Some((notification, (receiver, lost)))
        };
        stream::unfold((receiver, Arc::clone(&self.lost)), next).boxed()
    }

    /// Sends a notification. If the channel is full, a gap is sent instead, as soon as it fits.
    pub fn send(&self, notification: Notification) {
        let sender = self.sender.lock();
        let Some(sender) = &*sender else { return };
        // The loss is recorded before the second attempt: the reader may empty the channel right after it was found
        // full, and would not notice a loss that is recorded later.
        match sender.try_reserve() {
            Ok(permit) => permit.send(notification),
            Err(_) => {
                self.lost.store(true, Ordering::Release);
                let _ = sender.try_send(Notification::Gap);
            }
        }
    }

    /// Ends the stream after the notifications that were sent before.
    pub fn close(&self) {
        *self.sender.lock() = None;
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
        let notifications = NotificationSender::default();
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

    #[tokio::test]
    async fn the_stream_is_opened_once_and_ends_after_the_close() {
        let notifications = NotificationSender::default();
        notifications.send(next(1));
        let read = notifications.open();
        assert_eq!(all(&mut notifications.open()), []);
        notifications.close();
        notifications.send(next(2));
        assert_eq!(read.collect::<Vec<_>>().await, [next(1)]);
    }
}
