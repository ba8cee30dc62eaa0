//! What the caller of an Acquire that waits learns and controls meanwhile.

use std::future::pending;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Tells that the store has taken a call up, and ends its wait on request.
#[derive(Debug, Clone)]
pub(crate) struct WaitControl {
    /// The caller's number of the call.
    pub number: u64,
    /// When the call arrived, from which its wait counts.
    pub arrived: Instant,
    /// Receives the number once the store has the claim in the queue, or has answered it; maybe several times.
    pub in_effect: UnboundedSender<u64>,
    /// Ends the wait as its deadline does: the claim is removed before the call is answered. A call whose wait has ended
    /// before it begins is not sent to the store.
    pub cancelled: CancellationToken,
}

impl WaitControl {
    /// Whether the wait was ended.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }
}

/// Tells that the store has taken the call up.
pub(super) fn tell_in_effect(control: Option<&WaitControl>) {
    if let Some(control) = control {
        // It fails only where nobody is interested any more.
        let _ = control.in_effect.send(control.number);
    }
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
