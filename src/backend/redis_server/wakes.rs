//! What this replica's waiting claims are told, and what of it was lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::backend::Wake;

/// How many wakes may wait to be read before they count as lost.
const UNREAD: usize = 16_384;

/// Where wakes go.
#[derive(Debug)]
pub struct Wakes {
    out: Mutex<Option<mpsc::Sender<Wake>>>,
    lost: AtomicBool,
}

impl Wakes {
    /// Wakes, and where they are read.
    pub fn new() -> (Self, mpsc::Receiver<Wake>) {
        let (out, heard) = mpsc::channel(UNREAD);
        let wakes = Self {
            out: Mutex::new(Some(out)),
            lost: AtomicBool::new(false),
        };
        (wakes, heard)
    }

    /// Tells a waiter; what does not fit is made good by a gap.
    pub fn send(&self, wake: Wake) {
        let out = self.out.lock();
        if out.as_ref().is_some_and(|out| out.try_send(wake).is_err()) {
            self.lost.store(true, Ordering::Release);
        }
    }

    /// Ends the stream.
    pub fn close(&self) {
        *self.out.lock() = None;
    }

    /// The stream of what is heard.
    pub fn stream(self: Arc<Self>, heard: mpsc::Receiver<Wake>) -> BoxStream<'static, Wake> {
        let next = |(wakes, mut heard): (Arc<Self>, mpsc::Receiver<Wake>)| async move {
            if wakes.lost.swap(false, Ordering::AcqRel) {
                return Some((Wake::Gap, (wakes, heard)));
            }
            let wake = heard.recv().await?;
            Some((wake, (wakes, heard)))
        };
        stream::unfold((self, heard), next).boxed()
    }
}
