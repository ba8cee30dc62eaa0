//! One Acquire call: acquire at the store, wait, promote, and each possible end.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::local_waiters::{Waiter, WaiterEntry, WaiterMessage};
use super::outage::{Outage, RETRY_DELAY, sleep_until_some};
use super::undo::{Place, Undo};
use super::wait_control::{WaitControl, WaitProgress, cancelled, sequencing, tell, unless_cancelled};
use super::{NamespaceState, SessionStream, UndeliveredGrant};
use crate::backend::{AcquireOutcome, BackendError, Grant, Health, NewClaim, QueuePosition, Released};
use crate::claim::Cause;
use crate::error::Error;
use crate::name::LockName;

/// How long a call whose wait has ended waits for the store to confirm its removal.
pub(super) const REMOVAL_WAIT: Duration = Duration::from_millis(300);
/// How long after a holder's expiry the first waiter tries to be promoted, so that the store has seen the expiry.
const EXPIRY_MARGIN: Duration = Duration::from_millis(2);

/// One Acquire call.
pub struct AcquireCall {
    pub state: Arc<NamespaceState>,
    pub lock: LockName,
    /// When the wait ends.
    pub deadline: Instant,
    pub arrived: Instant,
    /// For a call that waits, if its caller wants one.
    pub control: Option<Box<WaitControl>>,
    /// Ends the waits of its connection.
    pub ending: Option<CancellationToken>,
    /// The stream on which it came, if that is one of a session that can be resumed.
    pub stream: Option<Arc<SessionStream>>,
}

/// The outcome of one attempt.
enum AttemptOutcome {
    Held(Box<UndeliveredGrant>),
    /// The store lost the claim or was unavailable: acquire again with a fresh call id.
    Retry,
}

impl From<UndeliveredGrant> for AttemptOutcome {
    fn from(granted: UndeliveredGrant) -> Self {
        Self::Held(Box::new(granted))
    }
}

impl AcquireCall {
    /// Tries once, without waiting.
    ///
    /// # Cancellation safety
    /// When dropped at any moment, the call is undone.
    pub async fn try_once(self, claim: NewClaim) -> Result<UndeliveredGrant, Error> {
        let undo = Undo::armed(&self.state, &self.lock, &claim)
            .keeping(self.place(&claim).and_then(|place| place.of_grant(None)));
        let outcome = match self.state.backend.acquire(&self.lock, &claim).await {
            Ok(outcome) => outcome,
            Err(error) => return Err(failed(error, undo)),
        };
        match outcome {
            AcquireOutcome::Held(grant) => Ok(self.held(grant, undo)),
            // The backend has queued a try, which is a bug. The undo removes the claim.
            AcquireOutcome::Waiting(_) => Err(broken("a try was queued")),
            outcome => {
                undo.disarm();
                Err(self.refusal(outcome))
            }
        }
    }

    /// Acquires, and acquires again while the wait lasts if the store is unavailable for a short time or loses the claim.
    ///
    /// The claim is in the waiter only: this future is most of what a waiting call keeps in memory.
    ///
    /// # Cancellation safety
    /// When dropped at any moment, the call is undone.
    pub async fn run(self, mut waiter: Arc<Waiter>) -> Result<UndeliveredGrant, Error> {
        let mut outage = Outage::since(self.state.not_serving_since.get());
        let mut retrying = false;
        if self.control.as_deref().is_some_and(WaitControl::is_cancelled) {
            return Err(self.unanswered(&outage));
        }
        loop {
            match self.acquire_unless_draining(&waiter, &mut outage, retrying).await? {
                AttemptOutcome::Held(granted) => return Ok(*granted),
                AttemptOutcome::Retry => waiter = Waiter::new(self.state.with_fresh_ids(waiter.claim.clone())?),
            }
            retrying = true;
        }
    }

    /// Waits until the server drains. The wait ends at once then, even if the store does not answer; the undo removes
    /// the claim.
    async fn acquire_unless_draining(
        &self,
        waiter: &Arc<Waiter>,
        outage: &mut Outage,
        retrying: bool,
    ) -> Result<AttemptOutcome, Error> {
        tokio::select! {
            biased;
            end = self.acquire_and_wait(waiter, outage, retrying) => end,
            () = self.state.draining.cancelled() => Err(Error::Draining),
            () = ended(self.ending.as_ref()) => Err(Error::Draining),
        }
    }

    /// The place of this call that may be kept if the server ends the wait, or the stream breaks off.
    fn place(&self, claim: &NewClaim) -> Option<Place> {
        let is_found_again = claim.retryable && self.state.capabilities.remembers_requests;
        is_found_again.then(|| Place {
            waits: true,
            ends: Some(self.deadline),
            ending: self.ending.clone(),
            stream: self.stream.clone(),
            bytes: claim.owner.as_str().len() + claim.metadata.bytes(),
        })
    }

    async fn acquire_and_wait(
        &self,
        waiter: &Arc<Waiter>,
        outage: &mut Outage,
        retrying: bool,
    ) -> Result<AttemptOutcome, Error> {
        // Registered before the store is called: a notification may arrive before the response.
        let entry = self.state.waiters.join(&self.lock, Arc::clone(waiter));
        let claim = &waiter.claim;
        let mut undo = Undo::armed(&self.state, &self.lock, claim).keeping(self.place(claim));
        // The first attempt waits for the store at least as long as a try would, even if the wait is shorter or over.
        let least = if retrying { Duration::ZERO } else { REMOVAL_WAIT };
        let began = Instant::now();
        let response_deadline = self.deadline.max(began + least);
        let acquired = sequencing(
            self.control.as_deref(),
            || self.state.backend.orders_acquires(&self.lock),
            self.state.backend.acquire(&self.lock, claim),
        );
        let acquired = timeout_at(response_deadline, acquired);
        let outcome = match unless_cancelled(self.control.as_deref(), acquired).await {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => {
                let refused = outage.last_error().cloned();
                outage.begin();
                // A store that refused the attempts before did not say that the lock is held.
                return Err(match (self.end_wait(&mut undo, outage).await, refused) {
                    (Error::WaitTimeout { .. }, Some(error)) => error.into(),
                    (ended, _) => ended,
                });
            }
            None => return Err(self.end_wait(&mut undo, outage).await),
        };
        if outcome.is_ok() {
            tell(self.control.as_deref(), WaitProgress::Enqueued);
            outage.end();
        }
        match outcome {
            Ok(AcquireOutcome::Waiting(position)) => self.wait(entry, undo, position, outage).await,
            Ok(AcquireOutcome::Held(grant)) => Ok(self.held(grant, undo).into()),
            Ok(AcquireOutcome::Gone) => Ok(AttemptOutcome::Retry),
            Ok(outcome) => {
                undo.disarm();
                Err(self.refusal(outcome))
            }
            // Whether the step took effect is unknown, so it is undone before the next attempt.
            Err(error) if outage.tolerates(&error, began) => {
                if error.is_without_effect() {
                    undo.disarm();
                } else {
                    self.undo_before_retry(&mut undo, outage).await?;
                }
                self.pause(outage).await?;
                Ok(AttemptOutcome::Retry)
            }
            Err(error) => Err(failed(error, undo)),
        }
    }

    /// Undoes an attempt of unknown outcome before the next attempt.
    async fn undo_before_retry(&self, undo: &mut Undo, outage: &mut Outage) -> Result<(), Error> {
        loop {
            let began = Instant::now();
            let undone = timeout_at(self.deadline, undo.run());
            match unless_cancelled(self.control.as_deref(), undone).await {
                Some(Ok(Ok(undone))) if undone.released == Released::Adopted => return Err(Error::Superseded),
                Some(Ok(Ok(_))) => return Ok(()),
                Some(Ok(Err(Error::Backend(error)))) if outage.tolerates(&error, began) => {
                    // Whatever ends the pause: the attempt may have left a claim.
                    self.pause(outage).await.map_err(|_| self.unanswered(outage))?;
                }
                Some(Ok(Err(error))) => return Err(error),
                Some(Err(_)) | None => return Err(self.unanswered(outage)),
            }
        }
    }

    /// Pauses between attempts on an unavailable store; fails if the wait ends meanwhile.
    async fn pause(&self, outage: &Outage) -> Result<(), Error> {
        let until = Instant::now() + RETRY_DELAY;
        let pause = sleep_until(until.min(self.deadline));
        match unless_cancelled(self.control.as_deref(), pause).await {
            Some(()) if until < self.deadline => Ok(()),
            Some(()) => Err(self.unanswered(outage)),
            // Nothing is left in the store.
            None => Err(Error::WaitTimeout {
                waited: self.arrived.elapsed(),
            }),
        }
    }

    /// Waits for a message, for the deadline, or for the time of the next check.
    async fn wait(
        &self,
        mut entry: WaiterEntry,
        undo: Undo,
        position: QueuePosition,
        outage: &mut Outage,
    ) -> Result<AttemptOutcome, Error> {
        let waiter = Arc::clone(entry.waiter());
        let mut undo = undo;
        entry.waits(position.position);
        let mut check_at = self.check_at(&entry, Some(position));
        let deadline = sleep_until(self.deadline);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                biased;
                message = waiter.message() => match message {
                    WaiterMessage::Granted(grant) => return Ok(self.held(grant, undo).into()),
                    WaiterMessage::Gone => return Ok(self.retry(undo)),
                    WaiterMessage::Promote => {}
                },
                () = &mut deadline => return Err(self.end_wait(&mut undo, outage).await),
                () = cancelled(self.control.as_deref()) => return Err(self.end_wait(&mut undo, outage).await),
                () = sleep_until_some(check_at) => {}
                () = waiter.became_first() => {
                    check_at = check_at.into_iter().chain(self.check_at(&entry, None)).min();
                    continue;
                }
            }
            match self.try_promote(&waiter.claim, outage).await {
                PromoteOutcome::Held(grant) => return Ok(self.held(grant, undo).into()),
                PromoteOutcome::Waiting(position) => {
                    entry.waits(position.position);
                    check_at = self.check_at(&entry, Some(position));
                }
                PromoteOutcome::Gone => return Ok(self.retry(undo)),
                PromoteOutcome::RetryLater => check_at = Some(Instant::now() + RETRY_DELAY),
                PromoteOutcome::WaitEnded => return Err(self.end_wait(&mut undo, outage).await),
                PromoteOutcome::NotOwned(error) => {
                    undo.disarm();
                    return Err(error);
                }
                PromoteOutcome::Failed(error) => return Err(error),
            }
        }
    }

    fn held(&self, grant: Grant, undo: Undo) -> UndeliveredGrant {
        let undo = undo.of_grant(Instant::now() + grant.ttl);
        self.state.granted(&self.lock, grant, undo)
    }

    fn retry(&self, undo: Undo) -> AttemptOutcome {
        // Nothing to undo: the store does not know the claim, and every step of this call was answered.
        undo.disarm();
        AttemptOutcome::Retry
    }

    /// Tries once to promote the claim.
    async fn try_promote(&self, claim: &NewClaim, outage: &mut Outage) -> PromoteOutcome {
        let began = Instant::now();
        outage.began_by(self.state.not_serving_since.get());
        let until = outage.give_up_at().map_or(self.deadline, |at| at.min(self.deadline));
        let promoted = timeout_at(until, self.state.backend.promote(&self.lock, claim));
        let promoted = match unless_cancelled(self.control.as_deref(), promoted).await {
            Some(Ok(promoted)) => promoted,
            Some(Err(_)) if until < self.deadline => {
                outage.begin();
                return PromoteOutcome::Failed(self.unanswered(outage));
            }
            Some(Err(_)) | None => return PromoteOutcome::WaitEnded,
        };
        let outcome = match promoted {
            Ok(outcome) => outcome,
            Err(error) if outage.tolerates(&error, began) => return PromoteOutcome::RetryLater,
            Err(error) => return PromoteOutcome::Failed(error.into()),
        };
        outage.end();
        match outcome {
            AcquireOutcome::Held(grant) => PromoteOutcome::Held(grant),
            AcquireOutcome::Waiting(position) => PromoteOutcome::Waiting(position),
            AcquireOutcome::Gone => PromoteOutcome::Gone,
            outcome => PromoteOutcome::NotOwned(self.refusal(outcome)),
        }
    }

    /// Ends the wait: removes the claim and returns the reason.
    async fn end_wait(&self, undo: &mut Undo, outage: &Outage) -> Error {
        let sent = Instant::now();
        match timeout(REMOVAL_WAIT, undo.run()).await {
            Ok(Ok(undone)) if undone.released == Released::Adopted => Error::Superseded,
            Ok(Ok(_)) => Error::WaitTimeout {
                waited: self.arrived.elapsed(),
            },
            Ok(Err(error)) => error,
            Err(_) => match self.unanswered(outage) {
                // A store that confirms other removals of the lock is busy: those of other locks may be at another server of the
                // store. One that stands silent may not have been noticed by its health yet.
                Error::WaitTimeout { .. } if !self.state.waiters.has_removed_since(&self.lock, sent) => {
                    unavailable("the store did not confirm in time that the call has left the queue")
                }
                error => error,
            },
        }
    }

    /// The error for a wait that ended before the store was called, or while the store was unavailable. The undo continues
    /// in the background.
    fn unanswered(&self, outage: &Outage) -> Error {
        if let Some(error) = outage.last_error() {
            return error.clone().into();
        }
        match &*self.state.backend.health().borrow() {
            Health::Unavailable { reason } => unavailable(reason),
            Health::Serving | Health::Quarantined { .. } => Error::WaitTimeout {
                waited: self.arrived.elapsed(),
            },
        }
    }

    /// When the first local waiter tries to be promoted without a notification: at the holder's expiry, and at each
    /// recheck interval, because notifications may be lost. Never where the backend loses none.
    fn check_at(&self, entry: &WaiterEntry, position: Option<QueuePosition>) -> Option<Instant> {
        let recheck = self.state.capabilities.recheck?;
        if !entry.is_first() {
            return None;
        }
        let expiry = position
            .and_then(|position| position.frees_in)
            .map(|left| left + EXPIRY_MARGIN);
        Some(Instant::now() + expiry.map_or(recheck, |expiry| expiry.min(recheck)))
    }

    /// The error of a call that did not get the lock.
    fn refusal(&self, outcome: AcquireOutcome) -> Error {
        match outcome {
            AcquireOutcome::Busy(holder) => Error::LockHeld { holder },
            AcquireOutcome::Refused(refusal) => refusal.into(),
            AcquireOutcome::Finished(Cause::Released) => Error::AlreadyReleased,
            AcquireOutcome::Finished(cause) => Error::LeaseLost { cause: Some(cause) },
            // This call has not cancelled its own claim, so another call has adopted it.
            AcquireOutcome::Superseded | AcquireOutcome::Cancelled => Error::Superseded,
            AcquireOutcome::Gone => broken("the store lost a claim at once"),
            AcquireOutcome::Held(_) | AcquireOutcome::Waiting(_) => {
                broken("an outcome other than a refusal was handled as a refusal")
            }
        }
    }
}

/// Ready when the waits of a connection end. Boxed, because most calls have none.
async fn ended(ending: Option<&CancellationToken>) {
    match ending {
        Some(ending) => Box::pin(ending.cancelled()).await,
        None => std::future::pending().await,
    }
}

/// The outcome of one attempt to promote.
enum PromoteOutcome {
    Held(Grant),
    Waiting(QueuePosition),
    Gone,
    /// The store is unavailable: retry soon.
    RetryLater,
    /// The deadline has passed, or the wait was cancelled.
    WaitEnded,
    /// The claim no longer belongs to this call.
    NotOwned(Error),
    /// The store was unavailable for too long, or failed permanently.
    Failed(Error),
}

/// The error of a failed attempt. Keeps the undo only if the step may have had an effect: in a long outage, refused
/// calls must not each start an undo task.
fn failed(error: BackendError, undo: Undo) -> Error {
    if error.is_without_effect() {
        undo.disarm();
    }
    error.into()
}

fn unavailable(reason: &str) -> Error {
    Error::Backend(BackendError::Unavailable { reason: reason.into() })
}

fn broken(reason: &str) -> Error {
    Error::Backend(BackendError::Broken { reason: reason.into() })
}
