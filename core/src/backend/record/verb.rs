//! The verbs in a lock's queue, and their answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use crate::backend::failure::{not_sent, unavailable};
use crate::backend::{BackendError, WatchEvent};
use crate::claim::{Holder, Queue};
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, Metadata, Ttl};
use crate::queue::{
    AcquireOutcome, InspectLimit, NewClaim, OwnedReleaseTarget, ReleaseOutcome, RenewOutcome, StreamNumber,
    UpdateOutcome, WaitPolicy,
};

/// How long a caller waits for its verb. The engine goes on to settle the commit that the verb was sent with.
const WAIT: Duration = Duration::from_secs(5);

/// A verb of [`crate::backend::Backend`] on one lock.
#[derive(Debug)]
pub enum Verb {
    Acquire(Box<NewClaim>),
    Promote(Box<NewClaim>),
    Release(OwnedReleaseTarget, Option<Box<NewClaim>>),
    Renew(LeaseKey, Option<Ttl>),
    Update(LeaseKey, Metadata, Option<StreamNumber>),
    Inspect(InspectLimit),
    Owns(ClaimId, CallId),
    Holder(FencingToken),
    /// The queue, and the changes from then on.
    Watch,
    /// Ends what has expired, and compares the lock's waiters of this server with the record.
    Recheck,
}

impl Verb {
    /// Whether it only adds a claim to the queue, if the lock is in use.
    pub fn is_append(&self) -> bool {
        matches!(self, Self::Acquire(claim) if claim.wait_policy == WaitPolicy::Wait)
    }

    /// Whether it may grant the lock or add to its queue.
    pub fn may_grant(&self) -> bool {
        matches!(self, Self::Acquire(_) | Self::Promote(_))
    }

    /// Whether a lease ends, or goes on for too long, if it comes late.
    pub fn is_urgent(&self) -> bool {
        matches!(self, Self::Renew(..) | Self::Release(..))
    }

    /// The claim and the call that it is of.
    pub fn call(&self) -> Option<(ClaimId, CallId)> {
        match self {
            Self::Acquire(claim) | Self::Promote(claim) => Some((claim.id, claim.call)),
            Self::Release(OwnedReleaseTarget::Call(claim, call), _) => Some((*claim, *call)),
            _ => None,
        }
    }
}

/// The answer to a verb.
#[derive(Debug)]
pub enum Answer {
    Acquired(AcquireOutcome),
    Released(ReleaseOutcome),
    Renewed(RenewOutcome),
    Updated(UpdateOutcome),
    Queue(Queue),
    Owns(bool),
    Holder(Option<Holder>),
    /// With the channel of the later changes, once the verb was answered.
    Watching(Queue, Option<mpsc::Receiver<WatchEvent>>),
    Rechecked,
}

impl Answer {
    /// Whether it says that somebody holds the lock, or for how long.
    pub fn extends(&self) -> bool {
        match self {
            Self::Acquired(outcome) => matches!(outcome, AcquireOutcome::Held(_)),
            Self::Released(outcome) => outcome.next.is_some() || outcome.kept.is_some(),
            Self::Renewed(outcome) => matches!(outcome, RenewOutcome::Renewed(_)),
            Self::Updated(outcome) => matches!(outcome, UpdateOutcome::Updated),
            _ => false,
        }
    }
}

/// A verb, and whoever waits for it.
#[derive(Debug)]
pub struct Pending {
    pub verb: Verb,
    pub arrived: Instant,
    /// Whether a commit with it may have been sent.
    sent: Arc<AtomicBool>,
    /// Whether such a commit may have taken effect, or still may.
    pub unsettled: bool,
    reply: oneshot::Sender<Result<Answer, BackendError>>,
}

/// The caller's end of a [`Pending`].
#[derive(Debug)]
pub struct Asked {
    sent: Arc<AtomicBool>,
    answer: oneshot::Receiver<Result<Answer, BackendError>>,
}

impl Pending {
    /// A verb, and the caller's end.
    pub fn new(verb: Verb) -> (Self, Asked) {
        let (reply, answer) = oneshot::channel();
        let sent = Arc::<AtomicBool>::default();
        let pending = Self {
            verb,
            arrived: Instant::now(),
            sent: Arc::clone(&sent),
            unsettled: false,
            reply,
        };
        (pending, Asked { sent, answer })
    }

    /// Takes the verb into a batch, unless its caller has left.
    pub fn take(&self) -> bool {
        self.sent.store(true, Ordering::SeqCst);
        !self.is_left()
    }

    /// Whether its caller has left. A verb of the engine itself is never left.
    pub fn is_left(&self) -> bool {
        self.reply.is_closed() && !matches!(self.verb, Verb::Recheck)
    }

    /// Leaves the next claim of a release where it waits.
    pub fn drop_next(&mut self) {
        if let Verb::Release(_, next) = &mut self.verb {
            *next = None;
        }
    }

    /// Answers the caller.
    pub fn answer(self, answer: Answer) {
        let _ = self.reply.send(Ok(answer));
    }

    /// Fails the verb for this reason: without effect, unless a commit with it may have one.
    pub fn fail(self, reason: &BackendError) {
        let error = match reason {
            error if self.unsettled => unavailable(error),
            BackendError::Unavailable { reason } => not_sent(reason),
            error => error.clone(),
        };
        let _ = self.reply.send(Err(error));
    }
}

impl Asked {
    /// The answer.
    ///
    /// # Errors
    /// The error of the store; after 5 s, [`BackendError::NotSent`] if the verb was never part of a commit, else
    /// [`BackendError::Unavailable`].
    pub async fn answer(mut self) -> Result<Answer, BackendError> {
        if let Ok(answer) = timeout(WAIT, &mut self.answer).await {
            return answer.unwrap_or_else(|_| Err(unavailable("the task of this lock has ended")));
        }
        // Closed before it is asked whether the verb was taken, which the engine marks before it asks whether this is
        // closed: at least one of the two sees the other.
        self.answer.close();
        if let Ok(answer) = self.answer.try_recv() {
            return answer;
        }
        let reason = "the store did not answer in time";
        match self.sent.load(Ordering::SeqCst) {
            true => Err(unavailable(reason)),
            false => Err(not_sent(reason)),
        }
    }
}
