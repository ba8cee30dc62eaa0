//! The course of one Acquire: enter, wait, take up, and every way in which that ends.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::lines::{Joined, Mail, Waiter};
use super::undo::Undo;
use super::{Granted, Room};
use crate::backend::{Ahead, BackendError, Found, Grant, Health, NewClaim, Patience, Place};
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
pub struct Course {
    pub room: Arc<Room>,
    pub lock: LockName,
    /// When its wait ends.
    pub deadline: Instant,
    pub arrived: Instant,
}

/// How one entry ended.
enum End {
    Held(Box<Granted>),
    /// The store lost the claim, or was away: enter again under a fresh call.
    Again,
}

impl Course {
    /// Enters, and enters again for as long as the wait lasts if the store loses the claim.
    ///
    /// # Cancellation safety
    /// Dropped at any moment, the call is undone.
    pub async fn run(self, mut claim: NewClaim) -> Result<Granted, Error> {
        let mut trouble = Trouble::default();
        let mut entries = 0;
        loop {
            let entered = match claim.patience {
                Patience::Try => self.enter(&claim).await,
                Patience::Wait => {
                    self.enter_and_wait_unless_draining(&claim, &mut trouble, entries > 0)
                        .await
                }
            };
            match entered? {
                End::Held(granted) => return Ok(*granted),
                End::Again => claim = self.room.afresh(claim)?,
            }
            entries += 1;
        }
    }

    /// A try: one step, and nothing stays behind.
    async fn enter(&self, claim: &NewClaim) -> Result<End, Error> {
        let undo = Undo::armed(&self.room, &self.lock, claim);
        let place = match self.room.backend.enter(&self.lock, claim).await {
            Ok(place) => place,
            Err(error) => return Err(failed(error, undo)),
        };
        match place {
            Place::Held(grant) => Ok(self.held(grant, undo)),
            // A try that waits would be a bug of the backend's: the undo takes it out.
            Place::Waiting(_) => Err(broken("a try was queued")),
            place => {
                undo.disarm();
                Err(self.refusal(place))
            }
        }
    }

    /// A waiter is told at once that the server shuts down, whatever its store is doing: dropped, it
    /// is undone.
    async fn enter_and_wait_unless_draining(
        &self,
        claim: &NewClaim,
        trouble: &mut Trouble,
        again: bool,
    ) -> Result<End, Error> {
        tokio::select! {
            biased;
            // Boxed: a try, the common call, is not to carry the room that waiting takes.
            end = Box::pin(self.enter_and_wait(claim, trouble, again)) => end,
            () = self.room.draining.cancelled() => Err(Error::Draining),
        }
    }

    async fn enter_and_wait(&self, claim: &NewClaim, trouble: &mut Trouble, again: bool) -> Result<End, Error> {
        // Before the claim is entered: a wake may come before the answer does.
        let joined = self.room.lines.join(&self.lock, Waiter::new(claim.clone()));
        let mut undo = Undo::armed(&self.room, &self.lock, claim);
        // A wait shorter than the store's answer is not worse than a try.
        let answered = self.deadline.max(self.arrived + FAREWELL);
        let entered = match timeout_at(answered, self.room.backend.enter(&self.lock, claim)).await {
            Ok(entered) => entered,
            Err(_) => return Err(self.give_up(&mut undo, trouble).await),
        };
        if entered.is_ok() {
            trouble.over();
        }
        match entered {
            Ok(Place::Waiting(ahead)) => self.wait(joined, undo, ahead, trouble).await,
            Ok(Place::Held(grant)) => Ok(self.held(grant, undo)),
            Ok(Place::Gone) => Ok(End::Again),
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
                Ok(End::Again)
            }
            Err(error) => Err(failed(error, undo)),
        }
    }

    /// Undoes an entry of unknown outcome before the next one.
    async fn settle(&self, undo: &mut Undo, trouble: &mut Trouble) -> Result<(), Error> {
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
    async fn rest(&self, trouble: &Trouble) -> Result<(), Error> {
        let rested = Instant::now() + ASK_AGAIN;
        sleep_until(rested.min(self.deadline)).await;
        if rested < self.deadline {
            Ok(())
        } else {
            Err(self.unanswered(trouble))
        }
    }

    /// Waits for news, for the end of the wait, or for a moment at which asking is worth it.
    async fn wait(&self, mut joined: Joined, undo: Undo, ahead: Ahead, trouble: &mut Trouble) -> Result<End, Error> {
        let waiter = Arc::clone(joined.waiter());
        let mut undo = undo;
        joined.waits(ahead.turn);
        let mut ask_at = self.ask_at(&joined, Some(ahead));
        let deadline = sleep_until(self.deadline);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                biased;
                mail = waiter.mail() => match mail {
                    Mail::Granted(grant) => return Ok(self.held(grant, undo)),
                    Mail::Gone => return Ok(self.again(undo)),
                    Mail::Ask => {}
                },
                () = &mut deadline => return Err(self.give_up(&mut undo, trouble).await),
                () = at(ask_at) => {}
                () = waiter.became_first() => {
                    ask_at = ask_at.into_iter().chain(self.ask_at(&joined, None)).min();
                    continue;
                }
            }
            match self.ask(&waiter.claim, trouble).await {
                Asked::Held(grant) => return Ok(self.held(grant, undo)),
                Asked::Waits(ahead) => {
                    joined.waits(ahead.turn);
                    ask_at = self.ask_at(&joined, Some(ahead));
                }
                Asked::Gone => return Ok(self.again(undo)),
                Asked::Later => ask_at = Some(Instant::now() + ASK_AGAIN),
                Asked::TooLate => return Err(self.give_up(&mut undo, trouble).await),
                Asked::Over(error) => {
                    undo.disarm();
                    return Err(error);
                }
                Asked::Failed(error) => return Err(error),
            }
        }
    }

    fn held(&self, grant: Grant, undo: Undo) -> End {
        End::Held(Box::new(self.room.granted(&self.lock, grant, undo)))
    }

    fn again(&self, undo: Undo) -> End {
        // The store does not know the claim, and every step of this call has been answered.
        undo.disarm();
        End::Again
    }

    /// One attempt to take the claim up.
    async fn ask(&self, claim: &NewClaim, trouble: &mut Trouble) -> Asked {
        let Ok(asked) = timeout_at(self.deadline, self.room.backend.take_up(&self.lock, claim)).await else {
            return Asked::TooLate;
        };
        match asked {
            Err(error) if trouble.rides_out(&error) => return Asked::Later,
            Err(error) => return Asked::Failed(error.into()),
            Ok(_) => trouble.over(),
        }
        match asked {
            Ok(Place::Held(grant)) => Asked::Held(grant),
            Ok(Place::Waiting(ahead)) => Asked::Waits(ahead),
            Ok(Place::Gone) => Asked::Gone,
            Ok(place) => Asked::Over(self.refusal(place)),
            Err(error) => Asked::Failed(error.into()),
        }
    }

    /// The wait is over: leaves, and says why.
    async fn give_up(&self, undo: &mut Undo, trouble: &Trouble) -> Error {
        match timeout(FAREWELL, undo.run()).await {
            Ok(Ok(departure)) if departure.found == Found::Adopted => Error::Superseded,
            Ok(Ok(_)) => Error::WaitTimeout {
                waited: self.arrived.elapsed(),
            },
            Ok(Err(error)) => error,
            Err(_) => self.unanswered(trouble),
        }
    }

    /// The store has not confirmed the end of a wait in time: it is away, or only slow. The undo goes
    /// on either way.
    fn unanswered(&self, trouble: &Trouble) -> Error {
        if let Some(error) = &trouble.last {
            return error.clone().into();
        }
        match &*self.room.backend.health().borrow() {
            Health::Away { reason } => away(reason),
            Health::Serving | Health::Quarantined { .. } => Error::WaitTimeout {
                waited: self.arrived.elapsed(),
            },
        }
    }

    /// When the first waiter of a lock asks by itself: at the holder's end, and now and then, for a
    /// wake may have been lost. Where no wake is ever lost nobody asks.
    fn ask_at(&self, joined: &Joined, ahead: Option<Ahead>) -> Option<Instant> {
        let recheck = self.room.offers.recheck?;
        if !joined.is_first() {
            return None;
        }
        let end = ahead.and_then(|ahead| ahead.frees_in).map(|left| left + PAST_THE_END);
        Some(Instant::now() + end.map_or(recheck, |end| end.min(recheck)))
    }

    /// What a place means to a caller that does not hold.
    fn refusal(&self, place: Place) -> Error {
        match place {
            Place::Busy(holder) => Error::LockHeld { holder },
            Place::Refused(refusal) => refusal.into(),
            Place::Finished(Cause::Released) => Error::AlreadyReleased,
            Place::Finished(cause) => Error::LeaseLost { cause: Some(cause) },
            // Only this call leaves its own claim, so somebody else has taken it over.
            Place::Superseded | Place::Left => Error::Superseded,
            Place::Gone => broken("the store lost a claim at once"),
            Place::Held(_) | Place::Waiting(_) => broken("a place was taken for a refusal"),
        }
    }
}

/// What asking the store gave.
enum Asked {
    Held(Grant),
    Waits(Ahead),
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
struct Trouble {
    since: Option<Instant>,
    last: Option<BackendError>,
}

impl Trouble {
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
    Error::Backend(BackendError::Away { reason: reason.into() })
}

fn broken(reason: &str) -> Error {
    Error::Backend(BackendError::Broken { reason: reason.into() })
}
