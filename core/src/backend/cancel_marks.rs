//! The cancel marks of a replica or of a store in this process: the calls that were cancelled within the last
//! [`MARKS_KEPT`].

use std::collections::{HashSet, VecDeque};
use std::ops::Add;
use std::time::Duration;

use crate::backend::MARKS_KEPT;
use crate::name::CallId;

/// The maximum number of marks; the oldest is dropped first. A late step in the same process follows the cancellation
/// of its call within milliseconds, so a mark that is dropped early is no longer needed.
const CAPACITY: usize = 1 << 18;

/// See the module. `T` is a time of a clock that only rises.
#[derive(Debug)]
pub struct CancelMarks<T> {
    calls: HashSet<CallId>,
    order: VecDeque<(T, CallId)>,
}

impl<T> Default for CancelMarks<T> {
    fn default() -> Self {
        Self {
            calls: HashSet::new(),
            order: VecDeque::new(),
        }
    }
}

impl<T: Copy + Ord + Add<Duration, Output = T>> CancelMarks<T> {
    /// Marks a call.
    pub fn insert(&mut self, call: CallId, now: T) {
        if self.calls.insert(call) {
            self.order.push_back((now + MARKS_KEPT, call));
        }
        self.purge(now);
    }

    /// Whether a call has a mark.
    pub fn contains(&self, call: &CallId) -> bool {
        !self.calls.is_empty() && self.calls.contains(call)
    }

    /// Drops the marks whose time has passed.
    pub fn purge(&mut self, now: T) {
        while let Some(&(until, call)) = self.order.front() {
            if until > now && self.order.len() <= CAPACITY {
                return;
            }
            self.order.pop_front();
            self.calls.remove(&call);
        }
        // This line is reached only with an empty queue. It frees memory after a burst.
        if self.order.capacity() > 1024 {
            *self = Self::default();
        }
    }

    /// When the oldest mark expires.
    pub fn due(&self) -> Option<T> {
        self.order.front().map(|(until, _)| *until)
    }
}
