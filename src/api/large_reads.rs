//! Large reads take turns, so that a renewal waits behind no more of them than there are processors.
//!
//! A page of locks takes what a thousand renewals take. Therefore only as many pages as there are processors are read from
//! one namespace at once, and as many converted for clients. Others wait outside of the store's queue and the runtime's,
//! and get their turns one caller after the other: an identity, or the address of callers without one.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::available_parallelism;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::authenticate::Caller;
use super::capacity::PeerAddress;
use crate::name::{Identity, Namespace};

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
    fn new(places: usize) -> Self {
        let steps = Arc::default();
        Self { steps, places }
    }

    /// Waits for a place.
    ///
    /// # Cancellation safety
    /// If dropped, the place goes to the next one.
    pub(super) async fn enter(&self, step: Step, caller: &Caller) -> Place {
        let turn = {
            let mut steps = self.steps.lock();
            let waiting = steps.entry(step.clone()).or_default();
            if waiting.taken < self.places {
                waiting.taken += 1;
                None
            } else {
                let (place, turn) = oneshot::channel();
                waiting.push(Reader::of(caller), place);
                Some(turn)
            }
        };
        let place = match turn {
            Some(turn) => turn.await.ok(),
            None => None,
        };
        // Whoever leaves passes the place on, so it is absent only for a place that was free.
        place.unwrap_or_else(|| Place {
            reads: self.clone(),
            step,
        })
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
