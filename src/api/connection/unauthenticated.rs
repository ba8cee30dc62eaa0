//! Connections of strangers, on which no call has proven yet who it is. Together they have a part of all places.
//! Beyond it the oldest is cut, not the newest refused: whoever has a proof shows it at once, so an honest one is
//! hardly ever the oldest.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// All of them.
#[derive(Debug)]
pub(super) struct UnauthenticatedConnections {
    most: usize,
    /// Never held for longer than it takes to enter or leave.
    line: Mutex<ByAge>,
}

/// What ends each, by a number that rises.
#[derive(Debug, Default)]
struct ByAge {
    begun: u64,
    by_age: BTreeMap<u64, CancellationToken>,
}

impl UnauthenticatedConnections {
    /// At most so many at once.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            line: Mutex::default(),
        }
    }

    /// Counts one in, which `cut` ends, and answers whether the oldest was cut for it.
    pub(super) fn enter(self: &Arc<Self>, cut: CancellationToken) -> (UnauthenticatedConnection, bool) {
        let mut line = self.line();
        line.begun += 1;
        let number = line.begun;
        line.by_age.insert(number, cut);
        let oldest = (line.by_age.len() > self.most).then(|| line.by_age.pop_first());
        drop(line);
        let oldest = oldest.flatten().map(|(_, oldest)| oldest.cancel());
        let place = UnauthenticatedConnection {
            strangers: Arc::clone(self),
            number,
            is_left: AtomicBool::new(false),
        };
        (place, oldest.is_some())
    }

    /// Cuts the oldest, so that there is a place for whoever comes next.
    pub(super) fn cut_oldest(&self) {
        let oldest = self.line().by_age.pop_first();
        if let Some((_, oldest)) = oldest {
            oldest.cancel();
        }
    }

    fn line(&self) -> MutexGuard<'_, ByAge> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a connection among them, until somebody proves on it who it is, or it ends.
#[derive(Debug)]
pub(in crate::api) struct UnauthenticatedConnection {
    strangers: Arc<UnauthenticatedConnections>,
    number: u64,
    is_left: AtomicBool,
}

impl UnauthenticatedConnection {
    /// Leaves it.
    pub(in crate::api) fn proven(&self) {
        // Each call asks, and all but the first find it left.
        if self.is_left.load(Ordering::Relaxed) || self.is_left.swap(true, Ordering::Relaxed) {
            return;
        }
        self.strangers.line().by_age.remove(&self.number);
    }
}

impl Drop for UnauthenticatedConnection {
    fn drop(&mut self) {
        self.proven();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_makes_room_unless_it_is_proven_or_over() {
        let strangers = Arc::new(UnauthenticatedConnections::new(2));
        let enter = || {
            let cut = CancellationToken::new();
            let (place, was_full) = strangers.enter(cut.clone());
            (place, cut, was_full)
        };
        let (proven, kept, _) = enter();
        proven.proven();
        let (over, _, _) = enter();
        drop(over);
        let (_first, oldest, _) = enter();
        let (_second, next, was_full) = enter();
        assert!(!was_full && !oldest.is_cancelled());
        let (_third, newest, was_full) = enter();
        assert!(was_full && oldest.is_cancelled());
        assert!(!next.is_cancelled() && !newest.is_cancelled() && !kept.is_cancelled());
        assert_eq!(strangers.line().by_age.len(), 2);
    }
}
