//! Which steps of this replica's calls have not been answered yet.
//!
//! A step that was sent goes on where its call is dropped, so that this replica has its answer. A leave waits for the
//! answers of its call: once all are here, nothing of the call can come late. Only where the outcome of a step stays
//! unknown a cancel mark must keep it out, and the lease that the step named may be in use until the leave was answered.
//! A call that leaves sends no step any more: this replica, the only one that serves it, remembers it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::leases::Lease;
use super::cluster_client::Failure;
use crate::backend::MARKS_KEPT;
use crate::name::CallId;

/// How many calls that left are remembered at the most. A step of such a call comes within milliseconds of its leave,
/// if it comes at all: both are of this process.
const LEFT: usize = 1 << 18;

/// See the module.
#[derive(Debug, Default)]
pub struct Calls {
    with_steps: Mutex<HashMap<CallId, Call>>,
    left: Mutex<LeftCalls>,
}

/// The calls that left within the last [`MARKS_KEPT`], at most [`LEFT`] of them.
#[derive(Debug, Default)]
struct LeftCalls {
    calls: HashSet<CallId>,
    by_time: VecDeque<(Instant, CallId)>,
}

impl LeftCalls {
    fn insert(&mut self, call: CallId) {
        if self.calls.insert(call) {
            self.by_time.push_back((Instant::now(), call));
        }
        while let Some((at, call)) = self.by_time.front().copied()
            && (at.elapsed() >= MARKS_KEPT || self.by_time.len() > LEFT)
        {
            self.by_time.pop_front();
            self.calls.remove(&call);
        }
    }
}

#[derive(Debug, Default)]
struct Call {
    under_way: usize,
    /// Whether a step took effect is unknown.
    lost: bool,
    /// The leases that such steps named and that no other call can use.
    leases: Vec<Lease>,
    /// Nobody asks for it any more.
    is_over: bool,
    ended: Arc<Notify>,
}

impl Calls {
    /// A step of a call is about to be sent, and names this lease; nothing for a call that has left.
    pub fn begin(self: &Arc<Self>, call: CallId, lease: Option<Lease>) -> Option<Sent> {
        let left = self.left();
        if left.calls.contains(&call) {
            return None;
        }
        self.lock().entry(call).or_default().under_way += 1;
        drop(left);
        Some(Sent {
            calls: Arc::clone(self),
            call,
            lease,
            is_known: false,
        })
    }

    /// A call leaves: no step of it is sent any more.
    pub fn release(&self, call: CallId) {
        self.left().insert(call);
    }

    /// Whether a call has left, as far as that is remembered.
    pub fn has_left(&self, call: CallId) -> bool {
        self.left().calls.contains(&call)
    }

    /// The outcome of a step that was answered counts as unknown, and so does the use of the lease that it named.
    pub fn doubt(&self, call: CallId, lease: Option<Lease>) {
        let mut calls = self.lock();
        let state = calls.entry(call).or_default();
        (state.lost, state.is_over) = (true, false);
        state.leases.extend(lease);
    }

    /// Waits for a time until all steps of a call have ended; whether each was answered.
    ///
    /// # Cancellation safety
    /// Dropped, nothing is lost.
    pub async fn settle(&self, call: CallId, wait_policy: Duration) -> bool {
        let ended = async {
            loop {
                let (now, ended) = self.state(call);
                let ended = ended.map(Notify::notified_owned);
                match (now, ended) {
                    (State::InFlight, Some(ended)) if self.state(call).0 == State::InFlight => ended.await,
                    (State::InFlight, _) => {}
                    (now, _) => return now,
                }
            }
        };
        timeout(wait_policy, ended).await == Ok(State::Answered)
    }

    /// Whether all steps of a call were answered.
    pub fn is_settled(&self, call: CallId) -> bool {
        self.state(call).0 == State::Answered
    }

    /// A call has left, or what became of its steps is known otherwise; the leases that steps of unknown outcome named.
    pub fn over(&self, call: CallId) -> Vec<Lease> {
        let mut calls = self.lock();
        let Some(state) = calls.get_mut(&call) else {
            return Vec::new();
        };
        (state.lost, state.is_over) = (false, true);
        let leases = std::mem::take(&mut state.leases);
        if state.under_way == 0 {
            calls.remove(&call);
        }
        leases
    }

    fn state(&self, call: CallId) -> (State, Option<Arc<Notify>>) {
        match self.lock().get(&call) {
            None => (State::Answered, None),
            Some(state) if state.under_way > 0 => (State::InFlight, Some(Arc::clone(&state.ended))),
            Some(state) if state.lost => (State::Lost, None),
            Some(_) => (State::Answered, None),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CallId, Call>> {
        self.with_steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn left(&self) -> MutexGuard<'_, LeftCalls> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the steps of a call are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    InFlight,
    Answered,
    Lost,
}

/// A step that was sent. Dropped before it was answered, its outcome is unknown.
#[derive(Debug)]
pub struct Sent {
    calls: Arc<Calls>,
    call: CallId,
    lease: Option<Lease>,
    is_known: bool,
}

impl Sent {
    /// Its answer is here.
    pub fn answered<T>(mut self, answer: &Result<T, Failure>) {
        self.is_known = match answer {
            Ok(_) | Err(Failure::LeaseGone | Failure::Refused(_) | Failure::NotSent(_)) => true,
            Err(Failure::Full(_) | Failure::NoQuorum(_) | Failure::Unavailable(_)) => false,
        };
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let mut calls = self.calls.lock();
        let Some(state) = calls.get_mut(&self.call) else {
            return;
        };
        state.under_way -= 1;
        if !self.is_known {
            state.lost = true;
            state.leases.extend(self.lease);
        }
        state.ended.notify_waiters();
        if state.under_way == 0 && (!state.lost || state.is_over) {
            calls.remove(&self.call);
        }
    }
}

/// What goes on in a task of its own where it is dropped before its end.
pub struct Finishing<T: Send + 'static>(Option<BoxFuture<'static, T>>);

impl<T: Send + 'static> Finishing<T> {
    pub fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Some(work.boxed()))
    }
}

impl<T: Send + 'static> Future for Finishing<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(work) = &mut self.0 else {
            return Poll::Pending;
        };
        let done = work.as_mut().poll(context);
        if done.is_ready() {
            self.0 = None;
        }
        done
    }
}

impl<T: Send + 'static> Drop for Finishing<T> {
    fn drop(&mut self) {
        if let (Some(work), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    fn call(number: u8) -> CallId {
        CallId::from_bytes([number; 16])
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_settled_when_each_of_its_steps_was_answered_and_never_where_one_was_lost() {
        let calls = Arc::new(Calls::default());
        assert!(calls.settle(call(1), PATIENCE).await, "nothing was sent");
        let (first, second, other) = (
            calls.begin(call(1), None).unwrap(),
            calls.begin(call(1), None).unwrap(),
            calls.begin(call(2), None).unwrap(),
        );
        first.answered(&Ok(()));
        assert!(!calls.settle(call(1), PATIENCE).await, "one is under way");
        let settles = calls.settle(call(1), PATIENCE);
        let answers = async {
            sleep(PATIENCE / 2).await;
            second.answered(&Err::<(), _>(Failure::LeaseGone));
        };
        assert!(tokio::join!(settles, answers).0);
        other.answered(&Err::<(), _>(Failure::Unavailable("lost".into())));
        assert!(!calls.settle(call(2), PATIENCE).await && !calls.is_settled(call(2)));
        calls.over(call(2));
        assert!(calls.lock().is_empty(), "nothing is left of them");
    }

    #[tokio::test]
    async fn the_lease_of_a_step_is_told_where_its_outcome_stayed_unknown() {
        let calls = Arc::new(Calls::default());
        let lease = |id| Lease {
            id,
            span_s: 1,
            alive: None,
            used: false,
            memory: None,
        };
        calls.begin(call(1), Some(lease(1))).unwrap().answered(&Ok(()));
        drop(calls.begin(call(1), Some(lease(2))).unwrap());
        assert_eq!(calls.over(call(1)), [lease(2)]);
        assert!(calls.over(call(1)).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_begun_is_finished_where_it_is_dropped() {
        let calls = Arc::new(Calls::default());
        let sent = calls.begin(call(1), None).unwrap();
        let mut work = Finishing::new(async move {
            sleep(PATIENCE / 2).await;
            sent.answered(&Ok(()));
        });
        assert!(futures::poll!(&mut work).is_pending());
        drop(work);
        assert!(calls.settle(call(1), PATIENCE).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_left_sends_no_step_for_as_long_as_marks_are_kept() {
        let calls = Arc::new(Calls::default());
        calls.release(call(1));
        assert!(calls.has_left(call(1)) && calls.begin(call(1), None).is_none());
        assert!(calls.begin(call(2), None).is_some(), "another call goes on");
        tokio::time::advance(MARKS_KEPT - Duration::from_millis(1)).await;
        calls.release(call(3));
        assert!(calls.has_left(call(1)));
        tokio::time::advance(Duration::from_millis(1)).await;
        calls.release(call(4));
        assert!(!calls.has_left(call(1)) && calls.has_left(call(3)));
    }
}
