//! Tells the caller of a waiting Acquire when it is enqueued, and lets it cancel the wait.

use std::future::{pending, poll_fn};

use futures::future::BoxFuture;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Reports the progress of a call, and ends its wait on request.
#[derive(Debug, Clone)]
pub struct WaitControl {
    /// The caller's number of the call.
    pub number: u64,
    /// When the call arrived, from which its wait counts.
    pub arrived: Instant,
    /// Receives the number and the progress of the call.
    pub progress: UnboundedSender<(u64, WaitProgress)>,
    /// Ends the wait as its deadline does: the claim is removed before the call is answered. A call whose wait has ended
    /// before it begins is not sent to the store.
    pub cancelled: CancellationToken,
}

/// The progress of a call that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitProgress {
    /// The store orders it before each release that begins from now on.
    Sequenced,
    /// The store has the claim in the queue, or has answered it; may be reported several times.
    Enqueued,
}

impl WaitControl {
    /// Whether the wait was ended.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }
}

/// Reports the progress of the call.
pub(super) fn tell(control: Option<&WaitControl>, progress: WaitProgress) {
    if let Some(control) = control {
        // It fails only where nobody is interested any more.
        let _ = control.progress.send((control.number, progress));
    }
}

/// The outcome of the first step of a call. If it has a control, tells once a release takes effect after the step, which
/// `is_sequenced` knows.
pub(super) async fn sequencing<T>(
    control: Option<&WaitControl>,
    is_sequenced: impl Fn() -> bool,
    mut step: BoxFuture<'_, T>,
) -> T {
    if control.is_none() {
        return step.await;
    }
    let mut told = false;
    poll_fn(|cx| {
        let polled = step.as_mut().poll(cx);
        if polled.is_pending() && !told && is_sequenced() {
            told = true;
            tell(control, WaitProgress::Sequenced);
        }
        polled
    })
    .await
}

/// Ready when the wait was cancelled. Boxed, so that calls without a control keep nothing for it.
pub(super) async fn cancelled(control: Option<&WaitControl>) {
    match control {
        Some(control) => Box::pin(control.cancelled.cancelled()).await,
        None => pending().await,
    }
}

/// The outcome of a step; nothing if the wait was cancelled before.
pub(super) async fn unless_cancelled<T>(control: Option<&WaitControl>, step: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = step => Some(done),
        () = cancelled(control) => None,
    }
}
