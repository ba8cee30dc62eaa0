//! Undoes the claim of a call that ended before its response was delivered.
//!
//! Only an outcome that is unknown ([`BackendError::Unavailable`](crate::backend::BackendError)) is undone, again and
//! again until the store answers. A step that was not sent, or was refused, has no effect and no undo: clients that
//! retry through an outage would otherwise leave one task each.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::NamespaceState;
use crate::backend::{BackendError, Health, NewClaim, ReleaseOutcome, ReleaseTarget, Released};
use crate::backoff::Backoff;
use crate::claim::Cause;
use crate::error::Error;
use crate::name::{CallId, ClaimId, LockName};

/// The pauses between attempts on a failed store whose health does not change.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));

/// How many undos of a namespace may have failed before Acquires are refused. More than the calls that a server has
/// open by default, so that an outage alone does not reach it.
pub(super) const MAX_FAILED_UNDOS: usize = if cfg!(test) { 100 } else { 100_000 };

/// How long the place of a wait is kept that the server ended.
const PLACE_KEPT: Duration = Duration::from_secs(5);

/// The places that are kept of waits that the server ended.
#[derive(Debug, Default)]
pub(super) struct KeptPlaces {
    /// The end of the drain: no place is kept longer.
    pub drain_end: Option<Instant>,
    /// When the last of them is over, unless a retry has gone on in it before.
    pub last: Option<Instant>,
}

/// Counts an undo that has failed at least once, until it is dropped.
struct FailedUndo<'a>(&'a AtomicUsize);

impl<'a> FailedUndo<'a> {
    fn count(all: &'a AtomicUsize) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Self(all)
    }
}

impl Drop for FailedUndo<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Undoes a call when dropped: removes its claim from the queue or releases its grant, unless a retry has adopted it.
/// The undo runs in a task of its own, so that it outlives the call.
#[derive(Debug)]
pub struct Undo {
    state: Arc<NamespaceState>,
    call: CallToUndo,
    armed: bool,
    place: Option<Box<Place>>,
}

/// The place of a waiting call: if the server ends the wait, a retry of the request may go on in it.
#[derive(Debug)]
pub struct Place {
    /// When the wait ends.
    pub deadline: Instant,
    /// Ends the waits of the call's connection.
    pub ending: Option<CancellationToken>,
}

/// The ids that identify the call to undo.
#[derive(Debug, Clone)]
struct CallToUndo {
    lock: LockName,
    claim: ClaimId,
    call: CallId,
}

impl Undo {
    /// Creates an undo that runs when it is dropped.
    pub fn armed(state: &Arc<NamespaceState>, lock: &LockName, claim: &NewClaim) -> Self {
        Self {
            state: Arc::clone(state),
            call: CallToUndo {
                lock: lock.clone(),
                claim: claim.id,
                call: claim.call,
            },
            armed: true,
            place: None,
        }
    }

    /// The same undo, which keeps this place for a while if the server ends the wait.
    pub fn keeping(mut self, place: Option<Place>) -> Self {
        self.place = place.map(Box::new);
        self
    }

    /// The same undo, of a call that does not wait any more.
    pub fn without_place(self) -> Self {
        self.keeping(None)
    }

    /// The id of the call.
    pub fn call_id(&self) -> CallId {
        self.call.call
    }

    /// Cancels the undo, because the call has no claim left or its response was delivered.
    pub fn disarm(mut self) {
        self.armed = false;
    }

    /// Undoes the call now and returns the outcome. The undo stays armed until it has succeeded.
    ///
    /// # Errors
    /// When the store failed. It is then unknown whether the claim still exists.
    pub async fn run(&mut self) -> Result<ReleaseOutcome, Error> {
        let outcome = release(&self.state, &self.call).await?;
        self.armed = false;
        Ok(outcome)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let (state, call) = (Arc::clone(&self.state), self.call.clone());
        let until = self.place.take().and_then(|place| state.kept_until(&place));
        let undo = async move {
            if let Some(until) = until {
                // No step is sent for it meanwhile: it is not granted.
                let kept = sleep_until(until);
                let _ = state.closed.clone().run_until_cancelled_owned(kept).await;
            }
            retry_undo(state, call).await;
        };
        self.state.undos.spawn_on(undo, &self.state.runtime);
    }
}

impl NamespaceState {
    /// Until when a place is kept whose wait ends now, if the server ends it, or the connection.
    fn kept_until(&self, place: &Place) -> Option<Instant> {
        let is_ended = place.ending.as_ref().is_some_and(CancellationToken::is_cancelled);
        let mut places = self.places.lock();
        let drains = self.draining.is_cancelled() || places.drain_end.is_some();
        // A store of this server alone is closed with it.
        if !(drains && self.capabilities.shared || is_ended && !drains) {
            return None;
        }
        let until = (Instant::now() + PLACE_KEPT).min(place.deadline);
        let until = places.drain_end.map_or(until, |end| until.min(end));
        places.last = Some(places.last.map_or(until, |last| last.max(until)));
        Some(until)
    }

    /// Refuses an Acquire while too many calls wait to be undone: a store that takes each call and answers none would
    /// otherwise collect undos without bound.
    pub(super) fn check_failed_undos(&self) -> Result<(), BackendError> {
        if self.failed_undos.load(Ordering::Relaxed) < MAX_FAILED_UNDOS {
            return Ok(());
        }
        Err(BackendError::NotSent {
            reason: format!("{MAX_FAILED_UNDOS} earlier calls could not be undone yet"),
        })
    }
}

async fn release(state: &Arc<NamespaceState>, call: &CallToUndo) -> Result<ReleaseOutcome, Error> {
    // Without `next`: a cancelled waiter seldom makes another one eligible, and notifications cover that case.
    let target = ReleaseTarget::Call(&call.claim, call.call);
    let outcome = state.backend.release(&call.lock, target, None).await?;
    // Only an answer of the store ends a claim: that there is none may be known to the server.
    if matches!(outcome.released, Released::Ended(_)) {
        state.waiters.note_removal(&call.lock);
    }
    if outcome.released == Released::Ended(Cause::Undone) {
        state.grant_log.undone(call.call);
    }
    Ok(outcome)
}

/// Undoes a call. Retries until it succeeds or the namespace is closed, because a store that recovers may still have
/// the claim. The number of these tasks is bounded: while [`MAX_FAILED_UNDOS`] have failed, Acquires are refused
/// without effect. When the runtime ends, the tasks end with it.
async fn retry_undo(state: Arc<NamespaceState>, call: CallToUndo) {
    let mut health = state.backend.health();
    let mut backoff = BACKOFF;
    let mut failed = None;
    while let Err(error) = release(&state, &call).await {
        failed.get_or_insert_with(|| FailedUndo::count(&state.failed_undos));
        tokio::select! {
            biased;
            () = state.closed.cancelled() => {
                tracing::warn!(lock = %call.lock, %error, "closed before a call was undone");
                return;
            }
            () = recovered(&mut health) => {}
            () = tokio::time::sleep(backoff.pause()) => {}
        }
    }
}

/// Returns when the health changes to anything but unavailable.
async fn recovered(health: &mut watch::Receiver<Health>) {
    while health.changed().await.is_ok() {
        if !matches!(*health.borrow_and_update(), Health::Unavailable { .. }) {
            return;
        }
    }
    pending().await
}
