//! The bounded channel through which every store notifies a replica of its waiting claims.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::stream::{self, BoxStream, Stream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::{broadcast, mpsc};

use crate::backend::Notification;

/// The channel's capacity. Notifications beyond it are replaced by one gap, such as [`Notification::Gap`].
const CAPACITY: usize = 16 * 1024;

/// What a channel tells from now on. Its reader may miss some.
pub fn told<T: Clone + Send + 'static>(channel: broadcast::Receiver<T>) -> impl Stream<Item = T> + Send + 'static {
    stream::unfold(channel, |mut channel| async move {
        loop {
            match channel.recv().await {
                Ok(one) => return Some((one, channel)),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    })
}

/// Sends a namespace's notifications. Those sent before the stream is opened are buffered.
#[derive(Debug)]
pub struct NotificationSender<T = Notification> {
    /// Absent after [`Self::close`].
    sender: Mutex<Option<mpsc::Sender<T>>>,
    /// Present until [`Self::open`].
    receiver: Mutex<Option<mpsc::Receiver<T>>>,
    lost: Arc<AtomicBool>,
    /// What says that some were lost.
    gap: T,
}

impl Default for NotificationSender {
    fn default() -> Self {
        Self::new(Notification::Gap)
    }
}

impl<T: Clone + Send + 'static> NotificationSender<T> {
    /// A channel in which this says that some were lost.
    pub fn new(gap: T) -> Self {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        Self {
            sender: Mutex::new(Some(sender)),
            receiver: Mutex::new(Some(receiver)),
            lost: Arc::default(),
            gap,
        }
    }

    /// The stream of all notifications. Only the first call gets it; later ones get an empty stream.
    pub fn open(&self) -> BoxStream<'static, T> {
        let Some(receiver) = self.receiver.lock().take() else {
            return stream::empty().boxed();
        };
        let next = |(mut receiver, lost, gap): (mpsc::Receiver<T>, Arc<AtomicBool>, T)| async move {
            // Notifications are lost only while the channel is full, so another one is read after each loss.
            let notification = receiver.recv().await?;
            let notification = match lost.swap(false, Ordering::AcqRel) {
                true => gap.clone(),
                false => notification,
            };
            Some((notification, (receiver, lost, gap)))
        };
        stream::unfold((receiver, Arc::clone(&self.lost), self.gap.clone()), next).boxed()
    }

    /// Sends a notification. If the channel is full, a gap is sent instead, as soon as it fits.
    pub fn send(&self, notification: T) {
        let sender = self.sender.lock();
        let Some(sender) = &*sender else { return };
        // The loss is recorded before the second attempt: the reader may empty the channel right after it was found
        // full, and would not notice a loss that is recorded later.
        match sender.try_reserve() {
            Ok(permit) => permit.send(notification),
            Err(_) => {
                self.lost.store(true, Ordering::Release);
                let _ = sender.try_send(self.gap.clone());
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
