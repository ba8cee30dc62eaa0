//! When a store last answered, for those who wait for an answer of it that does not come.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

/// When the store last ended or renewed a lease, which nothing but an answer of the store shows: other operations may be
/// answered by what the server knows. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct LastAnswer(Arc<Mutex<Option<Instant>>>);

impl LastAnswer {
    /// The store has answered now.
    pub(super) fn note(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    /// Whether the store has answered something since then.
    pub fn is_after(&self, then: Instant) -> bool {
        self.0.lock().is_some_and(|at| at > then)
    }
}
