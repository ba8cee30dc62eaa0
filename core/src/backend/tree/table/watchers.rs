//! What watchers of a lock are told, through bounded channels: one that reads too slowly is told that it lost something.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// How many events a watcher may leave unread.
const UNREAD: usize = 4096;

/// What a watcher of a lock is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// A child of this name was created or deleted.
    Created(String),
    Deleted(String),
    /// The data of a holder of this name was changed.
    Changed(String),
    /// Events from before this connection may have been lost.
    Connected(u64),
    /// Events were lost.
    Lost,
}

/// The sending side of one watcher.
#[derive(Debug)]
pub struct Watcher {
    events: mpsc::Sender<Seen>,
    has_lost: Arc<AtomicBool>,
}

/// The events of one watcher.
#[derive(Debug)]
pub struct Events {
    events: mpsc::Receiver<Seen>,
    has_lost: Arc<AtomicBool>,
}

impl Watcher {
    pub fn new() -> (Self, Events) {
        let (sender, receiver) = mpsc::channel(UNREAD);
        let has_lost = Arc::new(AtomicBool::new(false));
        let watcher = Self {
            events: sender,
            has_lost: Arc::clone(&has_lost),
        };
        let events = Events {
            events: receiver,
            has_lost,
        };
        (watcher, events)
    }

    /// Tells it. False if nobody reads any more.
    pub fn tell(&self, seen: &Seen) -> bool {
        match self.events.try_send(seen.clone()) {
            Ok(()) => true,
            Err(TrySendError::Closed(_)) => false,
            Err(TrySendError::Full(_)) => {
                self.has_lost.store(true, Ordering::Release);
                // The reader may have emptied the channel before it could see that.
                let _ = self.events.try_send(Seen::Lost);
                true
            }
        }
    }

    pub fn is_closed(&self) -> bool {
        self.events.is_closed()
    }
}

impl Events {
    /// The next event; `None` when the namespace is closed.
    ///
    /// # Cancellation safety
    /// Nothing is lost when this is dropped.
    pub async fn next(&mut self) -> Option<Seen> {
        let seen = self.events.recv().await?;
        Some(match self.has_lost.swap(false, Ordering::AcqRel) {
            true => Seen::Lost,
            false => seen,
        })
    }

    /// Drops what has come: a list that is begun now shows it.
    pub fn clear(&mut self) {
        self.has_lost.store(false, Ordering::Release);
        while self.events.try_recv().is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_watcher_that_reads_too_slowly_is_told_that_it_lost_events() {
        let (watcher, mut events) = Watcher::new();
        for number in 0..2 * UNREAD {
            assert!(watcher.tell(&Seen::Created(number.to_string())));
        }
        assert_eq!(events.next().await, Some(Seen::Lost));
        assert_eq!(events.next().await, Some(Seen::Created("1".into())));
        events.clear();
        watcher.tell(&Seen::Connected(1));
        assert_eq!(events.next().await, Some(Seen::Connected(1)));
        drop(events);
        assert!(!watcher.tell(&Seen::Lost) && watcher.is_closed());
    }
}
