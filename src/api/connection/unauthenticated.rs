//! Limits the unauthenticated connections: those without an authenticated call so far.
//!
//! At the limit, the oldest one is closed instead of refusing the newest. Clients with credentials present them at
//! once, so the oldest connection rarely belongs to one of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The unauthenticated connections of a server.
#[derive(Debug)]
pub(super) struct UnauthenticatedConnections {
    limit: usize,
    by_age: Mutex<ByAge>,
}

/// The token that closes each connection, by its number in the order of arrival.
#[derive(Debug, Default)]
struct ByAge {
    last: u64,
    tokens: BTreeMap<u64, CancellationToken>,
}

impl UnauthenticatedConnections {
    /// Allows at most `limit` unauthenticated connections.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            by_age: Mutex::default(),
        }
    }

    /// Adds a connection, which `cut` closes. Returns its entry, and whether the oldest one was closed for it.
    pub(super) fn add(self: &Arc<Self>, cut: CancellationToken) -> (UnauthenticatedConnection, bool) {
        let mut by_age = self.by_age.lock();
        by_age.last += 1;
        let number = by_age.last;
        by_age.tokens.insert(number, cut);
        let oldest = (by_age.tokens.len() > self.limit).then(|| by_age.tokens.pop_first());
        drop(by_age);
        let oldest = oldest.flatten().map(|(_, oldest)| oldest.cancel());
        let entry = UnauthenticatedConnection {
            all: Arc::clone(self),
            number,
            is_removed: AtomicBool::new(false),
        };
        (entry, oldest.is_some())
    }

    /// Closes the oldest connection to make room for the next one.
    pub(super) fn cut_oldest(&self) {
        let oldest = self.by_age.lock().tokens.pop_first();
        if let Some((_, oldest)) = oldest {
            oldest.cancel();
        }
    }
}

/// The entry of a connection, until a call on it is authenticated or the connection ends.
#[derive(Debug)]
pub(in crate::api) struct UnauthenticatedConnection {
    all: Arc<UnauthenticatedConnections>,
    number: u64,
    is_removed: AtomicBool,
}

impl UnauthenticatedConnection {
    /// Removes the entry, because a call on the connection is authenticated.
    pub(in crate::api) fn remove(&self) {
        // Each authenticated call gets here, but only the first one removes the entry.
        if self.is_removed.load(Ordering::Relaxed) || self.is_removed.swap(true, Ordering::Relaxed) {
            return;
        }
        self.all.by_age.lock().tokens.remove(&self.number);
    }
}

impl Drop for UnauthenticatedConnection {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_closed_at_the_limit_unless_it_is_authenticated_or_has_ended() {
        let connections = Arc::new(UnauthenticatedConnections::new(2));
        let add = || {
            let cut = CancellationToken::new();
            let (entry, was_full) = connections.add(cut.clone());
            (entry, cut, was_full)
        };
        let (authenticated, kept, _) = add();
        authenticated.remove();
        let (ended, _, _) = add();
        drop(ended);
        let (_first, oldest, _) = add();
        let (_second, next, was_full) = add();
        assert!(!was_full && !oldest.is_cancelled());
        let (_third, newest, was_full) = add();
        assert!(was_full && oldest.is_cancelled());
        assert!(!next.is_cancelled() && !newest.is_cancelled() && !kept.is_cancelled());
        assert_eq!(connections.by_age.lock().tokens.len(), 2);
    }
}
