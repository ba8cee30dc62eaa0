//! What this replica's waiting claims are told, and what of it was lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::mpsc;

use crate::backend::Notification;

/// How many wakes may wait to be read before they count as lost.
const UNREAD: usize = 16_384;

/// Where wakes go.
#[derive(Debug)]
pub struct NotificationSender {
    out: Mutex<Option<mpsc::Sender<Notification>>>,
    lost: AtomicBool,
}

impl NotificationSender {
    /// Wakes, and where they are read.
    pub fn new() -> (Self, mpsc::Receiver<Notification>) {
        let (out, heard) = mpsc::channel(UNREAD);
        let notifications = Self {
            out: Mutex::new(Some(out)),
            lost: AtomicBool::new(false),
        };
        (notifications, heard)
    }

    /// Tells a waiter; what does not fit is made good by a gap.
    pub fn send(&self, wake: Notification) {
        let out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        if out.as_ref().is_some_and(|out| out.try_send(wake).is_err()) {
            self.lost.store(true, Ordering::Release);
        }
    }

    /// Ends the stream.
    pub fn close(&self) {
        *self.out.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The stream of what is heard.
    pub fn stream(self: Arc<Self>, heard: mpsc::Receiver<Notification>) -> BoxStream<'static, Notification> {
        let next = |(notifications, mut heard): (Arc<Self>, mpsc::Receiver<Notification>)| async move {
            if notifications.lost.swap(false, Ordering::AcqRel) {
                return Some((Notification::Gap, (notifications, heard)));
            }
            let wake = heard.recv().await?;
            Some((wake, (notifications, heard)))
        };
        stream::unfold((self, heard), next).boxed()
    }
}
