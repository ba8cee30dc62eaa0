//! Counts what is in use at once, and refuses what would exceed a limit.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The counters of one user: an identity, a namespace or an address.
pub trait Counters: Debug {
    /// What is counted.
    type Resource: Copy + Debug;

    /// The counter of a resource.
    fn counter(&self, resource: Self::Resource) -> &AtomicUsize;
}

/// So many units of a resource. They are in use until this is dropped.
#[derive(Debug)]
pub struct InUse<C: Counters> {
    counters: Arc<C>,
    resource: C::Resource,
    number: usize,
}

impl<C: Counters> InUse<C> {
    /// Counts so many units more. `None` if more than `limit` would be in use.
    pub fn count(counters: &Arc<C>, resource: C::Resource, number: usize, limit: usize) -> Option<Self> {
        let more = |count: usize| Some(count + number).filter(|count| *count <= limit);
        let counter = counters.counter(resource);
        let counted = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.ok().map(|_| Self {
            counters: Arc::clone(counters),
            resource,
            number,
        })
    }
}

impl<C: Counters> Drop for InUse<C> {
    fn drop(&mut self) {
        self.counters
            .counter(self.resource)
            .fetch_sub(self.number, Ordering::Relaxed);
    }
}
