//! Which steps of this replica's calls have not been answered yet.
//!
//! A step that was sent continues when its call is dropped, so this replica gets its answer. The undo of a call waits
//! for the answers of the call's steps; after the last one, no step of the call can take effect late. Only if the
//! outcome of a step stays unknown is a cancel mark needed, and the lease that the step names counts as in use until
//! the undo was answered. A cancelled call sends no further step: this replica, which alone serves the call, remembers
//! the cancellation.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::backend::cancel_marks::CancelMarks;
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::lease::Lease;
use crate::name::CallId;

/// See the module.
#[derive(Debug, Default)]
pub struct Calls {
    with_steps: Mutex<HashMap<CallId, Call>>,
    cancelled: Mutex<CancelMarks<Instant>>,
}

#[derive(Debug, Default)]
struct Call {
    in_flight: usize,
    /// The outcome of some step is unknown.
    lost: bool,
    /// The leases that steps of unknown outcome name and that no other call uses.
    leases: Vec<Lease>,
    /// The call's outcome is no longer needed.
    is_over: bool,
    ended: Arc<Notify>,
}

impl Calls {
    /// Registers a step that is about to be sent, and the lease that it names. None if the call was cancelled.
    pub fn begin(self: &Arc<Self>, call: CallId, lease: Option<Lease>) -> Option<Sent> {
        let cancelled = self.cancelled.lock();
        if cancelled.contains(&call) {
            return None;
        }
        self.with_steps.lock().entry(call).or_default().in_flight += 1;
        drop(cancelled);
        Some(Sent {
            calls: Arc::clone(self),
            call,
            lease,
            is_known: false,
        })
    }

    /// Cancels a call: no further step of it is sent.
    pub fn cancel(&self, call: CallId) {
        self.cancelled.lock().insert(call, Instant::now());
    }

    /// Whether a call was cancelled, as far as that is remembered.
    pub fn is_cancelled(&self, call: CallId) -> bool {
        self.cancelled.lock().contains(&call)
    }

    /// Makes the outcome of an answered step count as unknown, and with it the use of the lease that it names.
    pub fn mark_unknown(&self, call: CallId, lease: Option<Lease>) {
        let mut calls = self.with_steps.lock();
        let state = calls.entry(call).or_default();
        (state.lost, state.is_over) = (true, false);
        state.leases.extend(lease);
    }

    /// Waits, for at most `limit`, until all steps of a call have ended. True if each was answered.
    ///
    /// # Cancellation safety
    /// Safe: a dropped wait changes nothing.
    pub async fn settle(&self, call: CallId, limit: Duration) -> bool {
        let ended = async {
            loop {
                let (now, ended) = self.state(call);
                let ended = ended.map(Notify::notified_owned);
                match (now, ended) {
                    (CallState::InFlight, Some(ended)) if self.state(call).0 == CallState::InFlight => ended.await,
                    (CallState::InFlight, _) => {}
                    (now, _) => return now,
                }
            }
        };
        timeout(limit, ended).await == Ok(CallState::Answered)
    }

    /// Whether all steps of a call were answered.
    pub fn is_settled(&self, call: CallId) -> bool {
        self.state(call).0 == CallState::Answered
    }

    /// Ends the bookkeeping of a call that was undone, or whose outcome is known otherwise. Returns the leases that its
    /// steps of unknown outcome name.
    pub fn over(&self, call: CallId) -> Vec<Lease> {
        let mut calls = self.with_steps.lock();
        let Some(state) = calls.get_mut(&call) else {
            return Vec::new();
        };
        (state.lost, state.is_over) = (false, true);
        let leases = std::mem::take(&mut state.leases);
        if state.in_flight == 0 {
            calls.remove(&call);
        }
        leases
    }

    fn state(&self, call: CallId) -> (CallState, Option<Arc<Notify>>) {
        match self.with_steps.lock().get(&call) {
            None => (CallState::Answered, None),
            Some(state) if state.in_flight > 0 => (CallState::InFlight, Some(Arc::clone(&state.ended))),
            Some(state) if state.lost => (CallState::Lost, None),
            Some(_) => (CallState::Answered, None),
        }
    }
}

/// The state of a call's steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallState {
    InFlight,
    Answered,
    Lost,
}

/// A step that was sent. If this is dropped before [`Sent::answered`], the outcome is unknown.
#[derive(Debug)]
pub struct Sent {
    calls: Arc<Calls>,
    call: CallId,
    lease: Option<Lease>,
    is_known: bool,
}

impl Sent {
    /// Notes the answer.
    pub fn answered<T>(mut self, answer: &Result<T, Failure>) {
        self.is_known = answer.as_ref().err().is_none_or(Failure::is_without_effect);
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let mut calls = self.calls.with_steps.lock();
        let Some(state) = calls.get_mut(&self.call) else {
            return;
        };
        state.in_flight -= 1;
        if !self.is_known {
            state.lost = true;
            state.leases.extend(self.lease);
        }
        state.ended.notify_waiters();
        if state.in_flight == 0 && (!state.lost || state.is_over) {
            calls.remove(&self.call);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::backend::MARKS_KEPT;
    use crate::backend::etcd::cluster::Finishing;

    const LIMIT: Duration = Duration::from_secs(5);

    fn call(number: u8) -> CallId {
        CallId::from_bytes([number; 16])
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_settled_once_each_step_was_answered_and_never_after_an_unknown_outcome() {
        let calls = Arc::new(Calls::default());
        assert!(calls.settle(call(1), LIMIT).await, "nothing was sent");
        let (first, second, other) = (
            calls.begin(call(1), None).unwrap(),
            calls.begin(call(1), None).unwrap(),
            calls.begin(call(2), None).unwrap(),
        );
        first.answered(&Ok(()));
        assert!(!calls.settle(call(1), LIMIT).await, "one is in flight");
        let settles = calls.settle(call(1), LIMIT);
        let answers = async {
            sleep(LIMIT / 2).await;
            second.answered(&Err::<(), _>(Failure::LeaseGone));
        };
        assert!(tokio::join!(settles, answers).0);
        other.answered(&Err::<(), _>(Failure::Unavailable("lost".into())));
        assert!(!calls.settle(call(2), LIMIT).await && !calls.is_settled(call(2)));
        calls.over(call(2));
        assert!(calls.with_steps.lock().is_empty(), "nothing is left of them");
    }

    #[tokio::test]
    async fn only_the_lease_of_a_step_with_an_unknown_outcome_is_returned() {
        let calls = Arc::new(Calls::default());
        let lease = |id| Lease {
            id,
            granted_ttl_s: 1,
            alive: None,
            used: false,
            request_lease: None,
            generation: 0,
        };
        calls.begin(call(1), Some(lease(1))).unwrap().answered(&Ok(()));
        drop(calls.begin(call(1), Some(lease(2))).unwrap());
        assert_eq!(calls.over(call(1)), [lease(2)]);
        assert!(calls.over(call(1)).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_future_is_finished_by_its_own_task() {
        let calls = Arc::new(Calls::default());
        let sent = calls.begin(call(1), None).unwrap();
        let mut work = Finishing::new(async move {
            sleep(LIMIT / 2).await;
            sent.answered(&Ok(()));
        });
        assert!(futures::poll!(&mut work).is_pending());
        drop(work);
        assert!(calls.settle(call(1), LIMIT).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_call_sends_no_step_for_as_long_as_marks_are_kept() {
        let calls = Arc::new(Calls::default());
        calls.cancel(call(1));
        assert!(calls.is_cancelled(call(1)) && calls.begin(call(1), None).is_none());
        assert!(calls.begin(call(2), None).is_some(), "another call goes on");
        tokio::time::advance(MARKS_KEPT - Duration::from_millis(1)).await;
        calls.cancel(call(3));
        assert!(calls.is_cancelled(call(1)));
        tokio::time::advance(Duration::from_millis(1)).await;
        calls.cancel(call(4));
        assert!(!calls.is_cancelled(call(1)) && calls.is_cancelled(call(3)));
    }
}
