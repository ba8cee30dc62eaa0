//! Large reads take turns, so that a renewal waits behind no more of them than there are processors.
//!
//! A page of locks takes what a thousand renewals take. Therefore only as many pages as there are processors are read from
//! one namespace at once, and as many converted for clients. Others wait outside of the store's queue and the runtime's,
//! before they have anything in memory,
//! and get their turns one caller after the other: an identity, or the address of callers without one. Each lets the tasks
//! run first that are ready, such as renewals, before it takes its turn.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout, timeout_at};

use super::authenticate::Caller;
use super::capacity::PeerAddress;
use crate::backend::BackendError;
use crate::error::Error;
use crate::name::{Identity, Namespace};

/// How long a read may wait for its turn: where a store stands silent, those before it fail slowly.
const TURN_LIMIT: Duration = Duration::from_secs(5);
/// How long a read may take with its wait.
const ANSWERED_WITHIN: Duration = Duration::from_millis(9_500);

/// For which step a place is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// To read from the store of this namespace. A store that does not answer holds up no other namespace.
    Read(Namespace),
    /// To convert what was read.
    Convert,
}

/// Who waits for places.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Reader {
    Identity(Identity),
    Address(Option<PeerAddress>),
}

/// The places for large reads. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct LargeReads {
    steps: Arc<Mutex<HashMap<Step, Waiting>>>,
    places: usize,
}

/// Who is in a step, and who waits for it.
#[derive(Debug, Default)]
struct Waiting {
    taken: usize,
    readers: HashMap<Reader, VecDeque<oneshot::Sender<Place>>>,
    /// The readers that wait, each once.
    turns: VecDeque<Reader>,
}

impl Waiting {
    fn push(&mut self, reader: Reader, place: oneshot::Sender<Place>) {
        let calls = self.readers.entry(reader.clone()).or_default();
        if calls.is_empty() {
            self.turns.push_back(reader);
        }
        calls.push_back(place);
    }

    /// The call whose turn is next, unless it has ended.
    fn pop(&mut self) -> Option<oneshot::Sender<Place>> {
        loop {
            let reader = self.turns.pop_front()?;
            let calls = self.readers.get_mut(&reader)?;
            let next = calls.pop_front();
            if calls.is_empty() {
                self.readers.remove(&reader);
            } else {
                self.turns.push_back(reader);
            }
            if let Some(next) = next.filter(|next| !next.is_closed()) {
                return Some(next);
            }
        }
    }
}

/// A place in a step. Dropping it passes it on.
#[derive(Debug)]
pub(super) struct Place {
    reads: LargeReads,
    step: Step,
}

impl Default for LargeReads {
    fn default() -> Self {
        Self::new(available_parallelism().map_or(1, std::num::NonZero::get))
    }
}

impl LargeReads {
    pub(super) fn new(places: usize) -> Self {
        let steps = Arc::default();
        Self { steps, places }
    }

    /// How many are in a step, and how many wait for it.
    #[cfg(test)]
    pub(super) fn count(&self, step: &Step) -> (usize, usize) {
        let steps = self.steps.lock();
        steps.get(step).map_or((0, 0), |waiting| {
            let waits = waiting.readers.values().map(VecDeque::len).sum();
            (waiting.taken, waits)
        })
    }

    /// Waits for a place.
    ///
    /// # Cancellation safety
    /// If dropped, the place goes to the next one.
    pub(super) async fn enter(&self, step: Step, caller: &Caller) -> Place {
        self.enter_as(step, Reader::of(caller)).await
    }

    /// The turns of a caller whose stream may have large messages.
    pub(super) fn turns_of(&self, caller: &Caller) -> Turns {
        Turns {
            reads: self.clone(),
            reader: Reader::of(caller),
        }
    }

    async fn enter_as(&self, step: Step, reader: Reader) -> Place {
        let turn = {
            let mut steps = self.steps.lock();
            let waiting = steps.entry(step.clone()).or_default();
            if waiting.taken < self.places {
                waiting.taken += 1;
                None
            } else {
                let (place, turn) = oneshot::channel();
                waiting.push(reader, place);
                Some(turn)
            }
        };
        let place = match turn {
            Some(turn) => turn.await.ok(),
            None => None,
        };
        // Whoever leaves passes the place on, so it is absent only for a place that was free.
        let place = place.unwrap_or_else(|| Place {
            reads: self.clone(),
            step,
        });
        // The runtime would run a call that was just given its place before all others that are ready.
        yield_now().await;
        place
    }
}

/// The turns of one stream, whose large messages are converted for its client.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    reads: LargeReads,
    reader: Reader,
}

impl Turns {
    /// Waits for a place to convert a message.
    ///
    /// # Cancellation safety
    /// As [`LargeReads::enter`].
    pub(super) async fn enter(self) -> Place {
        self.reads.enter_as(Step::Convert, self.reader).await
    }
}

impl LargeReads {
    /// Reads something that may be large from a namespace's store, in the turn of its caller and within the time in which
    /// every call is answered (G57). Returns it with the place to convert it. No other one is read in its place before, so
    /// that few of them are in memory.
    ///
    /// # Errors
    /// That of `read`; NotSent or Unavailable if earlier reads, or this one, take too long.
    ///
    /// # Cancellation safety
    /// As that of `read`.
    pub(super) async fn read<T>(
        &self,
        namespace: &Namespace,
        caller: &Caller,
        read: impl Future<Output = Result<T, Error>>,
    ) -> Result<(T, Place), Error> {
        let began = Instant::now();
        let turn = self.enter(Step::Read(namespace.clone()), caller);
        let reading = timeout(TURN_LIMIT, turn).await.map_err(|_| {
            let reason = "earlier large reads of the store take too long".into();
            Error::Backend(BackendError::NotSent { reason })
        })?;
        let read = timeout_at(began + ANSWERED_WITHIN, read).await.map_err(|_| {
            let reason = "the store did not answer in time".into();
            Error::Backend(BackendError::Unavailable { reason })
        })??;
        let place = self.enter(Step::Convert, caller).await;
        drop(reading);
        Ok((read, place))
    }
}

impl Reader {
    fn of(caller: &Caller) -> Self {
        if caller.identity == Identity::anonymous() {
            return Self::Address(caller.peer().map(PeerAddress::of));
        }
        Self::Identity(caller.identity.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let next = {
            let mut steps = self.reads.steps.lock();
            let Some(waiting) = steps.get_mut(&self.step) else {
                return;
            };
            let next = waiting.pop();
            if next.is_none() {
                waiting.taken -= 1;
                if waiting.taken == 0 {
                    steps.remove(&self.step);
                }
            }
            next
        };
        if let Some(next) = next {
            let (reads, step) = (self.reads.clone(), self.step.clone());
            // A call that has ended meanwhile drops the place, which passes it on.
            drop(next.send(Self { reads, step }));
        }
    }
}

#[cfg(test)]
mod tests;
