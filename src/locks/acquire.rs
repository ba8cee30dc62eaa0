//! The course of one Acquire: enter, wait, take up, and every way in which that ends.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::local_waiters::{WaiterEntry, WaiterMessage, Waiter};
use super::undo::Undo;
use super::{Granted, NamespaceState};
use crate::backend::{QueuePosition, BackendError, Released, Grant, Health, NewClaim, WaitPolicy, AcquireOutcome};
use crate::claim::Cause;
use crate::error::Error;
use crate::name::LockName;

/// How long a waiter rides out a store that is away.
const RIDE_OUT: Duration = Duration::from_secs(5);
/// How soon it asks such a store again.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// How long a wait that ran out still waits for the store to say so.
pub(super) const FAREWELL: Duration = Duration::from_millis(300);
/// How much later than a holder's end the first waiter asks, so that it does not ask in vain.
const PAST_THE_END: Duration = Duration::from_millis(2);

/// One Acquire call on its way.
pub struct AcquireCall {
    pub state: Arc<NamespaceState>,
    pub lock: LockName,
    /// When its wait ends.
    pub deadline: Instant,
    pub arrived: Instant,
}

/// How one entry ended.
enum EntryOutcome {
    Held(Box<Granted>),
    /// The store lost the claim, or was away: enter again under a fresh call.
    Again,
}

impl AcquireCall {
    /// Enters, and enters again for as long as the wait lasts if the store loses the claim.
    ///
    /// # Cancellation safety
    /// Dropped at any moment, the call is undone.
    pub async fn run(self, mut claim: NewClaim) -> Result<Granted, Error> {
        let mut trouble = Outage::default();
        let mut entries = 0;
        loop {
            let entered = match claim.wait_policy {
                WaitPolicy::Try => self.acquire(&claim).await,
                WaitPolicy::Wait => {
                    self.acquire_and_wait_unless_draining(&claim, &mut trouble, entries > 0)
                        .await
                }
            };
            match entered? {
                EntryOutcome::Held(granted) => return Ok(*granted),
                EntryOutcome::Again => claim = self.state.afresh(claim)?,
            }
            entries += 1;
        }
    }

    /// A try: one step, and nothing stays behind.
    async fn acquire(&self, claim: &NewClaim) -> Result<EntryOutcome, Error> {
        let undo = Undo::armed(&self.state, &self.lock, claim);
        let place = match self.state.backend.acquire(&self.lock, claim).await {
            Ok(place) => place,
            Err(error) => return Err(failed(error, undo)),
        };
        match place {
            AcquireOutcome::Held(grant) => Ok(self.held(grant, undo)),
            // A try that waits would be a bug of the backend's: the undo takes it out.
            AcquireOutcome::Waiting(_) => Err(broken("a try was queued")),
            place => {
                undo.disarm();
                Err(self.refusal(place))
            }
        }
    }

    /// A waiter is told at once that the server shuts down, whatever its store is doing: dropped, it
    /// is undone.
    async fn acquire_and_wait_unless_draining(
        &self,
        claim: &NewClaim,
        trouble: &mut Outage,
        again: bool,
    ) -> Result<EntryOutcome, Error> {
        tokio::select! {
            biased;
            // Boxed: a try, the common call, is not to carry the room that waiting takes.
            end = Box::pin(self.acquire_and_wait(claim, trouble, again)) => end,
            () = self.state.draining.cancelled() => Err(Error::Draining),
        }
    }

    async fn acquire_and_wait(&self, claim: &NewClaim, trouble: &mut Outage, again: bool) -> Result<EntryOutcome, Error> {
        // Before the claim is entered: a wake may come before the answer does.
        let joined = self.state.lines.join(&self.lock, Waiter::new(claim.clone()));
        let mut undo = Undo::armed(&self.state, &self.lock, claim);
        // A wait shorter than the store's answer is not worse than a try.
        let answered = self.deadline.max(self.arrived + FAREWELL);
        let entered = match timeout_at(answered, self.state.backend.acquire(&self.lock, claim)).await {
            Ok(entered) => entered,
            Err(_) => return Err(self.give_up(&mut undo, trouble).await),
        };
        if entered.is_ok() {
            trouble.over();
        }
        match entered {
            Ok(AcquireOutcome::Waiting(ahead)) => self.wait(joined, undo, ahead, trouble).await,
            Ok(AcquireOutcome::Held(grant)) => Ok(self.held(grant, undo)),
            Ok(AcquireOutcome::Gone) => Ok(EntryOutcome::Again),
            Ok(place) => {
                undo.disarm();
                Err(self.refusal(place))
            }
            // A first entry fails at once; one that waited before rides the trouble out, and leaves
            // before it enters again.
            Err(error) if again && trouble.rides_out(&error) => {
                if error.is_without_effect() {
                    undo.disarm();
                } else {
                    self.settle(&mut undo, trouble).await?;
                }
                self.rest(trouble).await?;
                Ok(EntryOutcome::Again)
            }
            Err(error) => Err(failed(error, undo)),
        }
    }

    /// Undoes an entry of unknown outcome before the next one.
    async fn settle(&self, undo: &mut Undo, trouble: &mut Outage) -> Result<(), Error> {
        loop {
            match timeout_at(self.deadline, undo.run()).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(Error::Backend(error))) if trouble.rides_out(&error) => self.rest(trouble).await?,
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(self.unanswered(trouble)),
            }
        }
    }

    /// Lets a store in trouble be for a moment; the wait may end in it.
    async fn rest(&self, trouble: &Outage) -> Result<(), Error> {
        let rested = Instant::now() + ASK_AGAIN;
        sleep_until(rested.min(self.deadline)).await;
        if rested < self.deadline {
            Ok(())
        } else {
            Err(self.unanswered(trouble))
        }
    }

    /// Waits for news, for the end of the wait, or for a moment at which asking is worth it.
    async fn wait(&self, mut joined: WaiterEntry, undo: Undo, ahead: QueuePosition, trouble: &mut Outage) -> Result<EntryOutcome, Error> {
        let waiter = Arc::clone(joined.waiter());
        let mut undo = undo;
        joined.waits(ahead.position);
        let mut ask_at = self.ask_at(&joined, Some(ahead));
        let deadline = sleep_until(self.deadline);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                biased;
                mail = waiter.message() => match mail {
                    WaiterMessage::Granted(grant) => return Ok(self.held(grant, undo)),
                    WaiterMessage::Gone => return Ok(self.again(undo)),
                    WaiterMessage::Ask => {}
                },
                () = &mut deadline => return Err(self.give_up(&mut undo, trouble).await),
                () = at(ask_at) => {}
                () = waiter.became_first() => {
                    ask_at = ask_at.into_iter().chain(self.ask_at(&joined, None)).min();
                    continue;
                }
            }
            match self.ask(&waiter.claim, trouble).await {
                PromoteOutcome::Held(grant) => return Ok(self.held(grant, undo)),
                PromoteOutcome::Waits(ahead) => {
                    joined.waits(ahead.position);
                    ask_at = self.ask_at(&joined, Some(ahead));
                }
                PromoteOutcome::Gone => return Ok(self.again(undo)),
                PromoteOutcome::Later => ask_at = Some(Instant::now() + ASK_AGAIN),
                PromoteOutcome::TooLate => return Err(self.give_up(&mut undo, trouble).await),
                PromoteOutcome::Over(error) => {
                    undo.disarm();
                    return Err(error);
                }
                PromoteOutcome::Failed(error) => return Err(error),
            }
        }
    }

    fn held(&self, grant: Grant, undo: Undo) -> EntryOutcome {
        EntryOutcome::Held(Box::new(self.state.granted(&self.lock, grant, undo)))
    }

    fn again(&self, undo: Undo) -> EntryOutcome {
        // The store does not know the claim, and every step of this call has been answered.
        undo.disarm();
        EntryOutcome::Again
    }

    /// One attempt to take the claim up.
    async fn ask(&self, claim: &NewClaim, trouble: &mut Outage) -> PromoteOutcome {
        let Ok(asked) = timeout_at(self.deadline, self.state.backend.promote(&self.lock, claim)).await else {
            return PromoteOutcome::TooLate;
        };
        match asked {
            Err(error) if trouble.rides_out(&error) => return PromoteOutcome::Later,
            Err(error) => return PromoteOutcome::Failed(error.into()),
            Ok(_) => trouble.over(),
        }
        match asked {
            Ok(AcquireOutcome::Held(grant)) => PromoteOutcome::Held(grant),
            Ok(AcquireOutcome::Waiting(ahead)) => PromoteOutcome::Waits(ahead),
            Ok(AcquireOutcome::Gone) => PromoteOutcome::Gone,
            Ok(place) => PromoteOutcome::Over(self.refusal(place)),
            Err(error) => PromoteOutcome::Failed(error.into()),
        }
    }

    /// The wait is over: leaves, and says why.
    async fn give_up(&self, undo: &mut Undo, trouble: &Outage) -> Error {
        match timeout(FAREWELL, undo.run()).await {
            Ok(Ok(departure)) if departure.found == Released::Adopted => Error::Superseded,
            Ok(Ok(_)) => Error::WaitTimeout {
                waited: self.arrived.elapsed(),
            },
            Ok(Err(error)) => error,
            Err(_) => self.unanswered(trouble),
        }
    }

    /// The store has not confirmed the end of a wait in time: it is away, or only slow. The undo goes
    /// on either way.
    fn unanswered(&self, trouble: &Outage) -> Error {
        if let Some(error) = &trouble.last {
            return error.clone().into();
        }
        match &*self.state.backend.health().borrow() {
            Health::Unavailable { reason } => away(reason),
            Health::Serving | Health::Quarantined { .. } => Error::WaitTimeout {
                waited: self.arrived.elapsed(),
            },
        }
    }

    /// When the first waiter of a lock asks by itself: at the holder's end, and now and then, for a
    /// wake may have been lost. Where no wake is ever lost nobody asks.
    fn ask_at(&self, joined: &WaiterEntry, ahead: Option<QueuePosition>) -> Option<Instant> {
        let recheck = self.state.capabilities.recheck?;
        if !joined.is_first() {
            return None;
        }
        let end = ahead.and_then(|ahead| ahead.frees_in).map(|left| left + PAST_THE_END);
        Some(Instant::now() + end.map_or(recheck, |end| end.min(recheck)))
    }

    /// What a place means to a caller that does not hold.
    fn refusal(&self, place: AcquireOutcome) -> Error {
        match place {
            AcquireOutcome::Busy(holder) => Error::LockHeld { holder },
            AcquireOutcome::Refused(refusal) => refusal.into(),
            AcquireOutcome::Finished(Cause::Released) => Error::AlreadyReleased,
            AcquireOutcome::Finished(cause) => Error::LeaseLost { cause: Some(cause) },
            // Only this call leaves its own claim, so somebody else has taken it over.
            AcquireOutcome::Superseded | AcquireOutcome::Cancelled => Error::Superseded,
            AcquireOutcome::Gone => broken("the store lost a claim at once"),
            AcquireOutcome::Held(_) | AcquireOutcome::Waiting(_) => broken("a place was taken for a refusal"),
        }
    }
}

/// What asking the store gave.
enum PromoteOutcome {
    Held(Grant),
    Waits(QueuePosition),
    Gone,
    /// The store is away: ask again soon.
    Later,
    /// The wait ran out meanwhile.
    TooLate,
    /// The claim is not this call's any more.
    Over(Error),
    /// The store failed for too long.
    Failed(Error),
}

/// A store that is away, and since when.
#[derive(Debug, Default)]
struct Outage {
    since: Option<Instant>,
    last: Option<BackendError>,
}

impl Outage {
    /// Whether this error is still to be ridden out.
    fn rides_out(&mut self, error: &BackendError) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        self.last = Some(error.clone());
        error.is_passing() && since.elapsed() < RIDE_OUT
    }

    fn over(&mut self) {
        *self = Self::default();
    }
}

/// The error of a call whose entry failed. Its undo goes on unless there is nothing to undo: a store
/// that is away for long must not be followed by an undo for each call that it refused.
fn failed(error: BackendError, undo: Undo) -> Error {
    if error.is_without_effect() {
        undo.disarm();
    }
    error.into()
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => pending().await,
    }
}

fn away(reason: &str) -> Error {
    Error::Backend(BackendError::Unavailable { reason: reason.into() })
}

fn broken(reason: &str) -> Error {
    Error::Backend(BackendError::Broken { reason: reason.into() })
}
