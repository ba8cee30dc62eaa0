//! The notifications of this replica's waiting claims, and the detection of lost ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::backend::Notification;

/// How many notifications can wait to be read before further ones count as lost.
const BUFFER: usize = 16_384;

/// Sends notifications.
#[derive(Debug)]
pub struct NotificationSender {
    sender: Mutex<Option<mpsc::Sender<Notification>>>,
    lost: AtomicBool,
}

impl NotificationSender {
    /// The sender, and the receiver for [`Self::stream`].
    pub fn new() -> (Self, mpsc::Receiver<Notification>) {
        let (sender, receiver) = mpsc::channel(BUFFER);
        let notifications = Self {
            sender: Mutex::new(Some(sender)),
            lost: AtomicBool::new(false),
        };
        (notifications, receiver)
    }

    /// Notifies a waiter; if the buffer is full, a gap follows later.
    pub fn send(&self, notification: Notification) {
        let sender = self.sender.lock();
        if sender
            .as_ref()
            .is_some_and(|sender| sender.try_send(notification).is_err())
        {
            self.lost.store(true, Ordering::Release);
        }
    }

    /// Ends the stream.
    pub fn close(&self) {
        *self.sender.lock() = None;
    }

    /// The stream of notifications.
    pub fn stream(self: Arc<Self>, receiver: mpsc::Receiver<Notification>) -> BoxStream<'static, Notification> {
        let next = |(notifications, mut receiver): (Arc<Self>, mpsc::Receiver<Notification>)| async move {
            if notifications.lost.swap(false, Ordering::AcqRel) {
                return Some((Notification::Gap, (notifications, receiver)));
            }
            let notification = receiver.recv().await?;
            Some((notification, (notifications, receiver)))
        };
        stream::unfold((self, receiver), next).boxed()
    }
}
