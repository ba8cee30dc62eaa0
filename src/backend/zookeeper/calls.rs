//! The Acquire calls of this replica: which of their steps are under way, and which calls have ended.
//!
//! A step of a call that has ended is not sent any more, and the undo of a call waits for its steps under way. What was
//! sent over a broken connection cannot take effect later ([`super::fenced_connection`]). So a call that was undone stays
//! undone.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::backend::{AcquireOutcome, MARKS_KEPT};
use crate::name::CallId;

/// See the module.
#[derive(Debug, Default)]
pub struct Calls(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    calls: HashMap<CallId, Arc<Call>>,
    /// The calls that have ended, oldest first.
    left: VecDeque<(Instant, CallId)>,
    /// Those with a granting step whose answer was lost.
    in_doubt: HashSet<CallId>,
}

#[derive(Debug)]
struct Call {
    in_flight: watch::Sender<usize>,
    left: Mutex<bool>,
}

/// A step of a call, until this is dropped.
#[derive(Debug)]
pub struct InFlight {
    calls: Arc<Calls>,
    id: CallId,
    call: Arc<Call>,
}

impl InFlight {
    /// Whether the call has ended.
    pub fn has_left(&self) -> bool {
        *self.call.left.lock()
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.calls.0.lock();
        let mut count = 0;
        self.call.in_flight.send_modify(|in_flight| {
            *in_flight -= 1;
            count = *in_flight;
        });
        if count == 0 && !self.has_left() {
            state.calls.remove(&self.id);
        }
    }
}

impl Calls {
    /// A step of this call begins; `None` if the call has ended.
    pub fn begin(self: &Arc<Self>, id: CallId) -> Option<InFlight> {
        let mut state = self.0.lock();
        let call = Arc::clone(state.call(id));
        if *call.left.lock() {
            return None;
        }
        call.in_flight.send_modify(|in_flight| *in_flight += 1);
        Some(InFlight {
            calls: Arc::clone(self),
            id,
            call,
        })
    }

    /// Whether this call has ended.
    pub fn has_left(&self, id: CallId) -> bool {
        self.0.lock().calls.get(&id).is_some_and(|call| *call.left.lock())
    }

    /// Ends a call: none of its steps is sent any more.
    pub fn leave(&self, id: CallId) {
        let mut state = self.0.lock();
        state.forget_old();
        let call = Arc::clone(state.call(id));
        if !std::mem::replace(&mut *call.left.lock(), true) {
            state.left.push_back((Instant::now(), id));
        }
    }

    /// The answer to a granting step of this call was lost: its token was perhaps minted by another store's zxid, and
    /// does not count.
    pub fn doubt(&self, id: CallId) {
        self.0.lock().in_doubt.insert(id);
    }

    /// Whether the answer to a granting step of this call was lost.
    pub fn is_in_doubt(&self, id: CallId) -> bool {
        self.0.lock().in_doubt.contains(&id)
    }

    /// A call has this outcome. Unless it waits, nothing more is sent for it but an undo.
    pub fn has_outcome(&self, id: CallId, outcome: &AcquireOutcome) {
        if !matches!(outcome, AcquireOutcome::Waiting(_)) {
            self.is_settled(id);
        }
    }

    /// This call has an outcome that was answered.
    pub fn is_settled(&self, id: CallId) {
        self.0.lock().in_doubt.remove(&id);
    }

    /// Waits until no step of this call is under way.
    pub async fn settled(&self, id: CallId) {
        let call = self.0.lock().calls.get(&id).cloned();
        if let Some(call) = call {
            let mut in_flight = call.in_flight.subscribe();
            let _ = in_flight.wait_for(|count| *count == 0).await;
        }
    }
}

impl State {
    fn call(&mut self, id: CallId) -> &Arc<Call> {
        self.calls.entry(id).or_insert_with(|| {
            Arc::new(Call {
                in_flight: watch::Sender::new(0),
                left: Mutex::new(false),
            })
        })
    }

    fn forget_old(&mut self) {
        while let Some((since, id)) = self.left.front()
            && since.elapsed() > 2 * MARKS_KEPT
        {
            self.calls.remove(id);
            self.left.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::QueuePosition;

    #[test]
    fn a_doubt_about_a_call_is_forgotten_with_its_outcome() {
        let (calls, call) = (Calls::default(), CallId::from_bytes([1; 16]));
        calls.doubt(call);
        let waits = QueuePosition {
            position: 0,
            frees_in: None,
        };
        calls.has_outcome(call, &AcquireOutcome::Waiting(waits));
        assert!(calls.is_in_doubt(call));
        calls.has_outcome(call, &AcquireOutcome::Superseded);
        assert!(!calls.is_in_doubt(call));
    }
}
