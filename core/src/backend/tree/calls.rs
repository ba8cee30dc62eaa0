//! The Acquire calls of this replica: which of their steps are in flight, and which calls were cancelled.
//!
//! A step of a cancelled call is not sent any more, and the undo of a call waits for its steps in flight. What was sent
//! over a broken connection cannot take effect later ([`super::fenced_connection`]). So a call that was undone stays
//! undone.
//!
//! After a step whose answer is lost, the lock is listed over the next connection. A grant that is found then is made
//! anew under the present base, unless a retry has found it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::backend::AcquireOutcome;
use crate::backend::cancel_marks::CancelMarks;
use crate::name::CallId;

/// See the module.
#[derive(Debug, Default)]
pub struct Calls(Mutex<CallStates>);

#[derive(Debug, Default)]
struct CallStates {
    /// The number of steps of each call that has any.
    in_flight: HashMap<CallId, watch::Sender<usize>>,
    cancelled: CancelMarks<Instant>,
    /// The calls with a granting step whose answer was lost.
    unknown: HashSet<CallId>,
}

/// A step of a call, until this is dropped.
#[derive(Debug)]
pub struct InFlight {
    calls: Arc<Calls>,
    call: CallId,
}

impl InFlight {
    /// Whether the call was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.calls.is_cancelled(self.call)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.calls.0.lock();
        let Some(in_flight) = state.in_flight.get(&self.call) else {
            return;
        };
        in_flight.send_modify(|count| *count -= 1);
        if *in_flight.borrow() == 0 {
            state.in_flight.remove(&self.call);
        }
    }
}

impl Calls {
    /// A step of this call begins; `None` if the call was cancelled.
    pub fn begin(self: &Arc<Self>, call: CallId) -> Option<InFlight> {
        let mut state = self.0.lock();
        if state.cancelled.contains(&call) {
            return None;
        }
        let in_flight = state.in_flight.entry(call).or_default();
        in_flight.send_modify(|count| *count += 1);
        Some(InFlight {
            calls: Arc::clone(self),
            call,
        })
    }

    /// Whether this call was cancelled.
    pub fn is_cancelled(&self, call: CallId) -> bool {
        self.0.lock().cancelled.contains(&call)
    }

    /// Cancels a call: none of its steps is sent any more.
    pub fn cancel(&self, call: CallId) {
        self.0.lock().cancelled.insert(call, Instant::now());
    }

    /// The answer to a granting step of this call was lost. An old copy of the store may have made its token, which then
    /// does not count.
    pub fn mark_unknown(&self, call: CallId) {
        self.0.lock().unknown.insert(call);
    }

    /// Whether the answer to a granting step of this call was lost.
    pub fn is_unknown(&self, call: CallId) -> bool {
        self.0.lock().unknown.contains(&call)
    }

    /// A call has this outcome. Unless it waits, nothing more is sent for it but an undo.
    pub fn note_outcome(&self, call: CallId, outcome: &AcquireOutcome) {
        if !matches!(outcome, AcquireOutcome::Waiting(_)) {
            self.note_settled(call);
        }
    }

    /// This call has an outcome that was answered.
    pub fn note_settled(&self, call: CallId) {
        self.0.lock().unknown.remove(&call);
    }

    /// Waits until no step of this call is in flight.
    pub async fn settled(&self, call: CallId) {
        let in_flight = self.0.lock().in_flight.get(&call).map(watch::Sender::subscribe);
        if let Some(mut in_flight) = in_flight {
            // An error says that the last step has ended.
            let _ = in_flight.wait_for(|count| *count == 0).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::poll;
    use tokio::time::sleep;

    use super::*;
    use crate::backend::{MARKS_KEPT, QueuePosition};

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_call_begins_no_step_and_is_undone_after_those_in_flight() {
        let (calls, [one, other]) = (
            Arc::new(Calls::default()),
            [1, 2].map(|id| CallId::from_bytes([id; 16])),
        );
        let steps = [calls.begin(one).unwrap(), calls.begin(one).unwrap()];
        let _others = calls.begin(other).unwrap();
        calls.cancel(one);
        assert!(calls.begin(one).is_none() && steps[0].is_cancelled());
        assert!(calls.begin(other).is_some() && !calls.is_cancelled(other));
        let mut settled = Box::pin(calls.settled(one));
        for step in steps {
            assert!(poll!(&mut settled).is_pending());
            drop(step);
        }
        settled.await;
        // What is remembered of it goes with its mark.
        sleep(MARKS_KEPT).await;
        calls.cancel(other);
        let state = calls.0.lock();
        assert!(!state.cancelled.contains(&one) && !state.in_flight.contains_key(&one));
    }

    #[test]
    fn a_doubt_about_a_call_is_forgotten_with_its_outcome() {
        let (calls, call) = (Calls::default(), CallId::from_bytes([1; 16]));
        calls.mark_unknown(call);
        let waits = QueuePosition {
            position: 0,
            frees_in: None,
        };
        calls.note_outcome(call, &AcquireOutcome::Waiting(waits));
        assert!(calls.is_unknown(call));
        calls.note_outcome(call, &AcquireOutcome::Superseded);
        assert!(!calls.is_unknown(call));
    }
}
