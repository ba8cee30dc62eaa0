//! What this replica's waiters should know, until it is read; bounded.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::mpsc;

use crate::backend::Notification;

/// How many wakes wait to be read before the rest is summed up in a [`Notification::Gap`].
const UNREAD: usize = 16 * 1024;

/// The line to the reader of the wakes.
#[derive(Debug)]
pub struct NotificationSender {
    line: mpsc::Sender<Notification>,
    /// Until somebody reads.
    unread: Mutex<Option<mpsc::Receiver<Notification>>>,
    lost: AtomicBool,
}

impl Default for NotificationSender {
    fn default() -> Self {
        let (line, unread) = mpsc::channel(UNREAD);
        Self {
            line,
            unread: Mutex::new(Some(unread)),
            lost: AtomicBool::new(false),
        }
    }
}

impl NotificationSender {
    /// The stream of all that is sent; it is had once.
    pub fn open(self: &Arc<Self>) -> BoxStream<'static, Notification> {
        let unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(unread) = unread else {
            return stream::empty().boxed();
        };
        let next = |(notifications, mut unread): (Arc<Self>, mpsc::Receiver<Notification>)| async move {
            // Wakes are lost only while the line is full, so another one is read after that.
            let wake = unread.recv().await?;
            let lost = notifications.lost.swap(false, Ordering::AcqRel);
            Some((if lost { Notification::Gap } else { wake }, (notifications, unread)))
        };
        stream::unfold((Arc::clone(self), unread), next).boxed()
    }

    /// Tells a waiter; what does not fit is made good by a gap.
    pub fn send(&self, wake: Notification) {
        // Noted before the line is tried once more: the reader may empty it right after it was found
        // full, and would wait for a note that came too late.
        match self.line.try_reserve() {
            Ok(place) => place.send(wake),
            Err(_) => {
                self.lost.store(true, Ordering::Release);
                let _ = self.line.try_send(Notification::Gap);
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
    fn wakes_that_do_not_fit_are_summed_up_in_a_gap() {
        let notifications = Arc::new(NotificationSender::default());
        let mut read = notifications.open();
        let is_gap = |wake: &Notification| matches!(wake, Notification::Gap);
        (0..UNREAD).for_each(|number| notifications.send(next(number)));
        assert!(!all(&mut read).iter().any(is_gap), "all of them fit");
        (0..=UNREAD).for_each(|number| notifications.send(next(number)));
        assert!(all(&mut read).iter().any(is_gap), "one was lost");
        notifications.send(next(0));
        assert!(matches!(all(&mut read)[..], [Notification::Next(..)]), "the gap is told once");
    }
}
